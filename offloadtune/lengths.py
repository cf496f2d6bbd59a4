"""Lengths of logged requests: their distributions in bounded memory, and the workload they make. Pure functions.

A quantile is the smallest length that at least that part of the requests does not exceed (the inverse of the
distribution function): a length that occurred, never a mean of two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from offloadtune.records import WORKLOADS, Workload
from offloadtune.units import format_count
from offloadtune.workloads import Lengths, LoggedRequest, RequestKind, SkippedLine, Tally, WorkloadRule

LONG_TOKENS = 8192
_LONG_PERCENT = 10
_EXACT_BITS = 14
_N_GEN_UNKNOWN = WORKLOADS["chat"].n_gen
_CTX_STEP = 256
_WORTH_SAYING = 1.1


class _Lengths:
    """One length of many requests, counted by value; long ones are rounded down, so that there are few values."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._n, self._low, self._high = 0, 0, 0

    def add(self, length: int) -> None:
        excess = max(0, length.bit_length() - _EXACT_BITS)
        self._counts[length >> excess << excess] += 1
        self._low = min(self._low, length) if self._n else length
        self._high = max(self._high, length)
        self._n += 1

    def found(self) -> Lengths | None:
        if not self._n:
            return None
        p50, p95 = (max(self._low, self._at_percent(percent)) for percent in (50, 95))
        return Lengths(n_requests=self._n, low=self._low, p50=p50, p95=p95, high=self._high)

    def _at_percent(self, percent: int) -> int:
        rank, n_below = -(-self._n * percent // 100), 0
        for length in sorted(self._counts):
            n_below += self._counts[length]
            if n_below >= rank:
                return length
        raise AssertionError(rank)


def tally(lines: Iterable[LoggedRequest | SkippedLine]) -> Tally:
    """The distributions of all requests among `lines`, which are gone through once."""
    prompt, shared, fresh, output, turn = (_Lengths() for _ in range(5))
    counts: Counter[str] = Counter()
    kinds: Counter[RequestKind] = Counter()
    first_skipped = None
    for line in lines:
        if isinstance(line, SkippedLine):
            counts["skipped"] += 1
            first_skipped = first_skipped or line
            continue
        kinds[line.kind] += 1
        prompt.add(line.n_prompt)
        if line.n_shared is not None:
            shared.add(line.n_shared)
            fresh.add(line.n_prompt - line.n_shared)
        elif line.is_partial:
            fresh.add(line.n_prompt)
        if line.n_output is not None:
            output.add(line.n_output)
        n_turn = line.n_prompt + (line.n_output or 0)
        turn.add(n_turn)
        if line.n_chars and not line.is_estimated:
            counts["seen_chars"] += line.n_chars
            counts["seen_tokens"] += line.n_prompt
        for name, is_so in (
            ("long", n_turn > LONG_TOKENS),
            ("estimated", line.is_estimated),
            ("outputs_estimated", line.is_output_estimated),
            ("partial", line.is_partial),
            ("media", line.has_media),
        ):
            counts[name] += is_so
    n_requests = sum(kinds.values())
    return Tally(
        n_requests=n_requests,
        kinds=tuple((kind, kinds[kind]) for kind in RequestKind if kinds[kind]),
        n_estimated=counts["estimated"],
        n_outputs_estimated=counts["outputs_estimated"],
        n_partial=counts["partial"],
        n_media=counts["media"],
        n_skipped=counts["skipped"],
        first_skipped=first_skipped,
        prompt=prompt.found(),
        shared=shared.found(),
        fresh=fresh.found(),
        output=output.found(),
        turn=turn.found(),
        n_long=counts["long"],
        long_tokens=LONG_TOKENS,
        is_long=counts["long"] * 100 > n_requests * _LONG_PERCENT,
        seen_chars_per_token=counts["seen_chars"] / counts["seen_tokens"] if counts["seen_tokens"] else None,
    )


def choose_workload(found: Tally, rule: WorkloadRule, n_parallel: int = 1) -> Workload:
    """The workload of these requests by `rule`, each number from its own distribution."""
    fresh = found.fresh or found.prompt
    numbers = {
        "n_prefix_cached": _by_rule(found.shared, rule, 0),
        "n_prompt_new": max(1, _by_rule(fresh, rule, 1)),
        "n_gen": max(1, _by_rule(found.output, rule, _N_GEN_UNKNOWN)),
        "n_parallel": n_parallel,
    }
    return Workload(name="/".join(map(str, numbers.values())), **numbers)


def context_for(found: Tally, workload: Workload) -> int:
    """The context that holds the longest request, and the workload, in every sequence.

    Where an output is not known, the longest prompt has room for that of the workload.
    """
    longest = found.turn.high if found.turn else 0
    if found.prompt and (found.output is None or found.output.n_requests < found.n_requests):
        longest = max(longest, found.prompt.high + workload.n_gen)
    return -(-max(longest * workload.n_parallel, workload.n_ctx_needed) // _CTX_STEP) * _CTX_STEP


def reasons_for(found: Tally, rule: WorkloadRule, chars_per_token: float) -> tuple[str, ...]:
    """Where the numbers of the workload come from, and what is not known of them: one sentence each."""
    return tuple(
        sentence for sentence in (*_rule_words(found, rule), *_count_words(found, chars_per_token)) if sentence
    )


def _rule_words(found: Tally, rule: WorkloadRule) -> Iterable[str]:
    name = "median" if rule is WorkloadRule.MEDIAN else "P95"
    yield (
        f"Rule: {rule.value}. Cached, new and generated tokens are each the {name} of their own length over the log, "
        "so together they need not be the length of any one request."
    )
    if found.shared is None:
        yield "No request says what of its prompt was shared: cached is 0, and the whole prompt counts as new."
    elif found.shared.n_requests < found.n_requests:
        yield f"What is shared is known of {found.shared.n_requests} of {found.n_requests} requests: cached is theirs."
    if found.output is None:
        yield f"No request says how long its output was: generated is {_N_GEN_UNKNOWN}, as in the workload chat."
    elif found.output.n_requests < found.n_requests:
        yield f"The output is known of {found.output.n_requests} of {found.n_requests} requests: generated is theirs."
    if found.output is None or found.output.n_requests < found.n_requests:
        yield "Where the output is not known, a request counts as long as its prompt."
    yield "How many requests ran at once is not read from a log: sequences are as --n-parallel says."


def _count_words(found: Tally, chars_per_token: float) -> Iterable[str]:
    seen = found.seen_chars_per_token
    if found.n_estimated or found.n_outputs_estimated:
        yield (
            f"Estimated at {chars_per_token:g} characters a token: {found.n_estimated} of {found.n_requests} prompts, "
            f"{format_count(found.n_outputs_estimated, 'output')}. A tokenizer may count otherwise, "
            "and a chat template adds its own."
        )
        if seen is not None and max(seen / chars_per_token, chars_per_token / seen) > _WORTH_SAYING:
            yield f"Requests that give both have {seen:.1f} characters a token: try --chars-per-token {seen:.1f}."
    if found.n_partial:
        yield (
            f"Of {format_count(found.n_partial, 'request')} only the tokens that were not cached are known: "
            "such a prompt was at least that long."
        )
    if found.n_media:
        holders = format_count(found.n_media, "request")
        yield f"More than text is in {holders}: images and the like count only where the log gives counts."


def _by_rule(lengths: Lengths | None, rule: WorkloadRule, unknown: int) -> int:
    if lengths is None:
        return unknown
    return lengths.p50 if rule is WorkloadRule.MEDIAN else lengths.p95
