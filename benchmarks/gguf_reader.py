"""How long the header of each sample takes to read: ours, ours with the file's identity, and the `gguf` package.

The three take turns in one process; the A/A column is how much one and the same reader differs from turn to turn.
The package needs seconds on a large vocabulary, so it gets fewer turns.

    python benchmarks/gguf_reader.py
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from gguf import GGUFReader

from offloadtune.gguf import read_gguf
from offloadtune.gguf.header import read_header

MODELS = Path(__file__).parent.parent / "gguf_models"
N_TURNS = 20
N_TURNS_PACKAGE = 3


def timed_ms(read: Callable[[Path], object], path: Path) -> float:
    """Milliseconds of one call."""
    start_s = time.perf_counter()
    read(path)
    return (time.perf_counter() - start_s) * 1e3


def main() -> None:
    """Print one line a reader and file."""
    readers: dict[str, Callable[[Path], object]] = {
        "header": read_header,
        "read_gguf (with identity)": read_gguf,
        "gguf.GGUFReader": GGUFReader,
    }
    print(f"{'file':<40} {'reader':<26} {'median':>10} {'min':>10} {'A/A':>7}")
    for path in sorted(MODELS.glob("*.gguf")):
        times: dict[str, list[float]] = {name: [] for name in readers}
        for turn in range(N_TURNS):
            for name, read in readers.items():
                if name != "gguf.GGUFReader" or turn < N_TURNS_PACKAGE:
                    times[name].append(timed_ms(read, path))
        for name, values in times.items():
            noise = statistics.median(abs(after / before - 1) for before, after in itertools.pairwise(values))
            median, least = statistics.median(values), min(values)
            print(f"{path.name:<40} {name:<26} {median:>7.1f} ms {least:>7.1f} ms {noise:>6.1%}")


if __name__ == "__main__":
    main()
