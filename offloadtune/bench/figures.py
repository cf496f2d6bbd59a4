"""From the visits of a run to its figures, and what is to be said of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from offloadtune import stats
from offloadtune.benches import BenchRun, Measure, MeasureFigures, MeasureKind, Quantiles
from offloadtune.records import Visit
from offloadtune.units import format_count

PHASES = ("tokenise", "prefill", "first sample")
_N_FOR_OUTLIERS = 5
_N_FOR_NOISE = 12
_DISTURBED_MUCH_FRAC = 0.25
_N_FOR_P95 = 20


def figures_of(run: BenchRun) -> tuple[MeasureFigures, ...]:
    """Figures of every measure with a visit that counts, in the order of the script."""
    return tuple(_figures(run, measure) for measure in run.measures if run.visits_of(measure.name))


def notes_of(run: BenchRun) -> Iterator[str]:
    """Full sentences on how far the figures may be trusted: noise, drift, disturbances, the anchor."""
    most = max(run.measures, key=lambda measure: len(run.visits_of(measure.name)), default=None)
    visits = run.visits_of(most.name) if most else ()
    if most and len(visits) >= _N_FOR_NOISE:
        times = [main_time_s(most, one.visit) for one in visits]
        yield f"A/A noise of this run: {stats.aa_noise(times):.1%} between halves of the visits of {most.name!r}."
        drift = stats.estimate_drift([one.at_s for one in visits], times)
        if drift.is_significant:
            way = "slower" if drift.session_frac > 0 else "faster"
            yield f"{most.name!r} became {abs(drift.session_frac):.1%} {way} over the run (p = {drift.p_value:.3f})."
    lacking = [one for one in figures_of(run) if one.ttft_s.p95 is None and one.measure.kind is not MeasureKind.DECODE]
    if lacking:
        yield f"A P95 takes {_N_FOR_P95} visits, and {lacking[0].measure.name!r} had {lacking[0].n_visits}."
    if run.ended_by:
        yield run.ended_by
    yield from _disturbance_notes(run)
    if not any(one.anchor for one in run.visits):
        yield "No anchor could be read: nothing tells whether the machine itself was slower than at other times."


def main_time_s(measure: Measure, visit: Visit) -> float:
    """The time a measure is about: a token's for writing, the first token's else."""
    return visit.token_s if measure.kind is MeasureKind.DECODE else visit.ttft_s


def _figures(run: BenchRun, measure: Measure) -> MeasureFigures:
    visits = run.visits_of(measure.name)
    times = [one.visit for one in visits]
    steps = [(step + sample) / 1e9 for one in times for step, sample in zip(one.step_ns, one.sample_ns, strict=True)]
    main = [main_time_s(measure, one) for one in times]
    is_enough = len(main) >= _N_FOR_OUTLIERS
    return MeasureFigures(
        measure=measure,
        n_visits=len(visits),
        n_disturbed=sum(bool(one.visit.disturbed_by) for one in run.visits if one.measure == measure.name),
        n_outliers=sum(stats.outlier_flags(main)) if is_enough else 0,
        ttft_s=quantiles([one.ttft_s for one in times]),
        prefill_tok_per_s=statistics.median(one.prefill_tok_per_s for one in times),
        phase_fracs=tuple(zip(PHASES, _phase_fracs(times), strict=True)),
        first_decode_s=statistics.median(one.first_decode_ns for one in times) / 1e9,
        step_s=quantiles(steps),
        decode_tok_per_s=1 / statistics.median(one.token_s for one in times),
        turn_s=_turn_s(run, times) if measure.kind is MeasureKind.TURN else None,
    )


def _turn_s(run: BenchRun, visits: Sequence[Visit]) -> float | None:
    return None if run.workload is None else statistics.median(one.turn_s(run.workload.n_gen) for one in visits)


def quantiles(samples: Sequence[float]) -> Quantiles:
    """P50 and P95 with intervals where the samples reach for them."""
    if len(samples) == 1:
        few = "1 sample has no P95"
        return Quantiles(
            p50=samples[0], p50_low=None, p50_high=None, p95=None, p95_low=None, p95_high=None, n_samples=1, reason=few
        )
    middle, high = stats.estimate_quantile(samples, 0.5), stats.estimate_quantile(samples, 0.95)
    return Quantiles(
        p50=statistics.median(samples),
        p50_low=middle.low,
        p50_high=middle.high,
        p95=high.value,
        p95_low=high.low,
        p95_high=high.high,
        n_samples=len(samples),
        reason=high.reason or "",
    )


def _phase_fracs(visits: Sequence[Visit]) -> tuple[float, ...]:
    """Median shares of tokenising, prefill and the first sampling in the time to the first token."""
    parts = [(one.tokenize_ns, one.prefill_ns, one.first_sample_ns) for one in visits]
    return tuple(
        statistics.median(phase / sum(part) for part, phase in zip(parts, of_phase, strict=True))
        for of_phase in zip(*parts, strict=True)
    )


def _disturbance_notes(run: BenchRun) -> Iterator[str]:
    disturbed = [one for one in run.visits if one.visit.disturbed_by]
    if not disturbed:
        return
    n, first = len(disturbed), disturbed[0].visit.disturbed_by[0]
    were = "was disturbed and does not count" if n == 1 else "were disturbed and do not count"
    yield f"{n} of {format_count(len(run.visits), 'visit')} {were}: {first}"
    if len(disturbed) > _DISTURBED_MUCH_FRAC * len(run.visits):
        yield "The machine was too busy to be measured well: end what else runs, and bench again."
