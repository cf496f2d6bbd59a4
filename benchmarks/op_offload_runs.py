"""Prompts with and without op offload on software Vulkan: which are read, and reading them.

Of each visit are kept how long its ubatches took, for how much of that they wanted a core and had none, and what the
scheduler's log says was copied, beside what the rule foretells (streamed_bytes.py). Host and device have one thread
each and take turns: of two cores one is left for what else the machine does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter
from streamed_bytes import (
    LEAST_ROWS,
    Graph,
    Streamed,
    Ubatch,
    block_of,
    copies_by_rule,
    differences,
    graphs_of,
    n_cells,
    n_host_blocks,
    n_rows,
    streamed_by_log,
    streamed_by_rule,
    ubatches_of,
)
from vulkan_engine import PACKAGE, RELEASE, VulkanEngine, VulkanMissingError, ensure_vulkan_engine

from offloadtune.engine import OpenedTrial, Runner, TrialFailedError
from offloadtune.gguf import read_gguf
from offloadtune.records import GgufFacts, Settings, Target, Trial

MODEL = Path(__file__).parents[1] / "gguf_models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
N_PROMPT = 128
N_WIDE_CTX = 131072
TERMS = ("device_flop", "device_bytes", "streamed_bytes", "host_flop", "ubatches")
N_THREADS = 1
_LAYERS = (0, 15, 31)
QUIET_FRAC = 0.03
"""A visit whose threads waited longer for a core, as a part of its time, was disturbed."""

_VISIT_S = 300.0
_N_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A visit: when it began, in seconds of the session, and its prompt, ubatch by ubatch.

    `ubatch_ns` passed; `ubatch_cpu_ns` are what all threads of the process computed, spinning for a device included,
    and `ubatch_waited_ns` how long they wanted to and had no core. `i_round` pairs those of a round.
    """

    i_round: int
    at_s: float
    prefill_ns: int
    ubatch_ns: tuple[int, ...]
    ubatch_cpu_ns: tuple[int, ...]
    ubatch_waited_ns: tuple[int, ...]

    @property
    def seconds(self) -> float:
        return sum(self.ubatch_ns) / 1e9

    @property
    def disturbed_frac(self) -> float:
        return sum(self.ubatch_waited_ns) / sum(self.ubatch_ns)


@dataclass(slots=True, kw_only=True)
class Configuration:
    """Settings and a prompt, what each of its ubatches has streamed, the work of it all, and its visits."""

    settings: Settings
    n_prompt: int
    by_rule: tuple[Streamed, ...]
    work: dict[str, float]
    by_log: tuple[Streamed, ...] | None = None
    differences: tuple[str, ...] = ()
    visits: list[Timed] = field(default_factory=list)

    @property
    def name(self) -> str:
        s = self.settings
        flash = "flash" if s.flash_attn_type == "enabled" else "plain"
        on = "on" if s.op_offload else "off"
        return f"ngl {s.n_gpu_layers:>2} op {on:<3} ubatch {s.n_ubatch:>3} {s.load_mode} {flash} ctx {s.n_ctx}"

    @property
    def quiet(self) -> list[Timed]:
        """The visits that other programs hardly disturbed; where there is none, the least disturbed."""
        quiet = [visit for visit in self.visits if visit.disturbed_frac <= QUIET_FRAC]
        return quiet or sorted(self.visits, key=lambda visit: visit.disturbed_frac)[:1]


@dataclass(slots=True, kw_only=True)
class Session:
    """What was measured, where, with what."""

    about: str
    measured_at: str
    libraries: str
    engine: str
    build_id: str
    device: str
    cpu: str
    file: str
    gguf_id: str
    n_deaths: int
    grid: list[Configuration]
    wide: list[Configuration]
    bytes_only: list[Configuration]


# --- what is measured ------------------------------------------------------------------------------------------------


def settings_of(n_gpu_layers: int, n_ubatch: int, *, op_offload: bool) -> Settings:
    """One point of the grid. The host's weights lie in plain buffers: those repacked for the CPU are never streamed."""
    return Settings(
        n_gpu_layers=n_gpu_layers,
        load_mode="none",
        use_extra_bufts=False,
        n_ubatch=n_ubatch,
        n_outputs_max=1,
        n_threads=N_THREADS,
        n_threads_batch=N_THREADS,
        flash_attn_type="enabled",
        op_offload=op_offload,
    )


def configured(facts: GgufFacts, settings: Settings, n_prompt: int) -> Configuration:
    ubatches = ubatches_of(n_prompt, settings.n_ubatch)
    by_rule = tuple(streamed_by_rule(copies_by_rule(facts, settings, one)) for one in ubatches)
    return Configuration(settings=settings, n_prompt=n_prompt, by_rule=by_rule, work=work_of(facts, settings, ubatches))


