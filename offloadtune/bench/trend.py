"""What a trend of runs says: its figures, and whether the newest run is slower than those before it.

A run's figure is the median (or P95) over its visits. Its logarithm is compared with the median of the earlier runs by
the prediction interval of Student's t: runs scatter more from one to the next than visits within one, so that earlier
runs, and not the visits, tell what an unchanged run may do. `baseline` says which these are.

    spread  s      standard deviation between the earlier runs, and no less than their visits' scatter explains
    limit          t(1 - a, f) s sqrt(1 + pi / 2n): the newest run's own noise, and that of the median of n
    detectable     limit + t(0.8, f) s sqrt(1 + pi / 2n)
    freedom  f     n - 1, but 4 at most: runs have heavier tails than the normal law. Among 14 real runs, unchanged,
                   that scattered by 1.3 % there was one 10 % off, which n - 1 would have called a regression

`a` shares the error of the whole check, 0.2 %, among the figures judged (Bonferroni), and halves it once more where
the judged of raw and normalised is chosen by its spread, because the smaller of two spreads is too small by chance.
Where a device besides the CPU takes part only raw is judged, and nothing excused: the anchor is work of the CPU.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from offloadtune.bench.baseline import N_EARLIER_MOST, N_EARLIER_NEEDED, baseline_of, is_cut_short, n_whole
from offloadtune.bench.changes import computer
from offloadtune.bench.student import upper_quantile
from offloadtune.benches import AnchorReading, BenchRun, BenchVisit, Measure, MeasureKind
from offloadtune.records import Verdict, Visit
from offloadtune.stats import estimate_quantile
from offloadtune.trends import FigureCheck, RunFigure, Spark, TrendCheck
from offloadtune.units import format_count, format_ratio

FALSE_ALARM_FRAC = 0.002
POWER_FRAC = 0.8
N_FREEDOM_MOST = 4
LEAST_SPREAD_LOG = 0.002
"""However alike the earlier runs: below it clocks and memory layout move figures unasked."""
LEAST_ANCHOR_RATIO = 1.1
_ERROR_OF = {0.5: 1.2533, 0.95: 2.113}
"""Standard error of a quantile of normal samples, in standard deviations over the root of their number."""
_SPARK_BARS = "▁▂▃▄▅▆▇█"
_N_SPARK_RUNS = 29
_SPARK_LEAST_REACH = 0.05
_LARGEST_LOG = 700.0


# --- the figures of a run ------------------------------------------------------------------------------------------


def usual_anchor(runs: Iterable[BenchRun]) -> AnchorReading | None:
    """The median over all runs of each run's median anchor, None where no visit has one."""
    anchors = [anchor for anchor in map(run_anchor, runs) if anchor]
    return _median_anchor(anchors) if anchors else None


def run_anchor(run: BenchRun) -> AnchorReading | None:
    """The median anchor of a run's visits that count."""
    anchors = [one.anchor for one in run.visits if one.visit.counts and one.anchor]
    return _median_anchor(anchors) if anchors else None


def run_figures(run: BenchRun, usual: AnchorReading | None) -> tuple[RunFigure, ...]:
    """All figures of the measures that were visited; P95 of prompts read anew only."""
    found = []
    for measure in run.measures:
        visits = run.visits_of(measure.name)
        if visits:
            found.append(_figure(run, measure, visits, usual, 0.5))
        if len(visits) > 1 and measure.kind is MeasureKind.TTFT:
            found.append(_figure(run, measure, visits, usual, 0.95))
    return tuple(found)


def figure_name(run: BenchRun, measure: Measure, quantile_frac: float = 0.5) -> str:
    """As the measure; a turn's says how many tokens it writes, too: turns of other lengths do not compare."""
    if measure.kind is MeasureKind.TURN:
        return f"{measure.name}+{_n_gen(run, measure)}"
    return measure.name if quantile_frac == 0.5 else f"{measure.name} P{100 * quantile_frac:g}"


def _figure(
    run: BenchRun, measure: Measure, visits: Sequence[BenchVisit], usual: AnchorReading | None, quantile_frac: float
) -> RunFigure:
    parts = [_parts(measure, one.visit, _n_gen(run, measure)) for one in visits]
    raw = [read_s + write_s for read_s, write_s in parts]
    normalised = [
        read_s * usual.multiply_ns / one.anchor.multiply_ns + write_s * usual.stream_ns / one.anchor.stream_ns
        for (read_s, write_s), one in zip(parts, visits, strict=True)
        if usual and one.anchor
    ]
    is_anchored = len(normalised) == len(raw)
    return RunFigure(
        name=figure_name(run, measure, quantile_frac),
        kind=measure.kind,
        quantile_frac=quantile_frac,
        n_visits=len(visits),
        raw_s=_quantile(raw, quantile_frac),
        raw_scatter_log=_scatter_log(raw),
        normalised_s=_quantile(normalised, quantile_frac) if is_anchored else None,
        normalised_scatter_log=_scatter_log(normalised) if is_anchored else 0.0,
    )


