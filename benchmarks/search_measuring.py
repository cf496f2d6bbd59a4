"""Measuring what search_cases.py describes: cards, sweeps, rounds side by side, and what is recorded of them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from search_cases import DRIVER_BYTES, HOST, TARGET, Sample, settings_words

from offloadtune import pipeline, search
from offloadtune.engine import WORKER_COMMAND, Runner, VisitPlan
from offloadtune.gguf import read_gguf
from offloadtune.pipeline.guarding import GuardedRunner
from offloadtune.pipeline.sweeping import llama_arguments
from offloadtune.probe import probe_host
from offloadtune.records import GgufFacts, Settings, Trial, TrialResult, Visit, Workload
from offloadtune.sweeps import SweepReport, SweepRequest

ROOT = Path(__file__).parents[1]
N_CARD_THREADS = 2
_VISIT_S = 120.0

sys.path.append(str(ROOT / "tests"))  # for the card and the mixture that tests have


class SideFailedError(Exception):
    """A sentence on a side that ended otherwise than well when it was compared."""


@contextlib.contextmanager
def a_home() -> Iterator[Path]:
    """A home of its own, in which nothing is remembered, and a working folder without ./profiles."""
    before = os.environ.get("OFFLOADTUNE_HOME")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["OFFLOADTUNE_HOME"] = folder
        try:
            yield Path(folder)
        finally:
            os.environ.pop("OFFLOADTUNE_HOME")
            if before is not None:
                os.environ["OFFLOADTUNE_HOME"] = before


@contextlib.contextmanager
def virtual_card(card_bytes: int, n_threads: int = N_CARD_THREADS) -> Iterator[str]:
    """The endpoint of a card that is started again where a trial kills it."""
    from conftest import VirtualCard  # noqa: PLC0415 - tests are no package

    card = VirtualCard(n_threads, card_bytes, driver_bytes=DRIVER_BYTES)
    try:
        yield card.endpoint
    finally:
        card.close()


def facts_of(sample: Sample, folder: Path) -> GgufFacts:
    """The file's, which is written to `folder` first where it is the mixture."""
    if sample.file:
        return read_gguf(ROOT / "gguf_models" / sample.file)
    from small_moe import write_small_moe  # noqa: PLC0415 - tests are no package

    path = folder / f"{sample.name}.gguf"
    if not path.exists():
        write_small_moe(path)
    return read_gguf(path)


def runner_of(facts: GgufFacts, endpoints: Sequence[str], command: Sequence[str] = WORKER_COMMAND) -> Runner:
    """Visits as those of a sweep."""
    return GuardedRunner(facts, lambda: "", endpoints=endpoints, command=command, arguments=llama_arguments)


def swept(  # noqa: PLR0913 - what a sweep is asked
    facts: GgufFacts,
    sample: Sample,
    budget_s: float,
    *,
    endpoints: Sequence[str] = (),
    command: Sequence[str] = (),
    fixed: Mapping[str, Any] | None = None,
) -> SweepReport:
    """A sweep that remembers nothing from before; raises as `pipeline.sweep` does, and where the user stops it."""
    request = SweepRequest(
        path=facts.path,
        workload=sample.workload,
        budget_s=budget_s,
        target=TARGET,
        n_ctx=sample.n_ctx,
        endpoints=tuple(endpoints),
        fixed=dict(HOST if fixed is None else fixed),
        is_fresh=True,
        worker_command=tuple(command),
    )
    with a_home():
        report = pipeline.sweep(request, lambda _event: None)
    if report.is_interrupted:
        raise KeyboardInterrupt
    return report


def trial_of(settings: Settings) -> Trial:
    return Trial(settings=settings, target=TARGET, why="a benchmark of the search")


def timed(runner: Runner, settings: Settings, plan: VisitPlan) -> tuple[Visit, ...] | TrialResult:
    """The visits that count; a TrialResult where one failed."""
    found = runner.revisit(trial_of(settings), plan, timeout_s=_VISIT_S)
    return found if isinstance(found, TrialResult) else tuple(search.measured(found))


def side_by_side(
    runners: Mapping[str, Runner], sides: Mapping[str, Settings], plan: VisitPlan, n_rounds: int, chance: random.Random
) -> dict[str, list[Visit]]:
    """A visit of each side a round, in an order by chance, each in a load of its own: loads differ more than visits.

    `runners` has one for each side; they may share it. Raises SideFailedError.
    """
    visits: dict[str, list[Visit]] = {name: [] for name in sides}
    for _ in range(n_rounds):
        for name in chance.sample(sorted(sides), len(sides)):
            runners[name].unload()
            found = timed(runners[name], sides[name], plan)
            if isinstance(found, TrialResult):
                message = f"{name}, {settings_words(sides[name])}, failed beside the others: {found.reason}"
                raise SideFailedError(message)
            visits[name] += found
    return visits


def turns(visits: Mapping[str, Sequence[Visit]], workload: Workload) -> dict[str, list[float]]:
    """Seconds of each side's turns, round by round."""
    return {name: [visit.turn_s(workload.n_gen) for visit in each] for name, each in visits.items()}


def about(facts: GgufFacts, command: Sequence[str] = WORKER_COMMAND) -> dict[str, str]:
    """The machine and the engine that measure."""
    with Runner(facts.path, command=command) as runner:
        engine, _ = runner.describe()
    cpu = probe_host().cpu
    return {
        "machine": f"{cpu.brand}, {cpu.n_logical_cores} logical CPUs",
        "engine": f"llama.cpp {engine.version}, build {engine.build_id}",
    }


def read_rows(path: Path) -> dict[str, Any]:
    """What is recorded: "about" and "cases" by name; {} where nothing is."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def record_row(path: Path, where: Mapping[str, str], name: str, row: Mapping[str, Any]) -> None:
    """Add a case to what is recorded; what another machine or engine measured does not stand beside it."""
    kept = read_rows(path)
    others = kept["cases"] if kept and kept["about"] == where else {}
    cases = {**others, name: {"measured_at": datetime.now(UTC).isoformat(timespec="seconds"), **row}}
    beside = path.with_suffix(".writing")
    beside.write_text(json.dumps({"about": dict(where), "cases": cases}, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)
