"""How often a sweep finds a winner where nothing differs: the real engine, whose worker opens the same context always.

The worker (this file with --worker) is offloadtune's own, but for what it is told of settings: whatever is asked, it
loads and opens the same ones, and says that it did as asked. So threads, ubatches and flash attention change nothing,
and a sweep on the CPU compares equal settings by real visits in real weather. Each sweep begins with nothing
remembered, and has a budget of its own. Ends with 1 unless 17 of 20 end in a tie with all that they compare with.

To be run where nothing else runs; a quarter of an hour.

    python benchmarks/search_equal_real.py [--runs 20] [--budget 40]
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from search_cases import SAMPLES, settings_words
from search_measuring import facts_of, swept

from offloadtune.errors import OffloadTuneError
from offloadtune.records import PLACEMENT_FIELDS, Comparison, Recommendation, Settings, Verdict, Workload
from offloadtune.units import format_seconds

TIES_LEAST_FRAC = 17 / 20
SAME = Settings(devices=(), n_threads=1, n_threads_batch=1, flash_attn_type="enabled", n_outputs_max=1)
"""What is measured whatever is asked, but for n_ctx. One thread: a second one is whoever else runs here."""

SAMPLE = dataclasses.replace(
    SAMPLES["smollm2"], workload=Workload(name="short", n_prefix_cached=0, n_prompt_new=64, n_gen=16), n_ctx=256
)
_OUTSIDE_S = 3.0
"""What a sweep takes beside its budget."""

_N_ROUNDS_LEAST = 3
"""Of fewer no winner is made, so that they show nothing."""


def same_of(settings: dict[str, Any]) -> dict[str, Any]:
    """What is opened for `settings`."""
    return {**dataclasses.asdict(SAME), "n_ctx": settings["n_ctx"]}


def pretended(settings: dict[str, Any], effective: dict[str, Any]) -> dict[str, Any]:
    """What would be effective if the settings had been heeded; "auto" is as the engine resolved it."""
    return {name: settings[name] if settings[name] != "auto" else value for name, value in effective.items()}


def serve(endpoints: list[str]) -> None:
    """The worker whose settings are all alike."""
    from offloadtune.engine.worker import __main__ as worker  # noqa: PLC0415
    from offloadtune.engine.worker import session  # noqa: PLC0415 - loads the library

    class Heedless(session.Session):
        """Loads and opens SAME, whatever is asked."""

        def load(self, path: str, settings: dict[str, Any]) -> dict[str, Any]:
            placement = {name: getattr(SAME, name) for name in PLACEMENT_FIELDS}
            return super().load(path, {**settings, **placement})

        def open(
            self, loaded: int, settings: dict[str, Any], arguments: dict[str, Any] | None = None
        ) -> dict[str, Any]:
            del arguments  # of `Llama`, which would heed them
            found = super().open(loaded, same_of(settings))
            return {**found, "effective": pretended(settings, found["effective"])}

    session.Session = Heedless  # type: ignore[misc]
    worker.main(endpoints)


def is_tie(answer: Recommendation) -> bool:
    """Whether it was compared with something, and is no faster and no slower than any of it."""
    return bool(answer.versus) and all(one.verdict is Verdict.SAME for one in answer.versus)


def versus_words(versus: Sequence[Comparison]) -> str:
    return "; ".join(
        f"{one.against} {one.verdict} {one.ratio.p50:.3f} ({one.ratio.low:.3f} to {one.ratio.high:.3f})"
        for one in versus
    )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=20)
    options.add_argument("--budget", type=float, default=40.0, metavar="SECONDS", help="of each sweep")
    asked = options.parse_args()
    if asked.runs < 1:
        options.error("1 run is the least")
    expected_s = asked.runs * (asked.budget + _OUTSIDE_S)
    print(f"{asked.runs} sweeps will take at most about {format_seconds(expected_s)}.", flush=True)
    facts, n_ties, start_s = facts_of(SAMPLE, Path()), 0, time.monotonic()
    for i in range(1, asked.runs + 1):
        try:
            report = swept(facts, SAMPLE, asked.budget, command=(sys.executable, __file__, "--worker"), fixed={})
        except OffloadTuneError as error:
            raise SystemExit(f"Sweep {i} ended without an answer: {error}") from None
        answer = report.recommendation
        if report.n_rounds < _N_ROUNDS_LEAST:
            raise SystemExit(f"Sweep {i} had time for {report.n_rounds} rounds only: allow more with --budget.")
        n_ties += is_tie(answer)
        settings = {one.trial.settings for one in report.results}
        print(
            f"{i}: {len(settings)} settings, {report.n_rounds} rounds, chose {settings_words(answer.trial.settings)}, "
            f"{'a tie' if is_tie(answer) else 'NO tie'}: {versus_words(answer.versus) or 'compared with nothing'}",
            flush=True,
        )
    took = format_seconds(time.monotonic() - start_s)
    print(f"{n_ties} of {asked.runs} sweeps over equal settings end in a tie; they took {took}.")
    return int(n_ties < TIES_LEAST_FRAC * asked.runs)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        serve(sys.argv[2:])
    else:
        sys.exit(main())
