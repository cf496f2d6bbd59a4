"""Live progress on stderr: a moving line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.status import Status
from rich.text import Text

from offloadtune.benches import BenchEvent, MeasureVisited
from offloadtune.records import Outcome, Recommendation
from offloadtune.report import headline, passage_words, visit_words
from offloadtune.speeds import CalibrationEvent, PassageMeasured
from offloadtune.sweeps import Event, FileGrows, RoundFinished, Said, TrialFinished, TrialStarted
from offloadtune.units import format_bytes, format_seconds, format_tok_per_s

_SAME_FRAC = 0.15
_MINUTES_FROM_S = 99.5


@contextlib.contextmanager
def listener() -> Iterator[Callable[[Event | BenchEvent | CalibrationEvent], None]]:
    """A listener that shows events of a sweep, a bench or a calibration while the block runs."""
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)
    if not console.is_terminal:
        seen: set[str] = set()
        yield lambda event: _print(console, _plain_line(event, seen))
        return
    status = console.status("starting the engine")
    status.start()
    try:
        yield lambda event: _show(console, status, event)
    finally:
        with contextlib.suppress(OSError):  # the terminal may be gone
            status.stop()


def _show(console: Console, status: Status, event: Event | BenchEvent | CalibrationEvent) -> None:
    _print(console, _line(event))
    if isinstance(event, TrialStarted):
        what = f"trial {event.n_done + 1}: {event.trial.why}"
        status.update(_Countdown(what, least_s=event.least_s, most_s=event.remaining_s))
    elif isinstance(event, MeasureVisited):
        left = format_seconds(max(0.0, event.remaining_s))
        status.update(f"{visit_words(event.visit)}  ({event.n_done} of {event.n_wanted} visits, at most {left} to go)")
    elif isinstance(event, FileGrows):
        done, total = format_bytes(event.n_done_bytes), format_bytes(event.n_all_bytes)
        status.update(f"writing {event.path.name}: {done} of {total}")
    elif isinstance(event, PassageMeasured):
        left = format_seconds(event.remaining_s)
        status.update(f"run {event.n_done + 1} of at most {event.n_most}  (at most {left} to go)")
    elif isinstance(event, TrialFinished):
        status.update("comparing the best side by side")
    elif isinstance(event, RoundFinished):
        status.update(_Countdown("comparing side by side", least_s=event.least_s, most_s=event.remaining_s))


class _Countdown:
    """A line whose time left becomes less while it stands there."""

    def __init__(self, what: str, *, least_s: float | None, most_s: float) -> None:
        self._what, self._least_s, self._most_s = what, least_s, most_s
        self._start_s = time.monotonic()

    def __rich__(self) -> Text:
        gone_s = time.monotonic() - self._start_s
        least_s = None if self._least_s is None else self._least_s - gone_s
        return Text(f"{self._what}  ({left_words(least_s, self._most_s - gone_s)})")


def left_words(least_s: float | None, most_s: float) -> str:
    """How long it will take yet: one figure where the two ends hardly differ, and a bound where only that is known."""
    most_s = max(0.0, most_s)
    if math.isinf(most_s):
        return f"at least {_round_words(least_s)} left" if least_s and least_s > 0 else "no limit"
    if least_s is not None:
        least_s = min(max(0.0, least_s), most_s)
        if most_s - least_s <= _SAME_FRAC * most_s:
            return f"about {_round_words(most_s)} left"
        if least_s > 0:
            return f"{_round_words(least_s)} to {_round_words(most_s)} left"
    return f"at most {_round_words(most_s)} left"


def _round_words(seconds: float) -> str:
    """Whole seconds: nobody knows the tenths."""
    return f"{seconds:.0f} s" if seconds < _MINUTES_FROM_S else format_seconds(seconds)


def _print(console: Console, line: str) -> None:
    if line:
        console.print(line)


def _started_words(event: TrialStarted) -> str:
    gone, left = format_seconds(event.elapsed_s), left_words(event.least_s, event.remaining_s)
    return f"trial {event.n_done + 1}: {event.trial.why}  ({gone} gone, {left})"


def _plain_line(event: Event | BenchEvent | CalibrationEvent, seen: set[str]) -> str:
    """Where no line can move: of a bench the first visit of each measure, and those disturbed."""
    if isinstance(event, TrialStarted):
        return _started_words(event)
    if isinstance(event, MeasureVisited) and event.visit.measure not in seen:
        seen.add(event.visit.measure)
        return visit_words(event.visit)
    return _line(event)


def _line(event: Event | BenchEvent | CalibrationEvent) -> str:
    if isinstance(event, Said):
        return event.text
    if isinstance(event, MeasureVisited):
        return visit_words(event.visit) if event.visit.visit.disturbed_by else ""
    if isinstance(event, TrialFinished):
        return f"{event.result.trial.why}: {_result_words(event)}{_best_words(event.best)}"
    if isinstance(event, PassageMeasured):
        return passage_words(event)
    if isinstance(event, RoundFinished):
        left = left_words(event.least_s, event.remaining_s)
        return f"round {event.n_rounds}, {event.n_finalists} side by side, {left}{_best_words(event.best)}"
    return ""


def _result_words(event: TrialFinished) -> str:
    result = event.result
    if result.outcome is not Outcome.OK:
        return f"{result.outcome.value.replace('_', ' ')} - {result.reason}"
    visit, foretold = result.visits[-1], result.expected
    ttft = f" ({format_seconds(foretold.ttft_s.p50)} expected)" if foretold else ""
    decode = ""
    if foretold:
        bound = foretold.bound_tok_per_s
        most = f", {format_tok_per_s(bound)} at most" if bound else ""
        decode = f" ({format_tok_per_s(foretold.decode_tok_per_s.p50)} expected{most})"
    return (
        f"first token {format_seconds(visit.ttft_s)}{ttft}, reads {format_tok_per_s(visit.prefill_tok_per_s)}, "
        f"writes {format_tok_per_s(1 / visit.token_s)}{decode}"
    )


def _best_words(best: Recommendation | None) -> str:
    return f"  (best so far: {headline(best)})" if best else ""
