"""How much visits of unchanged settings differ on this machine: a session of them, recorded one after another.

One load, one context, the same short turn again and again in a child process, as in a sweep. `--append` adds the
session to data/visit_noise.csv, from which interval_coverage.py draws; without it the spread is printed, no more.

    python benchmarks/record_noise.py --minutes 3 --append
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from offloadtune.engine import Runner, TrialFailedError
from offloadtune.probe import probe_host
from offloadtune.records import Settings, Target, Trial, Visit, Workload
from offloadtune.units import format_count

NOISE = Path(__file__).parent / "data" / "visit_noise.csv"
MODEL = Path(__file__).parents[1] / "gguf_models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
FIELDS = ("session", "at_s", "ttft_ns", "token_ns")
N_STEPS = 8
WORKLOAD = Workload(name="short", n_prefix_cached=0, n_prompt_new=64, n_gen=N_STEPS + 1)
_N_VISITS_A_STRETCH = 20
_STRETCH_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A visit of the session, `at_s` seconds after its first began."""

    session: int
    at_s: float
    ttft_ns: int
    token_ns: int

    def turn_s(self, n_gen: int) -> float:
        """A turn of `n_gen` tokens at the rates of this visit."""
        return (self.ttft_ns + n_gen * self.token_ns) / 1e9


def read_noise(path: Path = NOISE) -> list[list[Timed]]:
    """The sessions recorded, oldest first."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as lines:
        rows = csv.DictReader(line for line in lines if not line.startswith("#"))
        visits = [
            Timed(
                session=int(row["session"]),
                at_s=float(row["at_s"]),
                ttft_ns=int(row["ttft_ns"]),
                token_ns=int(row["token_ns"]),
            )
            for row in rows
        ]
    return [[one for one in visits if one.session == i] for i in sorted({one.session for one in visits})]


def trial_of(n_threads: int) -> Trial:
    """The CPU alone, so that every machine can record it."""
    settings = Settings(devices=(), n_threads=n_threads, n_threads_batch=n_threads, flash_attn_type="enabled")
    return Trial(settings=settings, target=Target.LLAMA_CPP_PYTHON, why="noise")


def record(trial: Trial, seconds: float, session: int) -> list[Timed]:
    """Visits for about so many seconds. Ends the program with a sentence where the engine does not run."""
    stamped: list[tuple[float, Visit]] = []
    work = (WORKLOAD.n_prefix_cached, WORKLOAD.n_prompt_new, N_STEPS)
    with Runner(MODEL) as runner:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            try:
                with runner.opened(trial, timeout_s=_STRETCH_S) as opened:
                    opened.visit(*work, timeout_s=_STRETCH_S, is_warmup=True)
                    for _ in range(_N_VISITS_A_STRETCH):
                        at_s = time.monotonic()
                        stamped.append((at_s, opened.visit(*work, timeout_s=_STRETCH_S)))
            except TrialFailedError as error:
                raise SystemExit(f"The visits ended: {error.result.reason}.") from None
    start_s = stamped[0][0]
    return [
        Timed(
            session=session,
            at_s=at_s - start_s,
            ttft_ns=round(visit.ttft_s * 1e9),
            token_ns=round(visit.token_s * 1e9),
        )
        for at_s, visit in stamped
    ]


def session_lines(visits: Sequence[Timed], trial: Trial, started_at: datetime, load_before: float) -> Iterable[str]:
    """The session as the file holds it: how it was made, then a line for each visit."""
    cpu = probe_host().cpu
    yield (
        f"# session {visits[0].session}: {started_at.isoformat(timespec='seconds')}, {cpu.brand}, "
        f"{cpu.n_logical_cores} logical CPUs, load average before {load_before:.2f}, nice {os.nice(0)}"
    )
    yield (
        f"# {MODEL.name}, {WORKLOAD.n_prompt_new} tokens read and {N_STEPS} timed a visit, "
        f"{format_count(trial.settings.n_threads, 'thread')}, flash attention {trial.settings.flash_attn_type}, "
        f"a new context every {_N_VISITS_A_STRETCH} visits"
    )
    for one in visits:
        yield f"{one.session},{one.at_s:.2f},{one.ttft_ns},{one.token_ns}"


def append(lines: Iterable[str], path: Path = NOISE) -> None:
    is_new = not path.exists()
    with path.open("a", encoding="utf-8") as out:
        if is_new:
            out.write(",".join(FIELDS) + "\n")
        out.writelines(line + "\n" for line in lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=0.5)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--append", action="store_true", help=f"add the session to {NOISE.name}")
    asked = options.parse_args()
    started_at, load_before = datetime.now(UTC), os.getloadavg()[0]
    trial = trial_of(asked.threads)
    visits = record(trial, 60 * asked.minutes, session=len(read_noise()) + 1)
    if asked.append:
        append(session_lines(visits, trial, started_at, load_before))
    for name in ("ttft_ns", "token_ns"):
        values = [getattr(one, name) for one in visits]
        cuts = statistics.quantiles(values, n=20)
        print(
            f"{name}: {len(values)} visits, median {statistics.median(values) / 1e6:.2f} ms, "
            f"P5 {cuts[0] / 1e6:.2f}, P95 {cuts[-1] / 1e6:.2f}"
        )


if __name__ == "__main__":
    main()
