"""Two stand-ins of fewer layers against one of all: what is extrapolated from the first, is it what the last takes?

One worker loads the three; a round visits them in an order by chance. Printed for reading a prompt and for writing are
what the whole took, what it would take by either way and by both together, by how much each is off, and whether the
interval holds the whole's median. A second load (--loads) is the same again in a new worker, its rounds pooled with the
first's: memory that is given anew makes loads of one file differ by some per cent.

To be run where nothing else runs, with memory for twice the three files.

    python benchmarks/standin_depths.py --rounds 9 --loads 2
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import random
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from offloadtune import speed, stats
from offloadtune.engine.process import WorkerProcess
from offloadtune.gguf import read_gguf
from offloadtune.pipeline import StandinRequest, write_standin
from offloadtune.records import Estimate, GgufFacts, Settings
from offloadtune.sweeps import DepthTimes, Extrapolation

_ASK_S = 300.0
_PHASES = (("prompt", 0.20), ("token", 0.10))
"""What is timed, and by how much the extrapolation may be off."""


@dataclass(frozen=True, kw_only=True)
class Depth:
    """One stand-in; seconds for reading the prompt and for the median token, a value for each round."""

    facts: GgufFacts
    prompt_s: list[float] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)

    def add(self, visit: dict[str, Any]) -> None:
        self.prompt_s.append(visit["prefill_ns"] / 1e9)
        self.token_s.append(statistics.median(visit["step_ns"]) / 1e9)

    def times(self, phase: str) -> DepthTimes:
        n_bytes = dict(zip(("prompt", "token"), speed.read_bytes(self.facts), strict=True))[phase]
        seconds = tuple(getattr(self, f"{phase}_s"))
        return DepthTimes(n_layer=self.facts.n_layer, n_gpu_layers=0, n_bytes=n_bytes, seconds=seconds)


def written(folder: Path, options: argparse.Namespace) -> list[Depth]:
    """The stand-ins, the whole one first; those that lie in the folder stay."""
    found = []
    for n_layer in sorted(options.depths, reverse=True):
        path = folder / f"{options.shape}.{options.quant}.{n_layer}.gguf"
        if not path.exists():
            source = StandinRequest(source=options.shape, quant=options.quant, output=path, n_layer=n_layer)
            write_standin(source)
        found.append(Depth(facts=read_gguf(path)))
    return found


def measure(depths: list[Depth], settings: Settings, options: argparse.Namespace, chance: random.Random) -> None:
    """Add the times of one load of each."""
    worker, asked = WorkerProcess(), dataclasses.asdict(settings)
    try:
        contexts = {}
        for i in chance.sample(range(len(depths)), len(depths)):
            path = str(depths[i].facts.path)
            loaded = worker.ask("load", timeout_s=_ASK_S, path=path, settings=asked)["handle"]
            contexts[i] = worker.ask("open", timeout_s=_ASK_S, loaded=loaded, settings=asked)["handle"]
        work = {"n_prefix": 0, "n_new": options.prompt, "n_steps": options.steps}
        for i_round in range(options.rounds + 1):
            for i in chance.sample(range(len(depths)), len(depths)):
                visit = worker.ask("visit", timeout_s=_ASK_S, context=contexts[i], **work)
                if i_round:  # the first round warms up
                    depths[i].add(visit)
    finally:
        worker.leave()


def judge(phase: str, allowed_frac: float, depths: list[Depth], n_rounds: int) -> tuple[str, bool]:
    """What was measured and what would have been said, in lines, and whether that is near enough."""
    whole, *fewer = (depth.times(phase) for depth in depths)
    measured = stats.estimate_median(whole.seconds)
    said = speed.extrapolated(fewer, whole.n_layer, 0, whole.n_bytes)
    lines = [f"{phase}: measured {_words(measured)}"]
    for one in (whole, *fewer):
        loads = [statistics.median(part) for part in _parts(one.seconds, n_rounds)]
        lines.append(f"  {one.n_layer} layers, by load: {', '.join(f'{1e3 * load:.2f} ms' for load in loads)}")
    lines += [f"  {way}: {_words(one)}, {_off(one, measured)}" for way, one in _ways(said)]
    if said.whole_s is None:
        return "\n".join([*lines, f"  NOT said: the ways are {said.apart_frac:.1%} apart"]), False
    is_near = abs(said.whole_s.p50 / measured.p50 - 1) <= allowed_frac
    is_held = said.whole_s.low <= measured.p50 <= said.whole_s.high
    lines.append(
        f"  the ways are {said.apart_frac:.1%} apart; {'within' if is_near else 'NOT within'} {allowed_frac:.0%}, "
        f"the interval {'holds' if is_held else 'does NOT hold'} the median"
    )
    return "\n".join(lines), is_near and is_held


def _ways(said: Extrapolation) -> Iterator[tuple[str, Estimate]]:
    yield "linear", said.linear_s
    yield "scaled", said.scaled_s
    if said.whole_s is not None:
        yield "both", said.whole_s


def _parts(seconds: tuple[float, ...], n_rounds: int) -> Iterator[tuple[float, ...]]:
    for start in range(0, len(seconds), n_rounds):
        yield seconds[start : start + n_rounds]


def _words(one: Estimate) -> str:
    return f"{1e3 * one.p50:.2f} ms ({1e3 * one.low:.2f} to {1e3 * one.high:.2f})"


def _off(one: Estimate, measured: Estimate) -> str:
    return f"{one.p50 / measured.p50 - 1:+.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the files are kept; else they go when all is done")
    parser.add_argument("--shape", default="Llama-2-7B")
    parser.add_argument("--quant", default="Q4_K_M")
    parser.add_argument("--depths", type=int, nargs=3, default=[32, 16, 8], help="all layers and two fewer")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--loads", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=64, help="tokens read a visit")
    parser.add_argument("--steps", type=int, default=8, help="tokens written a visit")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    settings = Settings(devices=(), n_threads=options.threads, n_threads_batch=options.threads)
    chance = random.Random(options.seed)  # noqa: S311 - no secret
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        depths = written(folder, options)
        needed, free = 2 * sum(depth.facts.file_bytes for depth in depths), psutil.virtual_memory().available
        if needed > free:  # the mapped files, and what the engine makes of them
            raise SystemExit(f"{needed} bytes of memory are needed, {free} are free: name another --shape.")
        for _ in range(options.loads):
            measure(depths, settings, options, chance)
    all_near = True
    for phase, allowed_frac in _PHASES:
        words, is_near = judge(phase, allowed_frac, depths, options.rounds)
        print(words, flush=True)
        all_near &= is_near
    if not all_near:
        raise SystemExit("What is extrapolated differs by more than it may.")


if __name__ == "__main__":
    main()
