"""How fast main memory is read: ours, as the probe tells it, and by a small C program, turn by turn.

The program sums 64-bit words with vectors, compiled here for this very CPU. Both have as many threads, arrays as large,
written by the thread that reads them, and the sum of the threads' medians as the figure; they take
turns, in an order by chance. The spread is how much one and the same reader differs from turn to turn. Ends with 1
where the medians differ by more than a tenth.

To be run where nothing else runs.

    python benchmarks/ram_bandwidth.py --turns 25
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from offloadtune.probe import probe_host
from offloadtune.probe.bandwidth import N_PASSES, bytes_to_read, measure_read

LEAST_RATIO, MOST_RATIO = 0.9, 1.1
C_SOURCE = r"""
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { N_MOST_PASSES = 99, N_SUMS = 64 };

static size_t n_words;
static int n_passes;
static pthread_barrier_t start;

static uint64_t sum_of(const uint64_t *words) {
    uint64_t sums[N_SUMS] = {0}, sum = 0;
    for (size_t i = 0; i < n_words; i += N_SUMS)
        for (int j = 0; j < N_SUMS; j++) sums[j] += words[i + j];
    for (int j = 0; j < N_SUMS; j++) sum += sums[j];
    return sum;
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void *read_share(void *speed) {
    double took_s[N_MOST_PASSES];
    uint64_t *words = mmap(NULL, n_words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED) exit(2);
    madvise(words, n_words * 8, MADV_HUGEPAGE); /* as numpy asks for its arrays */
    for (size_t i = 0; i < n_words; i++) words[i] = 1;
    pthread_barrier_wait(&start);
    for (int i = 0; i < n_passes; i++) {
        double before_s = now_s();
        uint64_t sum = sum_of(words);
        took_s[i] = now_s() - before_s;
        if (sum != n_words) exit(3);
    }
    qsort(took_s, n_passes, sizeof(double), by_size);
    *(double *)speed = n_words * 8 / took_s[n_passes / 2];
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int n_threads = atoi(argv[1]);
    n_words = strtoull(argv[2], NULL, 10) / 8 / n_threads / N_SUMS * N_SUMS;
    n_passes = atoi(argv[3]);
    pthread_t threads[n_threads];
    double speeds[n_threads], sum = 0;
    pthread_barrier_init(&start, NULL, n_threads);
    for (int i = 0; i < n_threads; i++)
        if (pthread_create(&threads[i], NULL, read_share, &speeds[i])) return 4;
    for (int i = 0; i < n_threads; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < n_threads; i++) sum += speeds[i];
    printf("%.0f\n", sum);
}
"""

Reader = Callable[[int, int], float]
"""Threads and bytes -> bytes per second."""


def build_reader(folder: Path) -> Reader:
    """The C program, built in `folder`. Ends the program with a sentence where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SystemExit("This benchmark needs a C compiler: install gcc or clang.")
    source, program = folder / "read.c", folder / "read"
    source.write_text(C_SOURCE, encoding="ascii")
    command = [compiler, "-std=gnu11", "-O3", "-march=native", "-pthread", str(source), "-o", str(program)]
    subprocess.run(command, check=True)  # noqa: S603 - our own words

    def read(n_threads: int, n_bytes: int) -> float:
        asked = [str(program), str(n_threads), str(n_bytes), str(N_PASSES)]
        return float(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)  # noqa: S603 - as above

    return read


def read_ours(n_threads: int, n_bytes: int) -> float:
    """What the probe does."""
    speed = measure_read(n_threads, n_bytes)
    if speed is None:
        raise SystemExit("Memory or threads ran out.")
    return speed


def compare(readers: dict[str, Reader], n_threads: int, n_bytes: int, n_turns: int, chance: random.Random) -> float:
    """Print a line a reader; returns the ratio of the medians, the first reader's over the second's."""
    speeds: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(n_turns):
        for name in chance.sample(list(readers), len(readers)):
            speeds[name].append(readers[name](n_threads, n_bytes))
    for name, values in speeds.items():
        noise = statistics.median(abs(after / before - 1) for before, after in itertools.pairwise(values))
        median = statistics.median(values)
        print(f"{n_threads:>7}  {name:<6} {median / 1e9:>9.2f} GB/s {max(values) / 1e9:>9.2f} GB/s {noise:>7.1%}")
    ours, theirs = (statistics.median(values) for values in speeds.values())
    print(f"{n_threads:>7}  ratio  {ours / theirs:>9.3f}", flush=True)
    return ours / theirs


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--turns", type=int, default=25)
    options.add_argument("--seed", type=int, default=1)
    asked = options.parse_args()
    if asked.turns < 2:
        options.error("2 turns are the least")
    host = probe_host(measure=False)
    n_cores = host.cpu.n_physical_cores or host.cpu.n_logical_cores
    print(f"{'threads':>7}  {'reader':<6} {'median':>14} {'most':>14} {'spread':>7}")
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        readers = {"ours": read_ours, "C": build_reader(Path(folder))}
        for n_threads in sorted({1, n_cores}):
            n_bytes = bytes_to_read(n_threads, host.cpu.l3_bytes, host.ram.available_bytes // 4)
            if n_bytes is None:
                raise SystemExit("Too little memory is free to read more than the caches hold.")
            ratios.append(compare(readers, n_threads, n_bytes, asked.turns, random.Random(asked.seed)))  # noqa: S311
    if not all(LEAST_RATIO <= ratio <= MOST_RATIO for ratio in ratios):
        sys.exit(f"Ours and C differ by more than a tenth: {', '.join(f'{ratio:.3f}' for ratio in ratios)}.")


if __name__ == "__main__":
    main()