def work_of(facts: GgufFacts, settings: Settings, ubatches: Sequence[Ubatch]) -> dict[str, float]:
    """Amounts of TERMS. Norms count as bytes only, attention as products over the cells of the view."""
    work = dict.fromkeys(TERMS, 0.0)
    n_host = n_host_blocks(facts, settings)
    for ubatch in ubatches:
        copies = copies_by_rule(facts, settings, ubatch)
        streamed = {name for name, _ in copies}
        work["ubatches"] += 1
        work["streamed_bytes"] += sum(n_bytes for _, n_bytes in copies)
        for tensor in facts.tensors:
            block = block_of(tensor)
            rows = n_rows(tensor, facts, ubatch)
            if block is None or not rows:
                continue
            flop = 2.0 * math.prod(tensor.shape) * rows if len(tensor.shape) > 1 else 0.0
            if block >= n_host or tensor.name in streamed:
                work["device_flop"] += flop
                work["device_bytes"] += tensor.n_bytes
            else:
                work["host_flop"] += flop
        n_device = facts.n_layer if streamed else facts.n_layer - n_host
        attention = 2.0 * facts.n_head[0] * (facts.n_embd_head_k + facts.n_embd_head_v)
        each = attention * ubatch.n_tokens * n_cells(settings, ubatch)
        work["device_flop"] += each * n_device
        work["host_flop"] += each * (facts.n_layer - n_device)
    return work


def grid_of(facts: GgufFacts) -> list[Configuration]:
    return [
        configured(facts, settings_of(n_gpu_layers, n_ubatch, op_offload=op_offload), N_PROMPT)
        for n_gpu_layers in _LAYERS
        for n_ubatch in (64, 128)
        for op_offload in (True, False)
    ]


def wide_of(facts: GgufFacts) -> list[Configuration]:
    """A narrow and a wide cache, the least prompt that streams: as many splits and products, many more bytes."""
    plain = settings_of(0, 64, op_offload=True).replace(flash_attn_type="disabled", type_v="f32")
    return [configured(facts, plain.replace(n_ctx=n_ctx), LEAST_ROWS) for n_ctx in (512, N_WIDE_CTX)]


def bytes_only_of(facts: GgufFacts) -> list[Configuration]:
    """Visited once, for the log: a file that is mapped, no flash attention, the output alone on the device."""
    half = settings_of(15, 128, op_offload=True)
    others = (half.replace(load_mode="mmap"), half.replace(flash_attn_type="disabled"), half.replace(n_gpu_layers=1))
    return [configured(facts, settings, LEAST_ROWS) for settings in others]


# --- measuring -------------------------------------------------------------------------------------------------------


class Bench:
    """Visits on one engine, each with its piece of the scheduler's log."""

    def __init__(self, engine: VulkanEngine, facts: GgufFacts, log: Path) -> None:
        self.n_deaths = 0
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
            ubatch_waited_ns=tuple(after.at_waited_ns - before.at_waited_ns for before, after in spans),
        )
        one.visits.append(timed)
        print(f"{i_round}  {one.name}  {timed.seconds:.3f} s, disturbed {timed.disturbed_frac:.1%}", flush=True)

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


def _trial_of(settings: Settings) -> Trial:
    return Trial(settings=settings, target=Target.LLAMA_CPP_PYTHON, why="op offload")


def measure(n_rounds: int, n_pairs: int, chance: random.Random, path: Path) -> None:
    """Record at `path`, after every round. Ends the program with a sentence where the engine cannot be had."""
    try:
        engine = ensure_vulkan_engine()
    except VulkanMissingError as missing:
        raise SystemExit(str(missing)) from None
    facts = read_gguf(MODEL)
    grid, wide, bytes_only = grid_of(facts), wide_of(facts), bytes_only_of(facts)
    with tempfile.TemporaryDirectory() as folder, Bench(engine, facts, Path(folder) / "engine.log") as bench:
        described = bench.describe()
        for i_round in range(1, n_rounds + 1):
            for n_gpu_layers in chance.sample(_LAYERS, len(_LAYERS)):  # together: a load each time is a load too many
                of_placement = [one for one in grid if one.settings.n_gpu_layers == n_gpu_layers]
                for one in chance.sample(of_placement, len(of_placement)):
                    bench.visit(one, i_round)
            bench.visit_pairs(wide, range(n_pairs * (i_round - 1) + 1, n_pairs * i_round + 1), chance)
            for one in bytes_only if i_round == 1 else ():
                bench.visit(one, i_round)
            session = Session(
                about="prompts with and without op offload on software Vulkan; see op_offload_runs.py",
                measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
                libraries=f"{PACKAGE}, llama.cpp {RELEASE}",
                **described,
                file=MODEL.name,
                gguf_id=facts.gguf_id,
                n_deaths=bench.n_deaths,
                grid=grid,
                wide=wide,
                bytes_only=bytes_only,
            )
            path.write_text(json.dumps(dataclasses.asdict(session), indent=1) + "\n", encoding="utf-8")


def read_session(path: Path) -> Session:
    return TypeAdapter(Session).validate_json(path.read_bytes())
