"""A sweep against a grid where op offload is real: software Vulkan (vulkan_engine.py), with short prompts. Opt-in.

The grid: no, half and all layers on the device, ubatches below and above the least batch for which a device is lent to
the host's weights, op offload on and off, and on with a least batch that no prompt here reaches. What is computed
meanwhile is the same in all, so that only the search for it is judged, not the device: llvmpipe is far slower than the
CPU. A sweep over all layers then chooses, and its answer is visited side by side with the best of the grid. The bar:
as quick as the best of the grid within what a copy of the answer differs (A/A).

The engine reads the least batch from its environment, once in a process, so each value has a worker of its own. A sweep
does not try it: where another value than the engine's own is the best, the bar shows what that costs.

    python benchmarks/search_on_vulkan.py               shows what is recorded in data/search_on_vulkan.json
    python benchmarks/search_on_vulkan.py --measure     measures, twenty minutes, where nothing else runs

Getting the engine takes npm: python benchmarks/vulkan_engine.py --set-up. Ends with 1 where the bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from op_offload_runs import N_THREADS
from search_cases import CHOSEN, COPY, N_ROUNDS, SAMPLES, TARGET, Regret, regret_of, settings_words
from search_measuring import (
    SideFailedError,
    about,
    facts_of,
    read_rows,
    record_row,
    runner_of,
    side_by_side,
    swept,
    timed,
    turns,
)
from vulkan_engine import PACKAGE, VulkanMissingError, ensure_vulkan_engine

from offloadtune import search
from offloadtune.errors import OffloadTuneError
from offloadtune.records import GgufFacts, Settings, TrialResult, Workload
from offloadtune.report.words import printable
from offloadtune.units import format_seconds

RESULT = Path(__file__).parent / "data" / "search_on_vulkan.json"
MIN_BATCH_VARIABLE = "GGML_OP_OFFLOAD_MIN_BATCH"
MIN_BATCHES = (None, 1024)
"""The engine's own, 32, and more than any prompt here."""

LAYERS = (0, 15, 31)
UBATCHES = (16, 64)
BUDGET_S = 600.0
N_RIVALS = 3
HOST: dict[str, Any] = {"use_extra_bufts": False, "n_threads": N_THREADS, "n_threads_batch": N_THREADS}
SAMPLE = dataclasses.replace(
    SAMPLES["smollm2"], workload=Workload(name="short", n_prefix_cached=0, n_prompt_new=40, n_gen=4)
)
_OPENING_S = 60.0
"""Shaders are compiled when they are first used."""

_TURN_S = 8.0
_N_QUICK_ROUNDS, _QUICK_BUDGET_S = 2, 240.0


@dataclass(frozen=True, kw_only=True)
class Point:
    """Settings in a worker with this least batch for op offload, None for the engine's own."""

    settings: Settings
    min_batch: int | None = None

    @property
    def words(self) -> str:
        return settings_words(self.settings) + (f" from {self.min_batch} tokens on" if self.min_batch else "")


def grid_of(facts: GgufFacts, host: Mapping[str, Any] = HOST) -> tuple[Point, ...]:
    """The CPU alone too; op offload is varied where weights lie on the host while there is a device."""
    base = search.settings_of_target(TARGET).replace(n_ctx=SAMPLE.n_ctx, n_batch=SAMPLE.n_ctx, **host)
    found = [Point(settings=base.replace(devices=(), n_ubatch=n_ubatch)) for n_ubatch in UBATCHES]
    for n_gpu_layers, n_ubatch in itertools.product(LAYERS, UBATCHES):
        settings = base.replace(n_gpu_layers=n_gpu_layers, n_ubatch=n_ubatch)
        if n_gpu_layers > facts.n_layer:
            found.append(Point(settings=settings))
            continue
        found += [Point(settings=settings, min_batch=least) for least in MIN_BATCHES]
        found.append(Point(settings=settings.replace(op_offload=False)))
    return tuple(found)


@contextlib.contextmanager
def min_batch_of(n_tokens: int | None) -> Iterator[None]:
    """Workers started in the block take this least batch."""
    before = os.environ.pop(MIN_BATCH_VARIABLE, None)
    try:
        if n_tokens is not None:
            os.environ[MIN_BATCH_VARIABLE] = str(n_tokens)
        yield
    finally:
        os.environ.pop(MIN_BATCH_VARIABLE, None)
        if before is not None:
            os.environ[MIN_BATCH_VARIABLE] = before


def measured_grid(
    facts: GgufFacts, grid: Sequence[Point], command: Sequence[str], chance: random.Random
) -> dict[Point, float]:
    """The turn of each point that runs, the quickest first."""
    found: dict[Point, float] = {}
    for min_batch in chance.sample(MIN_BATCHES, len(MIN_BATCHES)):
        there = [one for one in grid if one.min_batch == min_batch]
        with min_batch_of(min_batch), runner_of(facts, (), command) as runner:
            for point in sorted(chance.sample(there, len(there)), key=lambda one: repr(one.settings.placement)):
                visits = timed(runner, point.settings, SAMPLE.plan(2))
                if isinstance(visits, TrialResult):
                    print(f"{point.words}: {printable(visits.reason)}", flush=True)
                    continue
                found[point] = statistics.median(one.turn_s(SAMPLE.workload.n_gen) for one in visits)
                print(f"{point.words}: {found[point]:.2f} s", flush=True)
    return dict(sorted(found.items(), key=lambda one: one[1]))


