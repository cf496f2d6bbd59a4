"""What lies around an answer, for the terminal: the trade-offs, and why it won."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from offloadtune.records import Basis, Estimate, Goal, Verdict
from offloadtune.report.words import printable
from offloadtune.sweeps import Explanation, Front, Neighbour, RunnerUp, TimeShare
from offloadtune.units import MIB, format_bytes, format_count, format_ratio, format_seconds, format_tok_per_s

_N_ROWS, _N_LINES, _N_CHANGES = 6, 8, 3
_N_TELLING = 3
"""Fewer rounds give no verdict."""

_GOAL_WORDS = {Goal.TTFT: "the time to the first token", Goal.DECODE: "the time of a token"}
_PHASES = {Goal.TTFT: ("prefill",), Goal.DECODE: ("decode",)}


def front_lines(front: Front) -> Iterator[RenderableType]:
    """What else can be had, for what: the recommended settings and the nearest that beat them in something."""
    if front.n_ran < 2:
        return
    yield Text()
    if len(front.points) == 1:
        yield Text(
            f"Of {front.n_ran} settings that ran none is better in anything by more than {front.tolerance_frac:.0%}."
        )
        return
    has_devices = any(point.device_bytes != 0 for point in front.points)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("what else can be had", "first token", "writing", "n_ctx", *["on devices"] * has_devices, "measured"):
        table.add_column(title, justify="left" if title.startswith("what") else "right")
    for point in front.points[:_N_ROWS]:
        n_bytes = "unknown" if point.device_bytes is None else format_bytes(point.device_bytes)
        table.add_row(
            printable(_few(point.changes)) or "recommended",
            format_seconds(point.ttft_s),
            format_tok_per_s(point.decode_tok_per_s),
            str(point.n_ctx),
            *[n_bytes] * has_devices,
            format_count(point.n_visits, "visit"),
            style=None if point.changes else "bold",
        )
    yield table
    n_more = len(front.points) - _N_ROWS
    more = f"{n_more} more with --json; " if n_more > 0 else ""
    yield Text(f"{more}what is better by no more than {front.tolerance_frac:.0%} is left out", style="dim")


def explanation_lines(explanation: Explanation, goal: Goal) -> Iterator[RenderableType]:
    """Who came next, what takes the time, and what one step more or less of something would cost or save."""
    lines = [_runner_up_words(explanation.runner_up)] if explanation.runner_up else []
    phases = _PHASES.get(goal, ("prefill", "decode"))
    largest = (next((one for one in explanation.limits if one.phase == phase), None) for phase in phases)
    lines += [_limit_words(one) for one in largest if one]
    if explanation.unknown:
        lines.append(f"Not reckoned: {explanation.unknown}.")
    known = [one for one in explanation.neighbours if one.cost_ratio or one.no_room]
    n_shown = _N_LINES - len(lines)
    if len(explanation.neighbours) > n_shown:
        n_shown -= 1
    lines += [_neighbour_words(one) for one in known[:n_shown]]
    if n_more := len(explanation.neighbours) - len(known[:n_shown]):
        lines.append(f"{format_count(n_more, 'more step')} with --json.")
    if lines:
        yield Text()
        yield Text(f"Around it, by {_GOAL_WORDS.get(goal, 'the time of a turn')}:", style="bold")
    yield from (Text(f"- {printable(line)}") for line in lines)


def _runner_up_words(second: RunnerUp) -> str:
    took = f"Next came {_few(second.changes)}: {_ratio_words(second.ratio)}"
    if second.verdict is Verdict.FASTER:
        return f"{took}."
    if second.verdict is Verdict.SLOWER:
        return f"{took}; it is faster, but not what was asked for."
    told = "too few to tell" if second.ratio.n_samples < _N_TELLING else "no difference beyond the noise"
    return f"{took}, {told}."


def _limit_words(limit: TimeShare) -> str:
    return f"{_sentence(limit.words)} ({limit.basis} law: {limit.low_frac:.0%} to {limit.high_frac:.0%})."


def _neighbour_words(neighbour: Neighbour) -> str:
    if neighbour.cost_ratio is None:
        return f"No room for {neighbour.words}: {neighbour.no_room}."
    n_bytes = neighbour.more_device_bytes
    memory = f"{format_bytes(abs(n_bytes))} {'more' if n_bytes > 0 else 'less'} on devices"
    words = f"{_sentence(neighbour.words)}: {_ratio_words(neighbour.cost_ratio)}"
    return f"{words}; {memory}." if abs(n_bytes) >= MIB else f"{words}."


def _sentence(words: str) -> str:
    return words if words.startswith("n_") else words[:1].upper() + words[1:]


def _ratio_words(ratio: Estimate) -> str:
    """How many times as long something takes, how sure that is, and what it rests on."""
    took = f"{format_ratio(ratio.p50)} as long"
    if ratio.basis is not Basis.MEASURED:
        return f"about {took} ({ratio.basis} law: {format_ratio(ratio.low)} to {format_ratio(ratio.high)})"
    if ratio.n_samples == 1:
        return f"{took} by one visit each"
    return f"{took} ({format_ratio(ratio.low)} to {format_ratio(ratio.high)}, {format_count(ratio.n_samples, 'round')})"


def _few(changes: Sequence[str]) -> str:
    more = len(changes) - _N_CHANGES
    return ", ".join(changes[:_N_CHANGES]) + (f" and {format_count(more, 'more change')}" if more > 0 else "")
