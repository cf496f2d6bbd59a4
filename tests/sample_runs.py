"""Made-up runs of a bench: the same script over and over on the sample machine, as fast or slow as a test wants."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from noise import series
from sample_records import ENGINE, FACTS, MACHINE, SETTINGS

from offloadtune.benches import SCRIPT, AnchorReading, BenchRun, BenchVisit, LoadTimes, Measure, MeasureKind
from offloadtune.records import WORKLOADS, Target, Visit

MEASURES = (
    Measure(kind=MeasureKind.TTFT, n_prefix_cached=0, n_prompt_new=128, n_steps=2),
    Measure(kind=MeasureKind.TTFT, n_prefix_cached=0, n_prompt_new=2048, n_steps=2),
    Measure(kind=MeasureKind.SECOND_TURN, n_prefix_cached=1920, n_prompt_new=128, n_steps=2),
    Measure(kind=MeasureKind.DECODE, n_prefix_cached=0, n_prompt_new=1, n_steps=4),
    Measure(kind=MeasureKind.DECODE, n_prefix_cached=2048, n_prompt_new=1, n_steps=4),
    Measure(kind=MeasureKind.TURN, n_prefix_cached=2048, n_prompt_new=256, n_steps=4),
)
ANCHOR = AnchorReading(multiply_ns=4_000_000, stream_ns=9_000_000)
ON_CPU = SETTINGS.replace(n_gpu_layers=0)
"""Without a card in it, so that the anchor counts."""
FIRST_DAY = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def bench_visit(
    measure: Measure, i_visit: int, *, slower: float = 1.0, anchor_slower: float | None = 1.0, **of_visit: Any
) -> BenchVisit:
    """A passage of `measure` that takes `slower` times as long as usual; None: no anchor was read before it."""
    n_read, step_ns = measure.n_prompt_new, 25_000_000 + 2_000 * measure.n_prefix_cached
    visit = Visit(
        is_warmup=False,
        i_load=0,
        n_prefix_cached=measure.n_prefix_cached,
        n_prompt_new=n_read,
        tokenize_ns=round(1_000 * n_read * slower),
        prefill_ns=round(700_000 * n_read * slower),
        first_sample_ns=round(150_000 * slower),
        first_decode_ns=round(1.1 * step_ns * slower),
        step_ns=(round(step_ns * slower),) * measure.n_steps,
        sample_ns=(round(150_000 * slower),) * measure.n_steps,
    )
    visit = dataclasses.replace(visit, **of_visit)
    anchor = anchor_slower and AnchorReading(
        multiply_ns=round(ANCHOR.multiply_ns * anchor_slower), stream_ns=round(ANCHOR.stream_ns * anchor_slower)
    )
    return BenchVisit(measure=measure.name, at_s=2.5 * i_visit, visit=visit, anchor=anchor or None)


def bench_run(
    i_run: int = 0,
    *,
    slower: float = 1.0,
    anchor_slower: float | None = 1.0,
    scatter: Sequence[float] = (1.0, 1.02, 0.98, 1.01, 0.99, 1.0),
    **changes: Any,
) -> BenchRun:
    """Run number `i_run`, one a day: each measure is visited once for each of `scatter`, `slower` times that long."""
    run = BenchRun(
        script=SCRIPT,
        started_at=(FIRST_DAY + timedelta(days=i_run)).isoformat(timespec="seconds"),
        offloadtune_version="0.1.0",
        gguf_path=FACTS.path,
        gguf_id=FACTS.gguf_id,
        machine=MACHINE,
        engine=ENGINE,
        settings=SETTINGS,
        target=Target.LLAMA_CPP_PYTHON,
        settings_from="the recommendation of 2026-01-02",
        workload=WORKLOADS["chat"],
        endpoints=(),
        measures=MEASURES,
        visits=tuple(
            bench_visit(measure, i, slower=slower * factor, anchor_slower=anchor_slower)
            for i, factor in enumerate(scatter)
            for measure in MEASURES
        ),
        loads=LoadTimes(
            cold_load_ns=900_000_000,
            cold_ready_ns=1_400_000_000,
            warm_load_ns=300_000_000,
            warm_ready_ns=500_000_000,
        ),
        skipped=(("ttft 16384", "A context of 2816 does not hold it."),),
        duration_s=61.5,
    )
    return dataclasses.replace(run, **changes)


def noisy_runs(
    random: np.random.Generator,
    n_runs: int,
    *,
    n_visits: int = 8,
    shift_log: float = 0.03,
    rho: float = 0.0,
    law: str = "normal",
    anchor_follows: bool = False,
    last_slower: float = 1.0,
) -> list[BenchRun]:
    """Runs on the CPU that shift as a whole and whose visits swing; the last takes `last_slower` times as long.

    `anchor_follows`: whatever slows a visit down slows its anchor down as well, but for 2 %.
    """
    found = []
    for i_run in range(n_runs):
        shift = float(np.exp(shift_log * random.normal()))
        visits = []
        for i_measure, swings in enumerate(series(random, len(MEASURES), n_visits, rho=rho, law=law)):
            for i, swing in enumerate(swings):
                slower = float(swing) * shift
                anchor = slower * float(np.exp(0.02 * random.normal())) if anchor_follows else 1.0
                slower *= last_slower if i_run == n_runs - 1 else 1.0
                visits.append(bench_visit(MEASURES[i_measure], i, slower=slower, anchor_slower=anchor))
        found.append(bench_run(i_run, settings=ON_CPU, visits=tuple(visits)))
    return found
