"""offloadtune's ruler against llama-bench itself: the same test, on the same libraries, in pairs by turns.

Each unit is a fresh process of one tool that loads the file, warms up and repeats the test a few times; its figure is
the quickest of its repetitions, which stalls of a shared machine do not reach. A pair is a unit of each, in an order
that is drawn. A pilot of each tool against itself shows the spread, and from it the number of pairs is fixed
beforehand; its units repeat the test as often as those of the pairs. Each comparison is printed as soon as it is done.
Ends with 1 unless every interval of 95 % of (our time / its time) lies within 0.96 to 1.04.

On the CPU, on the virtual card (an RPC server with a CPU of its own behind it, which both tools use in turn) and, where
the engine lists one, on a GPU.

    python benchmarks/against_llama_bench.py [--pairs N] [--quick] [--places cpu,card,gpu] [--tests tg64]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_bench_build import LlamaBench, ensure_llama_bench, telling_errors

from offloadtune.engine import RulerFailedError, RulerTest, Runner
from offloadtune.errors import EngineError
from offloadtune.pipeline.rows import name_of, settings_of
from offloadtune.rows import RowsRequest
from offloadtune.stats import paired_ratio, pairs_needed, spread_of_pairs

ROOT = Path(__file__).parent.parent
FILE = ROOT / "gguf_models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
TESTS = (
    RulerTest(n_prompt=512, n_gen=0),
    RulerTest(n_prompt=0, n_gen=64),
    RulerTest(n_prompt=0, n_gen=32, n_depth=1024),
)
PLACES = ("cpu", "card", "gpu")
BAR = (0.96, 1.04)
SEED = 1
N_REPS = 5
N_PILOT_PAIRS, N_PILOT_PAIRS_QUICK = 6, 2
N_PAIRS_QUICK = 6
MOST_PAIRS = 60
SHIFT_SHOWN = 0.03
"""The pairs are as many as would show a shift of so much, which leaves 1 % of the bar for a true difference."""
_CARD_BYTES = 2 << 30
_UNIT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where both tools work, and how both are told; `devices` as in Settings."""

    name: str
    devices: tuple[str, ...]
    n_threads: int
    endpoints: tuple[str, ...] = ()


Unit = Callable[[RulerTest, Place], float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, help="pairs of each comparison; default: by the pilot")
    parser.add_argument("--quick", action="store_true", help="few pairs: whether it works, not what it shows")
    parser.add_argument("--places", default=",".join(PLACES), help="some of cpu, card, gpu")
    parser.add_argument("--tests", help="some of the tests by name, like tg64; default: all")
    options = parser.parse_args()
    if options.pairs is not None and options.pairs < 1:
        parser.error("--pairs must be at least 1")
    wanted = options.places.split(",")
    known = {name_of(test): test for test in TESTS}
    names = options.tests.split(",") if options.tests else list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--tests {unknown[0]!r} is not one of {', '.join(known)}")
    if unknown := [name for name in wanted if name not in PLACES]:
        parser.error(f"--places {unknown[0]!r} is not one of {', '.join(PLACES)}")
    with telling_errors():
        llama_bench = ensure_llama_bench()
        chance = random.Random(SEED)  # noqa: S311 - an order, not a secret
        with places(wanted) as found:
            verdicts = [
                compare(llama_bench, test, place, chance, options.pairs, is_quick=options.quick)
                for place in found
                for test in map(known.__getitem__, names)
            ]
    if not verdicts:
        print("Nothing was compared: none of the places wanted is here.", file=sys.stderr, flush=True)
    return 0 if verdicts and all(verdicts) else 1


def compare(  # noqa: PLR0913 - what a comparison takes
    llama_bench: LlamaBench,
    test: RulerTest,
    place: Place,
    chance: random.Random,
    n_pairs: int | None,
    *,
    is_quick: bool,
) -> bool:
    """Pilot, then the pairs; prints a line of each and tells whether the bar was met."""
    tools: dict[str, Unit] = {"ours": measure_ours, "llama-bench": lambda *args: measure_theirs(llama_bench, *args)}
    n_pilot = N_PILOT_PAIRS_QUICK if is_quick else N_PILOT_PAIRS
    pilots: dict[str, list[float]] = {name: [] for name in tools}
    for _ in range(2 * n_pilot):  # by turns, so that both see the same weather
        for name in chance.sample(list(tools), 2):
            pilots[name].append(tools[name](test, place))
    spreads = {name: spread_of_pairs(values[::2], values[1::2]) for name, values in pilots.items()}
    if n_pairs is None:
        n_pairs = N_PAIRS_QUICK if is_quick else min(MOST_PAIRS, pairs_needed(max(spreads.values()), SHIFT_SHOWN))
    figures: dict[str, list[float]] = {name: [] for name in tools}
    for _ in range(n_pairs):
        for name in chance.sample(list(tools), 2):
            figures[name].append(tools[name](test, place))
    ratio = paired_ratio(figures["llama-bench"], figures["ours"])
    is_met = BAR[0] <= ratio.low and ratio.high <= BAR[1] and ratio.coverage_frac >= 0.95
    rates = {name: (test.n_prompt + test.n_gen) / statistics.median(values) * 1e9 for name, values in figures.items()}
    print(
        f"{place.name:<5} {name_of(test):<13} ours / llama-bench {ratio.p50:.4f} [{ratio.low:.4f}, {ratio.high:.4f}] "
        f"at {ratio.coverage_frac:.1%} of {n_pairs} pairs; "
        f"ours {rates['ours']:.2f}, llama-bench {rates['llama-bench']:.2f} t/s; "
        f"A/A {aa_words(pilots['ours'], spreads['ours'])}, {aa_words(pilots['llama-bench'], spreads['llama-bench'])}"
        f"{'' if is_met else '   MISSED'}",
        flush=True,
    )
    return is_met


