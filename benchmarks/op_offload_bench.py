"""Measuring what op offload costs on software Vulkan; see op_offload.py, which is the program."""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from op_offload_runs import (
    N_THREADS,
    Configuration,
    Session,
    Timed,
    bytes_only_of,
    grid_of,
    read_session,
    wide_of,
    write_session,
)
from streamed_bytes import Graph, copies_by_rule, differences, graphs_of, streamed_by_log, ubatches_of
from vulkan_engine import PACKAGE, RELEASE, VulkanEngine, VulkanMissingError, ensure_vulkan_engine

from offloadtune.engine import OpenedTrial, Runner, TrialFailedError
from offloadtune.gguf import read_gguf
from offloadtune.records import GgufFacts, Settings, Target, Trial

MODEL = Path(__file__).parents[1] / "gguf_models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
_VISIT_S = 300.0
_N_TRIES = 3


class Bench:
    """Visits on one engine, each with its piece of the scheduler's log."""

    def __init__(self, engine: VulkanEngine, facts: GgufFacts, log: Path) -> None:
        self.n_deaths = 0
        self.after_visit: Callable[[], None] = lambda: None
        self._facts, self._log = facts, log
        self._runner = Runner(MODEL, command=engine.command(log))
        self._warm: set[tuple[object, ...]] = set()
        self._start_s = time.monotonic()
        log.touch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._runner.close()

    def describe(self) -> dict[str, str]:
        build, devices = self._runner.describe()
        gpus = [device for device in devices if device.kind == "gpu"]
        if not gpus:
            raise SystemExit("The engine lists no Vulkan device: run benchmarks/vulkan_engine.py to see what is here.")
        cpus = [device.description for device in devices if device.kind == "cpu"]
        return {
            "engine": build.version,
            "build_id": build.build_id,
            "device": f"{gpus[0].name}: {gpus[0].description}",
            "cpu": f"{cpus[0]}, {N_THREADS} threads",
        }

    def visit(self, one: Configuration, i_round: int) -> None:
        """Open, visit, close; tried again where the engine dies of it, which it does now and then."""
        for _ in range(_N_TRIES):
            with self._surviving(), self.opened(one) as opened:
                self.timed(one, opened, i_round)
                return

    def visit_pairs(self, pair: Sequence[Configuration], rounds: Iterable[int], chance: random.Random) -> None:
        """Both open at once, visited in turns; begun again where the engine dies of it."""
        left = iter(rounds)
        for _ in range(_N_TRIES):
            with self._surviving(), contextlib.ExitStack() as stack:
                both = [(one, stack.enter_context(self.opened(one))) for one in pair]
                for i_round in left:
                    for one, opened in chance.sample(both, len(both)):
                        self.timed(one, opened, i_round)
                return

    @contextlib.contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except TrialFailedError as error:
            self.n_deaths += 1
            print(error, file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def opened(self, one: Configuration) -> Iterator[OpenedTrial]:
        self._warm_up(one)
        with self._runner.opened(_trial_of(one.settings), timeout_s=_VISIT_S) as opened:
            yield opened

    def timed(self, one: Configuration, opened: OpenedTrial, i_round: int) -> None:
        begin, at_s = self._log.stat().st_size, time.monotonic() - self._start_s
        visit = opened.visit(0, one.n_prompt, 0, timeout_s=_VISIT_S)
        graphs = self._graphs_since(begin)
        self._compare(one, graphs)
        spans = list(itertools.pairwise(graphs))
        timed = Timed(
            i_round=i_round,
            at_s=round(at_s, 3),
            prefill_ns=visit.prefill_ns,
            ubatch_ns=tuple(after.at_ns - before.at_ns for before, after in spans),
            ubatch_cpu_ns=tuple(after.at_cpu_ns - before.at_cpu_ns for before, after in spans),
            ubatch_others_ns=tuple(_others_ns(before, after) for before, after in spans),
        )
        one.visits.append(timed)
        self.after_visit()
        told = f"{timed.seconds:.3f} s, others took {timed.others_cores:.2f} cores"
        print(f"{i_round}  {one.name}  {told}", flush=True)

    def _warm_up(self, one: Configuration) -> None:
        """Shaders are compiled in the first use of each, for seconds: all of them on the device once in a process."""
        settings = one.settings
        key = (self._runner.pids, settings.n_ubatch, settings.flash_attn_type, settings.type_v, one.n_prompt)
        if key in self._warm:
            return
        whole = settings.replace(n_gpu_layers=self._facts.n_layer + 1, n_ctx=512)
        with self._runner.opened(_trial_of(whole), timeout_s=_VISIT_S) as opened:
            opened.visit(0, one.n_prompt, 1, timeout_s=_VISIT_S)
        self._warm.add((self._runner.pids, *key[1:]))

    def _graphs_since(self, begin: int) -> tuple[Graph, ...]:
        with self._log.open("rb") as stream:
            stream.seek(begin)
            return graphs_of(stream.read().decode("utf-8", "replace"))

    def _compare(self, one: Configuration, graphs: Sequence[Graph]) -> None:
        """Keep what the log says of the prompt's ubatches; the last graph is that of the token decoded after them."""
        ubatches = ubatches_of(one.n_prompt, one.settings.n_ubatch)
        if len(graphs) != len(ubatches) + 1:
            raise SystemExit(f"{one.name}: the log tells of {len(graphs)} graphs, not of {len(ubatches) + 1}.")
        by_log = tuple(streamed_by_log(graph, self._facts) for graph in graphs[:-1])
        found = [
            f"ubatch {i}, {what}"
            for i, (graph, ubatch) in enumerate(zip(graphs, ubatches, strict=False))
            for what in differences(graph, copies_by_rule(self._facts, one.settings, ubatch), self._facts)
        ]
        if one.by_log not in {None, by_log}:
            found.append("what is copied differs from visit to visit")
        one.by_log, one.differences = by_log, tuple(dict.fromkeys([*one.differences, *found]))


def _others_ns(before: Graph, after: Graph) -> int:
    """The system counts in hundredths of a second, so that little may come out as less than nothing."""
    return max(0, after.at_busy_ns - before.at_busy_ns - (after.at_cpu_ns - before.at_cpu_ns))


def _trial_of(settings: Settings) -> Trial:
    return Trial(settings=settings, target=Target.LLAMA_CPP_PYTHON, why="op offload")


def measure(path: Path, n_visits: int, n_pairs: int, minutes: float, chance: random.Random) -> None:
    """Add to what is recorded at `path` until all is there so often and undisturbed, or the minutes are over.

    Recorded after every visit. What is there of another engine, machine or file is begun anew. Ends the program with a
    sentence where the engine cannot be had.
    """
    try:
        engine = ensure_vulkan_engine()
    except VulkanMissingError as missing:
        raise SystemExit(str(missing)) from None
    facts, end_s = read_gguf(MODEL), time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder, Bench(engine, facts, Path(folder) / "engine.log") as bench:
        session = _continued(_new_session(facts, bench.describe()), path)
        n_died_before = session.n_deaths

        def record() -> None:
            session.n_deaths = n_died_before + bench.n_deaths
            session.measured_at = datetime.now(UTC).isoformat(timespec="seconds")
            write_session(session, path)

        bench.after_visit = record
        for one in session.bytes_only:
            if not one.visits:
                bench.visit(one, 1)
        while time.monotonic() < end_s and (lacking := [one for one in session.grid if len(one.quiet) < n_visits]):
            bench.visit(chance.choice(lacking), session.n_rounds + 1)
        while time.monotonic() < end_s and min(len(one.quiet) for one in session.wide) < n_pairs:
            begin = session.n_rounds + 1
            bench.visit_pairs(session.wide, range(begin, begin + n_pairs), chance)


def _new_session(facts: GgufFacts, described: dict[str, str]) -> Session:
    return Session(
        about="prompts with and without op offload on software Vulkan; see benchmarks/op_offload.py",
        measured_at="",
        libraries=f"{PACKAGE}, llama.cpp {RELEASE}",
        **described,
        file=MODEL.name,
        gguf_id=facts.gguf_id,
        n_deaths=0,
        grid=grid_of(facts),
        wide=wide_of(facts),
        bytes_only=bytes_only_of(facts),
    )


def _continued(new: Session, path: Path) -> Session:
    """`new`, or what is recorded where that is of the same things."""
    if not path.exists():
        return new
    recorded = read_session(path)
    return recorded if recorded.is_like(new) else new