def _n_gen(run: BenchRun, measure: Measure) -> int:
    """Tokens of a turn: those of the workload, else those that a visit writes."""
    return run.workload.n_gen if run.workload else measure.n_steps + 2


def _parts(measure: Measure, visit: Visit, n_gen: int) -> tuple[float, float]:
    """Seconds of reading and of writing in what the measure is after."""
    if measure.kind is MeasureKind.DECODE:
        return 0.0, visit.token_s
    if measure.kind is MeasureKind.TURN:
        return visit.ttft_s, visit.turn_s(n_gen) - visit.ttft_s
    return visit.ttft_s, 0.0


def _quantile(seconds: Sequence[float], quantile_frac: float) -> float | None:
    return statistics.median(seconds) if quantile_frac == 0.5 else estimate_quantile(seconds, quantile_frac).value


def _scatter_log(seconds: Sequence[float]) -> float:
    """Standard deviation of the logarithm as the median deviation shows it, which stalls do not widen."""
    middle = statistics.median(seconds)
    return 1.4826 * statistics.median(abs(math.log(value / middle)) for value in seconds)


def _median_anchor(anchors: Sequence[AnchorReading]) -> AnchorReading:
    return AnchorReading(
        multiply_ns=statistics.median_low(one.multiply_ns for one in anchors),
        stream_ns=statistics.median_low(one.stream_ns for one in anchors),
    )


# --- trends --------------------------------------------------------------------------------------------------------


def series(runs: Iterable[BenchRun]) -> list[tuple[BenchRun, ...]]:
    """The runs by computer and file, each in the order given.

    A file is known by its path and by its content: one that was moved or exchanged goes on with its trend. So does a
    computer whose card is gone: that is what a trend is to tell.
    """
    group_of: dict[tuple[object, object], list[tuple[int, BenchRun]]] = {}
    for i, run in enumerate(runs):
        where = computer(run.machine.host)
        keys = ((where, run.gguf_path), (where, run.gguf_id))
        by_path, by_content = (group_of.get(key, []) for key in keys)
        group = by_path or by_content
        if by_path and by_content and by_path is not by_content:
            group += by_content
            group_of.update({key: group for key, other in group_of.items() if other is by_content})
        group.append((i, run))
        group_of.update(dict.fromkeys(keys, group))
    groups = {id(group): sorted(group, key=lambda one: one[0]) for group in group_of.values()}
    return [tuple(run for _, run in group) for group in groups.values()]


def sparks(figures: Sequence[Sequence[RunFigure]]) -> tuple[Spark, ...]:
    """A line for each figure of the newest run, P95 left out; `figures` are those of each run, the oldest first.

    It rises with what is printed: seconds, but tokens per second where writing is meant.
    """
    drawn = []
    for now in figures[-1] if figures else ():
        values = [next((one.raw_s for one in some if one.name == now.name), None) for some in figures]
        known = [value for value in values if value is not None]
        if now.quantile_frac == 0.5 and known:
            heights = [value and 1 / value if now.kind is MeasureKind.DECODE else value for value in values]
            line = sparkline(heights)
            drawn.append(Spark(name=now.name, kind=now.kind, text=line, first_s=known[0], last_s=known[-1]))
    return tuple(drawn)


def sparkline(values: Sequence[float | None]) -> str:
    """A character for each of the newest values, higher for a larger one, a blank for None.

    From bottom to top it is 10 % at least, so that noise does not look like the Alps.
    """
    shown = list(values)[-_N_SPARK_RUNS:]
    known = [value for value in shown if value is not None]
    if not known:
        return " " * len(shown)
    middle = statistics.median(known)
    low = min(*known, middle * (1 - _SPARK_LEAST_REACH), middle * (1 + _SPARK_LEAST_REACH))
    high = max(*known, middle * (1 - _SPARK_LEAST_REACH), middle * (1 + _SPARK_LEAST_REACH))
    n_bars = len(_SPARK_BARS)
    heights = [None if value is None else int(n_bars * (value - low) / (high - low) + 1e-9) for value in shown]
    return "".join(" " if height is None else _SPARK_BARS[min(height, n_bars - 1)] for height in heights)