def aa_words(values: Sequence[float], spread: float) -> str:
    """A tool against itself: ratio of neighbouring units and its spread from pair to pair."""
    return f"{paired_ratio(values[::2], values[1::2]).p50:.4f} ± {spread:.1%}"


def measure_ours(test: RulerTest, place: Place) -> float:
    """Median nanoseconds of the repetitions of a fresh worker, which is gone when this returns."""
    settings = settings_of(RowsRequest(path=FILE, n_threads=place.n_threads)).replace(devices=place.devices)
    with Runner(FILE, place.endpoints) as runner:
        try:
            reps = list(runner.ruler(settings, test, N_REPS, timeout_s=_UNIT_S))
        except RulerFailedError as error:
            message = f"{name_of(test)} of ours failed on {place.name}: {error.reason}."
            raise EngineError(message, hint="run offloadtune bench FILE --llama-bench alone") from None
    return min(rep.ns for rep in reps if not rep.is_warmup)


def measure_theirs(llama_bench: LlamaBench, test: RulerTest, place: Place) -> float:
    """The same of a llama-bench."""
    words = {
        **({"--rpc": ",".join(place.endpoints)} if place.endpoints else {}),  # before -dev, which names its device
        "-m": FILE,
        "-p": test.n_prompt,
        "-n": test.n_gen,
        "-d": test.n_depth,
        "-r": N_REPS,
        "-t": place.n_threads,
        "-dev": "/".join(place.devices) or "none",
        "-o": "jsonl",
    }
    command = [str(llama_bench.path), *(str(word) for pair in words.items() for word in pair)]
    hint = f"run it alone: {' '.join(command)}"
    try:
        done = subprocess.run(  # noqa: S603
            command, check=False, capture_output=True, text=True, env=llama_bench.environment, timeout=_UNIT_S
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"llama-bench had not ended after {_UNIT_S:.0f} s.", hint=hint) from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise EngineError(f"llama-bench ended with {done.returncode}: {last}.", hint=hint)
    return float(min(json.loads(done.stdout)["samples_ns"]))


@contextlib.contextmanager
def places(wanted: Sequence[str]) -> Iterator[list[Place]]:
    """The places wanted that are here; the card lives as long as the block."""
    n_cores = len(os.sched_getaffinity(0))
    found = [Place(name="cpu", devices=(), n_threads=n_cores)] if "cpu" in wanted else []
    with contextlib.ExitStack() as stack:
        if "card" in wanted:
            endpoint = stack.enter_context(virtual_card(n_cores))
            devices = [name for name in offload_devices((endpoint,)) if name.startswith("RPC")]
            if not devices:  # both would work on the CPU, and agree
                message = f"The engine lists no device of the virtual card at {endpoint}."
                raise EngineError(message, hint="install an engine with RPC, or leave card out of --places")
            found.append(Place(name="card", devices=tuple(devices), n_threads=1, endpoints=(endpoint,)))
        if "gpu" in wanted and (gpus := offload_devices()):
            found.append(Place(name="gpu", devices=gpus[:1], n_threads=n_cores))
        yield found


def offload_devices(endpoints: tuple[str, ...] = ()) -> tuple[str, ...]:
    with Runner(FILE, endpoints) as runner:
        _, devices = runner.describe()
    return tuple(device.name for device in devices if device.is_offload_target)


@contextlib.contextmanager
def virtual_card(n_threads: int) -> Iterator[str]:
    """The endpoint of a card that lives as long as the block."""
    port = free_port()
    command = [sys.executable, str(ROOT / "tests" / "virtual_card.py"), str(port), str(n_threads), str(_CARD_BYTES)]
    card = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
    try:
        wait_for(card, port)
        yield f"127.0.0.1:{port}"
    finally:
        card.kill()
        card.wait()


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(card: subprocess.Popen[bytes], port: int) -> None:
    give_up = time.monotonic() + 30
    while card.poll() is None and time.monotonic() < give_up:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.05)
    raise EngineError("The virtual card did not start.", hint="run tests/virtual_card.py alone to see why")


if __name__ == "__main__":
    sys.exit(main())