def measure(command: Sequence[str], chance: random.Random, *, is_quick: bool) -> dict[str, Any]:
    """Grid, sweep and rounds, as the row that is recorded. Raises OffloadTuneError, SideFailedError."""
    facts, host, budget_s, n_rounds = facts_of(SAMPLE, Path()), HOST, BUDGET_S, N_ROUNDS
    if is_quick:  # one thread bears company
        host, budget_s, n_rounds = {**HOST, "n_threads": 1, "n_threads_batch": 1}, _QUICK_BUDGET_S, _N_QUICK_ROUNDS
    grid, fixed = grid_of(facts, host), host
    if is_quick:
        fixed = {**host, "n_gpu_layers": 0, "op_offload": False}
        grid = tuple(one for one in grid if not one.settings.offloads and not one.settings.op_offload)
    start_s = time.monotonic()
    found = measured_grid(facts, grid, command, chance)
    grid_s = time.monotonic() - start_s
    report = swept(facts, SAMPLE, budget_s, command=command, fixed=fixed)
    chosen = Point(settings=report.recommendation.trial.settings)
    rivals = {f"{i + 1} of the grid": one for i, one in enumerate(list(found)[:N_RIVALS])}
    sides = {CHOSEN: chosen, COPY: chosen, **rivals}
    with contextlib.ExitStack() as stack:
        runners = {}
        for min_batch in {one.min_batch for one in sides.values()}:
            with min_batch_of(min_batch):
                runners[min_batch] = stack.enter_context(runner_of(facts, (), command))
                runners[min_batch].describe()  # its worker starts, and reads the environment
        visits = side_by_side(
            {name: runners[one.min_batch] for name, one in sides.items()},
            {name: one.settings for name, one in sides.items()},
            SAMPLE.plan(1),
            n_rounds,
            chance,
        )
    regret = regret_of(turns(visits, SAMPLE.workload))
    return {
        "grid_s": round(grid_s, 1),
        "grid": {one.words: round(turn_s, 4) for one, turn_s in found.items()},
        "n_trials": len(report.results),
        "chosen": chosen.words,
        "rival": sides[regret.rival].words,
        "regret": dataclasses.asdict(regret),
    }


def is_met(row: Mapping[str, Any]) -> bool:
    """Whether the answer is as quick as the best of the grid, or not surely slower."""
    regret = Regret(**row["regret"])
    return regret.frac <= regret.noise_frac or regret.low_frac <= 0


def table(row: Mapping[str, Any]) -> Iterable[str]:
    yield f"The grid of {len(row['grid'])} took {format_seconds(row['grid_s'])}:"
    yield from (f"  {turn_s:>8.3f} s  {words}" for words, turn_s in row["grid"].items())
    verdict = "met" if is_met(row) else "MISSED"
    yield f"After {row['n_trials']} trials the sweep chose {row['chosen']}; the best beside it is {row['rival']}."
    yield f"Regret {Regret(**row['regret']).words}: {verdict}"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--measure", action="store_true", help="measure and record")
    options.add_argument("--quick", action="store_true", help="hardly anything on the device: whether it works")
    options.add_argument("--seed", type=int, default=1)
    asked = options.parse_args()
    if not (asked.measure or asked.quick):
        recorded = read_rows(RESULT)
        if not recorded:
            print(f"Nothing is recorded in {RESULT}: --measure records it.")
            return 0
        print("; ".join(recorded["about"].values()))
        row = recorded["cases"][SAMPLE.name]
    else:
        row = measured_row(asked.seed, is_quick=asked.quick)
    print("\n".join(table(row)))
    return int(not is_met(row))


def measured_row(seed: int, *, is_quick: bool) -> dict[str, Any]:
    """Recorded unless it is a quick one. Ends the program with a sentence where something does not work."""
    facts = facts_of(SAMPLE, Path())
    expected_s = _OPENING_S * len(MIN_BATCHES) + 3 * _TURN_S * len(grid_of(facts)) + BUDGET_S + N_ROUNDS * 5
    print(f"It will take about {format_seconds(expected_s)} where nothing else runs.", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            command = ensure_vulkan_engine().command(Path(folder) / "engine.log")
            where = about(facts, command) | {"libraries": PACKAGE}
            row = measure(command, random.Random(seed), is_quick=is_quick)  # noqa: S311 - no secret
        except (VulkanMissingError, OffloadTuneError, SideFailedError) as error:
            raise SystemExit(printable(str(error))) from None
    if not is_quick:
        record_row(RESULT, where, SAMPLE.name, row)
    return row


if __name__ == "__main__":
    sys.exit(main())
