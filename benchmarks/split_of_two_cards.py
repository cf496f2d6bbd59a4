"""Two unequal virtual cards: is the split that a sweep finds as fast as the best of a grid of splits?

The cards are RPC servers of this machine whose CPUs have one thread and two, as much memory each as is asked for. A
sweep over both finds a split of all layers. Then one worker loads the grid side by side, 20 divisions with the other
settings of that, and visits them in an order by chance, round by round. What the sweep chose is visited against the
best of the grid, and against a second load of itself: that is the noise (A/A).

Ends with 1, with --check, unless the split found takes at most 5 % longer than the grid's best, beyond that noise. To
be run where nothing else runs.

    python benchmarks/split_of_two_cards.py [--second-threads 2] [--rounds 12] [--budget 300] [--check]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from against_llama_bench import free_port, wait_for

from offloadtune import stats
from offloadtune.engine.process import WorkerProcess
from offloadtune.gguf import read_gguf
from offloadtune.pipeline import sweep
from offloadtune.records import Estimate, Settings, Target, Workload
from offloadtune.sweeps import SweepRequest, TrialFinished
from offloadtune.units import MIB, format_split

ROOT = Path(__file__).parent.parent
FILE = ROOT / "gguf_models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
WORKLOAD = Workload(name="short", n_prefix_cached=0, n_prompt_new=512, n_gen=64)
N_STEPS = 32
HOST: dict[str, Any] = {"use_extra_bufts": False, "n_threads": 1, "n_threads_batch": 1}
ALLOWED_FRAC = 0.05
_ASK_S = 300.0
Split = tuple[float, ...]


@contextlib.contextmanager
def card(n_threads: int, card_mib: int, niceness: int = 0) -> Iterator[str]:
    """The endpoint of a virtual card that lives as long as the block."""
    port = free_port()
    words = [str(ROOT / "tests" / "virtual_card.py"), str(port), str(n_threads), str(card_mib * MIB)]
    nice = ["nice", "-n", str(niceness)] if niceness else []
    command = [*nice, sys.executable, *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
    try:
        wait_for(process, port)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def swept(endpoints: Sequence[str], n_layers: int, budget_s: float, options: argparse.Namespace) -> Settings:
    """What a sweep finds with all layers on the cards."""

    def listen(event: object) -> None:
        if isinstance(event, TrialFinished):
            trial = event.result.trial
            print(f"  {event.result.outcome.value:8} {trial.why}", flush=True)

    request = SweepRequest(
        path=FILE,
        workload=dataclasses.replace(WORKLOAD, n_prompt_new=options.prompt, n_gen=options.gen),
        budget_s=budget_s,
        target=Target.LLAMA_SERVER,
        endpoints=tuple(endpoints),
        fixed={**HOST, "n_gpu_layers": n_layers},
        is_fresh=True,
    )
    report = sweep(request, listen)
    print(f"  {len(report.results)} trials, {report.n_model_loads} loads, {report.duration_s:.0f} s")
    return report.recommendation.trial.settings


def grid_of(n_layers: int, n_points: int) -> list[Split]:
    """Divisions from all layers on the first card to all on the second."""
    on_first = {round(i * n_layers / (n_points - 1)) for i in range(n_points)}
    return [(float(n), float(n_layers - n)) for n in sorted(on_first, reverse=True)]


def turns(
    endpoints: Sequence[str], settings: dict[str, Settings], n_rounds: int, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Seconds of a turn by name, round by round; all are loaded side by side in one worker."""
    worker, chance = WorkerProcess(endpoints), random.Random(options.seed)  # noqa: S311 - no secret
    try:
        contexts = {}
        for name in chance.sample(sorted(settings), len(settings)):
            asked = dataclasses.asdict(settings[name])
            loaded = worker.ask("load", timeout_s=_ASK_S, path=str(FILE), settings=asked)["handle"]
            contexts[name] = worker.ask("open", timeout_s=_ASK_S, loaded=loaded, settings=asked)["handle"]
        found: dict[str, list[float]] = {name: [] for name in settings}
        work = {"n_prefix": 0, "n_new": options.prompt, "n_steps": min(N_STEPS, options.gen - 1)}
        for i in range(n_rounds + 1):
            for name in chance.sample(sorted(contexts), len(contexts)):
                visit = worker.ask("visit", timeout_s=_ASK_S, context=contexts[name], **work)
                if i:  # the first round warms up
                    token_ns = statistics.median(visit["step_ns"])
                    found[name].append((visit["prefill_ns"] + (options.gen - 1) * token_ns) / 1e9)
        return found
    finally:
        worker.leave()


def _words(ratio: Estimate) -> str:
    return f"{ratio.p50:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def compared(endpoints: Sequence[str], chosen: Settings, options: argparse.Namespace, n_layers: int) -> bool:
    """The table of the grid, and whether the split found is as good as its best."""
    grid = {format_split(split, ","): split for split in grid_of(n_layers, options.points)}
    times = turns(
        endpoints,
        {name: chosen.replace(tensor_split=split) for name, split in grid.items()},
        options.grid_rounds,
        options,
    )
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    best = min(medians, key=medians.__getitem__)
    own = format_split(chosen.tensor_split, ",") if chosen.tensor_split else "by free memory"
    print(f"\n  layers on each   seconds of a turn, median of {options.grid_rounds}")
    for name, seconds in medians.items():
        print(f"  {name:>14}   {seconds:.3f}{'  best of the grid' if name == best else ''}")
    side_by_side = {"found": chosen, "again": chosen, "best": chosen.replace(tensor_split=grid[best])}
    final = turns(endpoints, side_by_side, options.rounds, options)
    ratio, noise = (stats.paired_ratio(final[name], final["found"]) for name in ("best", "again"))
    noise_frac = max(noise.high - 1, 1 - noise.low)
    is_near = ratio.p50 <= 1 + ALLOWED_FRAC + noise_frac
    print(f"  found {own}, best of the grid {best}: found over best {_words(ratio)}, found over itself {_words(noise)}")
    print(f"  {'within' if is_near else 'NOT within'} {ALLOWED_FRAC:.0%} beyond the noise of {noise_frac:.1%}")
    return is_near


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--second-threads", type=int, default=2)
    parser.add_argument("--first-niceness", type=int, default=0, help="how much the first card gives way to others")
    parser.add_argument("--first-mib", type=int, default=6144, help="memory of the first card")
    parser.add_argument("--second-mib", type=int, default=6144)
    parser.add_argument("--prompt", type=int, default=WORKLOAD.n_prompt_new, help="tokens read a turn")
    parser.add_argument("--gen", type=int, default=WORKLOAD.n_gen, help="tokens written a turn")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds of the sweep")
    parser.add_argument("--points", type=int, default=20, help="divisions of the grid")
    parser.add_argument("--grid-rounds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=12, help="of the comparison side by side")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="end with 1 where the split found is not near the best")
    options = parser.parse_args()
    n_layers = read_gguf(FILE).n_layer + 1
    with (
        tempfile.TemporaryDirectory() as home,
        card(1, options.first_mib, options.first_niceness) as first,
        card(options.second_threads, options.second_mib) as second,
    ):
        os.environ["OFFLOADTUNE_HOME"] = home
        print(f"cards of 1 and {options.second_threads} threads, {options.first_mib} and {options.second_mib} MiB")
        chosen = swept((first, second), n_layers, options.budget, options)
        is_near = compared((first, second), chosen, options, n_layers)
    if options.check and not is_near:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
