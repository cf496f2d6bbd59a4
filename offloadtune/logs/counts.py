"""What a line's objects say in numbers: `usage` as the public interfaces have it, `timings` as llama-server has it.

llama-server's `prompt_n` counts the tokens that were read, `cache_n` those found in its cache; `tokens_evaluated` is
the whole prompt. Its `tokens_cached` is what the cache holds afterwards, the output included: it is no shared prefix,
and not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from offloadtune.logs.lines import LineError

_TOO_LARGE = 1 << 31  # the engine counts tokens in 32 bits
_DETAILS = ("prompt_tokens_details", "input_tokens_details")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Tokens; None is what is not said. `n_read` of the prompt were not cached."""

    n_prompt: int | None
    n_read: int | None
    n_shared: int | None
    n_output: int | None
    has_timings: bool


def counts_of(objects: Sequence[dict[str, Any]]) -> Counts:
    """What `objects`, the line's own first, say. Raises LineError for numbers that are none, or contradict."""
    usages = list(_named(objects, "usage"))
    timings = [*_named(objects, "timings"), *(one for one in objects if "prompt_n" in one or "predicted_n" in one)]
    n_cached, n_read = _first(timings, "cache_n"), _first(timings, "prompt_n")
    n_evaluated = _first(objects, "tokens_evaluated")
    details = [one for name in _DETAILS for one in _named(usages, name)]
    n_prompt = _either(
        _first(usages, "prompt_tokens"),
        _whole_input(usages),
        None if n_cached is None or n_read is None else n_cached + n_read,
        n_evaluated,
    )
    n_shared = _either(n_cached, _first(details, "cached_tokens"), _first(usages, "cache_read_input_tokens"))
    if n_shared is None and n_prompt is not None and n_read is not None and n_read <= n_prompt:
        n_shared = n_prompt - n_read
    if n_shared is not None and n_prompt is not None and n_shared > n_prompt:
        raise LineError("it says that more tokens were cached than its prompt has")
    return Counts(
        n_prompt=n_prompt,
        n_read=n_read,
        n_shared=n_shared if n_prompt is not None else None,
        n_output=_either(
            _first(usages, "completion_tokens"),
            _first(usages, "output_tokens"),
            _first(timings, "predicted_n"),
            _first(objects, "tokens_predicted"),
        ),
        has_timings=bool(timings) or n_evaluated is not None,
    )


def _whole_input(usages: Sequence[dict[str, Any]]) -> int | None:
    """`input_tokens`, with the cached ones where they are counted apart."""
    n_input = _first(usages, "input_tokens")
    if n_input is None:
        return None
    apart = (_first(usages, key) for key in ("cache_read_input_tokens", "cache_creation_input_tokens"))
    return n_input + sum(n or 0 for n in apart)


def _named(objects: Iterable[dict[str, Any]], key: str) -> Iterable[dict[str, Any]]:
    for one in objects:
        if isinstance(one.get(key), dict):
            yield one[key]
        elif one.get(key) is not None:
            raise LineError(f"its {key} is no object")


def _first(objects: Iterable[dict[str, Any]], key: str) -> int | None:
    for one in objects:
        value = one.get(key)
        if value is None:
            continue
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _TOO_LARGE:
            raise LineError(f"its {key} is no count of tokens")
        return value
    return None


def _either(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)
