"""How many predictions a second: a million settings and prompts, each with both phases and their intervals."""

from __future__ import annotations

import sys
import time

import numpy as np

from offloadtune.footprint import Grid
from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.records import GgufFacts
from offloadtune.speed import Work, laws_of, predict_many
from offloadtune.speeds import DeviceRates, HostRates, Rig

N_QUERIES = 1_000_000
N_TURNS = 5
RIGS = {
    "one card": 1,
    "two cards": 2,
}
SHAPES = ("llama-3-8b", "qwen3-30b-a3b", "gemma-3-27b")


def main() -> int:
    """Print the best of some turns for each shape and rig; 1 where a million take longer than a second."""
    is_slow = False
    for shape in SHAPES:
        facts = facts_of_shape(shape, "Q4_K_M")
        for words, n_devices in RIGS.items():
            rate = max(_rate(facts, n_devices) for _ in range(N_TURNS))
            is_slow |= n_devices == 1 and rate < N_QUERIES
            print(f"{shape}, {words}: {rate:,.0f} predictions a second (best of {N_TURNS})")
    return int(is_slow)


def _rate(facts: GgufFacts, n_devices: int) -> float:
    card = DeviceRates(name="CUDA0", family="ampere", read_bytes_per_s=936e9, flop_per_s=142e12)
    rig = Rig(devices=(card,) * n_devices, host=HostRates(peak_bytes_per_s=89.6e9, n_cores=8))
    chance = np.random.default_rng(1)
    grid = Grid.over(
        facts.n_layer,
        n_gpu_layers=chance.integers(0, facts.n_layer + 2, N_QUERIES),
        n_ubatch=chance.choice([64, 128, 256, 512], N_QUERIES),
        n_cpu_moe=chance.integers(0, facts.n_layer + 1, N_QUERIES),
        flash=chance.integers(0, 2, N_QUERIES) == 1,
        n_ctx=8192,
        n_batch=512,
    )
    prompt = Work.over(
        N_QUERIES, n_prompt=chance.integers(1, 4096, N_QUERIES), depth=chance.integers(0, 4096, N_QUERIES)
    )
    step = Work.over(N_QUERIES, depth=chance.integers(0, 8192, N_QUERIES))
    laws = laws_of(rig, facts)
    start_s = time.perf_counter()
    predict_many(facts, grid, prompt, step, laws)
    return N_QUERIES / (time.perf_counter() - start_s)


if __name__ == "__main__":
    sys.exit(main())