# --- the newest run against those before it ------------------------------------------------------------------------


def check(runs: Sequence[BenchRun]) -> TrendCheck:
    """Whether the newest of `runs`, the oldest first and all of one trend, is slower than those before it.

    Runs of another script do not count. What changed does not excuse: it is named.
    """
    newest = runs[-1]
    earlier = [run for run in runs[:-1] if run.script == newest.script]
    baseline = baseline_of(newest, earlier)
    usual = usual_anchor([*earlier, newest])
    before = _figures_before(baseline.runs, usual)
    pairs = [(figure, before.get(figure.name, [])) for figure in run_figures(newest, usual) if figure.raw_s is not None]
    n_judged = sum(len(some) >= N_EARLIER_NEEDED for _, some in pairs)
    unlike, slower_machine = _unlike_standins(newest, baseline.runs), tuple(_anchor_warnings(newest, earlier))
    is_anchored = not any(map(_offloads, (*baseline.runs, newest)))
    return TrendCheck(
        gguf_path=newest.gguf_path,
        machine_id=newest.machine.machine_id,
        started_at=newest.started_at,
        n_earlier=len(baseline.runs),
        n_missing=max(0, N_EARLIER_NEEDED - n_whole(baseline.runs)),
        figures=tuple(
            _figure_check(figure, some, n_judged, is_anchored=is_anchored, is_slower_machine=bool(slower_machine))
            for figure, some in pairs
        ),
        changes=baseline.changes,
        changed_at=baseline.changed_at,
        warnings=tuple(filter(None, (baseline.warning, *unlike, *slower_machine, *_unmeasured(newest, earlier)))),
        n_layer=newest.n_layer,
        stands_for=newest.stands_for,
    )


def _figures_before(runs: Sequence[BenchRun], usual: AnchorReading | None) -> dict[str, list[RunFigure]]:
    """The figures of the runs by name; of one that was cut short those with half the visits that others have."""
    found: dict[str, list[tuple[RunFigure, bool]]] = {}
    for run in runs:
        for figure in run_figures(run, usual):
            if figure.raw_s is not None:
                found.setdefault(figure.name, []).append((figure, is_cut_short(run)))
    kept = {}
    for name, some in found.items():
        whole = [figure.n_visits for figure, is_cut in some if not is_cut]
        n_least = statistics.median(whole) / 2 if whole else math.inf
        kept[name] = [figure for figure, is_cut in some if not is_cut or figure.n_visits >= n_least]
    return kept


def _offloads(run: BenchRun) -> bool:
    """Whether a device besides the CPU takes part, of whose speed the anchor knows nothing."""
    return run.settings.offloads and bool(run.machine.offload_devices)


@dataclass(frozen=True, slots=True)
class _Judged:
    """Logarithms of the newest run over the median of the `n` earlier ones, and of what they scatter by."""

    before_s: float
    change_log: float
    spread_log: float
    n: int


def _figure_check(
    now: RunFigure, before: Sequence[RunFigure], n_judged: int, *, is_anchored: bool, is_slower_machine: bool
) -> FigureCheck:
    raw = _judged(now, now.raw_s, [(one.raw_s, one.raw_scatter_log) for one in before])
    anchored = [(one.normalised_s, one.normalised_scatter_log) for one in before if is_anchored]
    normalised = _judged(now, now.normalised_s, anchored)
    is_normalised = bool(raw and normalised and normalised.spread_log < raw.spread_log)
    chosen = normalised if is_normalised else raw
    limit_log = detectable_log = 0.0
    verdict, is_machine = None, False
    if chosen:
        chance = FALSE_ALARM_FRAC / n_judged / (2 if normalised else 1)
        limit_log, detectable_log = _limits_log(chosen, chance)
        verdict = _verdict(chosen.change_log, limit_log)
        if verdict is Verdict.SLOWER and normalised and is_slower_machine:
            normalised_limit_log, _ = _limits_log(normalised, chance)
            is_machine = abs(normalised.change_log) <= normalised_limit_log
    return FigureCheck(
        name=now.name,
        kind=now.kind,
        n_earlier=len(before),
        n_missing=max(0, N_EARLIER_NEEDED - len(before)),
        now_s=now.raw_s or 0.0,
        before_s=raw.before_s if raw else None,
        raw_change_frac=_frac(raw.change_log) if raw else None,
        normalised_change_frac=_frac(normalised.change_log) if normalised else None,
        is_normalised=is_normalised,
        noise_frac=_frac(chosen.spread_log) if chosen else None,
        limit_frac=_frac(limit_log) if chosen else None,
        detectable_frac=_frac(detectable_log) if chosen else None,
        verdict=Verdict.SAME if is_machine else verdict,
        is_machine=is_machine,
    )


def _judged(now: RunFigure, value: float | None, before: Iterable[tuple[float | None, float]]) -> _Judged | None:
    """`before` are values and scatters. None where the newest run lacks the figure, or too few others have it."""
    known = [(one, scatter) for one, scatter in before if one is not None]
    if value is None or len(known) < N_EARLIER_NEEDED:
        return None
    middle = statistics.median(one for one, _ in known)
    scatter_log = statistics.median(scatter for _, scatter in known)
    within = _ERROR_OF[now.quantile_frac] * scatter_log / math.sqrt(now.n_visits)
    between = statistics.stdev(math.log(one) for one, _ in known)
    return _Judged(middle, math.log(value / middle), max(between, within, LEAST_SPREAD_LOG), len(known))


def _limits_log(judged: _Judged, chance: float) -> tuple[float, float]:
    """What an unchanged run stays below but for `chance`, and the smallest change found with 80 %."""
    reach = judged.spread_log * math.sqrt(1 + math.pi / 2 / judged.n)
    n_freedom = min(judged.n - 1, N_FREEDOM_MOST)
    limit = upper_quantile(chance, n_freedom) * reach
    return limit, limit + upper_quantile(1 - POWER_FRAC, n_freedom) * reach


def _verdict(change_log: float, limit_log: float) -> Verdict:
    if abs(change_log) <= limit_log:
        return Verdict.SAME
    return Verdict.SLOWER if change_log > 0 else Verdict.FASTER


def _frac(log: float) -> float:
    return math.expm1(min(log, _LARGEST_LOG))


def _anchor_warnings(newest: BenchRun, earlier: Sequence[BenchRun]) -> Iterator[str]:
    """Whether the machine as a whole ran slower, by the work that no engine and no file has a part in."""
    now = run_anchor(newest)
    known = [anchor for anchor in map(run_anchor, earlier) if anchor][-N_EARLIER_MOST:]
    if now is None or len(known) < N_EARLIER_NEEDED:
        return
    for work, value, before in (
        ("arithmetic", now.multiply_ns, [one.multiply_ns for one in known]),
        ("main memory", now.stream_ns, [one.stream_ns for one in known]),
    ):
        middle = statistics.median(before)
        spread_log = max(statistics.stdev(map(math.log, before)), LEAST_SPREAD_LOG)
        judged = _Judged(middle, math.log(value / middle), spread_log, len(before))
        limit_log, _ = _limits_log(judged, FALSE_ALARM_FRAC / 2)
        if judged.change_log > max(math.log(LEAST_ANCHOR_RATIO), limit_log):
            ratio = format_ratio(value / middle)
            yield f"The machine itself was slower: a fixed piece of work for its {work} took {ratio} the usual time."


def _unlike_standins(newest: BenchRun, before: Sequence[BenchRun]) -> Iterator[str]:
    """Whether a stand-in, whose file may have the name of the real one, is compared with something else."""
    others = (run for run in before if run.gguf_id != newest.gguf_id)  # old runs of the same file carry no mark
    n_unlike = sum(run.stands_for != newest.stands_for for run in others)
    if n_unlike:
        other = "the real file or another stand-in" if newest.stands_for else "a stand-in with random weights"
        yield f"{n_unlike} of {format_count(len(before), 'earlier run')} measured something else: {other}."


def _unmeasured(newest: BenchRun, earlier: Sequence[BenchRun]) -> Iterator[str]:
    """What the last whole run could measure and this one could not."""
    if is_cut_short(newest):
        yield newest.ended_by or "The run was interrupted, so that its figures rest on fewer visits or are missing."
    last = next((run for run in reversed(earlier) if not is_cut_short(run)), None)
    had = {one.measure for one in last.visits if one.visit.counts} if last else set()
    has = {one.measure for one in newest.visits if one.visit.counts}
    reasons = {measure.name: _why_missing(newest, measure) for measure in newest.measures} | dict(newest.skipped)
    for name, reason in reasons.items():
        if name in had - has:
            yield f"{name} was not measured this time: {reason}"


def _why_missing(run: BenchRun, measure: Measure) -> str:
    if any(one.measure == measure.name and one.visit.disturbed_by for one in run.visits):
        return "every visit was disturbed."
    return "the run ended before it." if is_cut_short(run) else "not one of its visits counts."
