"""What a joint search is worth beside llama.cpp's own --fit rule, with the real engine on virtual cards.

The rule is asked in the engine itself, with the memory that is truly free, its margin of 1 GiB as it is. Cards are of
four sizes for each of two files: room for half the layers and for all of them, each with and without the margin
beside it. On each of them a sweep searches, and what it recommends is then visited side by side with the rule's
answer, the front end's defaults and the CPU alone. All cards are shown, those where the rule is as good too.

Ends with 1 unless on one of them, where all layers on the card are quicker than the CPU alone, the sweep's answer saves
20 % of the turn that the rule's takes, by the whole interval.

    python benchmarks/search_against_fit.py               shows what is recorded in data/search_against_fit.json
    python benchmarks/search_against_fit.py --measure     measures all cards, half an hour, where nothing else runs
    python benchmarks/search_against_fit.py --measure --only smollm2:all
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from search_cases import (
    CHOSEN,
    HOST,
    MIB,
    QUICK_WORKLOAD,
    SAMPLES,
    TARGET,
    Sample,
    card_bytes_of,
    needed_bytes,
    settings_words,
)
from search_measuring import (
    N_CARD_THREADS,
    SideFailedError,
    about,
    facts_of,
    read_rows,
    record_row,
    runner_of,
    side_by_side,
    swept,
    turns,
    virtual_card,
)

from offloadtune import search, stats
from offloadtune.errors import OffloadTuneError
from offloadtune.probe import probe_host
from offloadtune.records import GgufFacts, Goal, Settings, Visit
from offloadtune.report.words import printable
from offloadtune.units import format_seconds

RESULT = Path(__file__).parent / "data" / "search_against_fit.json"
CARDS = {
    "half": (0.5, 0),
    "all": (1.0, 0),
    "margin+half": (0.5, search.FIT_MARGIN_BYTES),
    "margin+all": (1.0, search.FIT_MARGIN_BYTES),
}
"""Share of the layers, and what the card has beside them."""

NAMES = tuple(f"{name}:{card}" for name in ("smollm2", "mixture") for card in CARDS)
SAVED_LEAST_FRAC = 0.2
FIT, CPU_ONLY, WHOLE = "fit", "cpu_only", "all layers"
N_ROUNDS, BUDGET_S = 15, 60.0
_N_QUICK_ROUNDS, _QUICK_BUDGET_S = 2, 90.0
_N_SIDES = 5
_ASK_S = 60.0
_OPEN_S = 0.1


def sides_of(
    facts: GgufFacts, sample: Sample, card_bytes: int, chosen: Settings, n_fit_layers: int | None
) -> dict[str, Settings]:
    """The sweep's answer and its baselines; all layers too where they fit, which shows what the card is worth."""
    cpu = probe_host().cpu
    space = search.Space(
        facts=facts,
        workload=sample.workload,
        goal=Goal.TURN,
        target=TARGET,
        n_ctx=sample.n_ctx,
        device_bytes=card_bytes,
        limit_bytes=None,
        n_physical_cores=cpu.n_physical_cores or cpu.n_logical_cores,
        n_logical_cores=cpu.n_logical_cores,
        n_os_cpus=cpu.n_logical_cores,
        fixed=HOST,
        n_fit_layers=n_fit_layers,
        lists_devices=True,
    )
    sides = {CHOSEN: chosen} | {name: one.settings for name, one in search.baseline_trials(space).items()}
    whole = sample.base.replace(n_gpu_layers=space.everything)
    return {**sides, WHOLE: whole} if needed_bytes(facts, whole) <= card_bytes else sides


def measure(name: str, facts: GgufFacts, chance: random.Random, *, is_quick: bool) -> dict[str, Any]:
    """One card, as the row that is recorded; with "failure" where there is nothing to compare."""
    sample, (share, beside_bytes) = SAMPLES[name.partition(":")[0]], CARDS[name.partition(":")[2]]
    card_bytes = card_bytes_of(facts, sample, share) + beside_bytes
    row: dict[str, Any] = {"card_bytes": card_bytes, "file_bytes": facts.file_bytes}
    budget_s, n_rounds, n_card_threads = BUDGET_S, N_ROUNDS, N_CARD_THREADS
    if is_quick:  # one thread bears company
        budget_s, n_rounds, n_card_threads = _QUICK_BUDGET_S, _N_QUICK_ROUNDS, 1
        sample = dataclasses.replace(sample, workload=QUICK_WORKLOAD)
    with virtual_card(card_bytes, n_card_threads) as endpoint:
        with runner_of(facts, [endpoint]) as runner:
            n_fit_layers, is_whole = runner.fit_layers(sample.base, search.FIT_MARGIN_BYTES, timeout_s=_ASK_S)
        try:
            report = swept(facts, sample, budget_s, endpoints=[endpoint])
            chosen = report.recommendation.trial.settings
            sides = sides_of(facts, sample, card_bytes, chosen, n_fit_layers if is_whole else None)
            with runner_of(facts, [endpoint]) as runner:
                visits = side_by_side(dict.fromkeys(sides, runner), sides, sample.plan(1), n_rounds, chance)
        except (OffloadTuneError, SideFailedError) as error:
            return {**row, "failure": printable(str(error))}
    n_gen = sample.workload.n_gen
    turns_s = turns(visits, sample.workload)
    return {
        **row,
        "fit_is_estimate": n_fit_layers is None or not is_whole,
        "n_trials": len(report.results),
        "sides": {side: columns_of(sides[side], visits[side], n_gen) for side in sides},
        "chosen_to_fit": dataclasses.asdict(stats.paired_ratio(turns_s[FIT], turns_s[CHOSEN])),
    }


def columns_of(settings: Settings, visits: Sequence[Visit], n_gen: int) -> dict[str, Any]:
    """What a side is, and its medians."""
    return {
        "settings": settings_words(settings),
        "turn_s": round(statistics.median(one.turn_s(n_gen) for one in visits), 4),
        "ttft_s": round(statistics.median(one.ttft_s for one in visits), 4),
        "tok_per_s": round(1 / statistics.median(one.token_s for one in visits), 2),
    }


def expected_s(name: str) -> float:
    """What a card takes where nothing else runs."""
    sample = SAMPLES[name.partition(":")[0]]
    return BUDGET_S + N_ROUNDS * _N_SIDES * (sample.load_s + _OPEN_S + 2 * sample.turn_s)


# --- telling ---------------------------------------------------------------------------------------------------------


def shows_it(row: Mapping[str, Any]) -> bool:
    """Whether the card is worth something, and the sweep's answer surely that much quicker than the rule's."""
    sides = row.get("sides", {})
    if WHOLE not in sides or sides[WHOLE]["turn_s"] >= sides[CPU_ONLY]["turn_s"]:
        return False
    is_sure: bool = row["chosen_to_fit"]["high"] <= 1 - SAVED_LEAST_FRAC
    return is_sure


def table(rows: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    """A line a card, and one for each side."""
    for name in sorted(rows, key=NAMES.index):
        row = rows[name]
        card = f"{name:<20} {row['card_bytes'] / MIB:>5.0f} MiB for a file of {row['file_bytes'] / MIB:.0f}"
        if "failure" in row:
            yield f"{card}: {row['failure']}"
            continue
        ratio = row["chosen_to_fit"]
        verdict = "   SHOWS IT" if shows_it(row) else ""
        yield f"{card}: chosen / fit {ratio['p50']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f}){verdict}"
        for side, one in row["sides"].items():
            remark = " (its layers as we estimate them)" if side == FIT and row["fit_is_estimate"] else ""
            figures = f"turn {one['turn_s']:.3f} s, ttft {one['ttft_s']:.3f} s, {one['tok_per_s']:.1f} tok/s"
            yield f"    {side:<11} {figures}  {one['settings']}{remark}"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--measure", action="store_true", help="measure and record")
    options.add_argument("--only", action="append", choices=NAMES, metavar="FILE:CARD", help="one card; again for more")
    options.add_argument("--quick", action="store_true", help="two rounds: whether it works, not what it shows")
    options.add_argument("--seed", type=int, default=1)
    asked = options.parse_args()
    wanted = tuple(asked.only or NAMES)
    if asked.measure or asked.quick:
        rows = measured_rows(wanted, seed=asked.seed, is_quick=asked.quick)
    elif recorded := read_rows(RESULT):
        print("; ".join(recorded["about"].values()))
        rows = {name: row for name, row in recorded["cases"].items() if name in wanted}
    else:
        print(f"Nothing is recorded in {RESULT}: --measure records it.")
        return 0
    print("\n".join(table(rows)))
    n_shown = sum(map(shows_it, rows.values()))
    print(f"The sweep saves {SAVED_LEAST_FRAC:.0%} and more of the turn by the rule on {n_shown} of {len(rows)} cards.")
    return int(n_shown == 0)


def measured_rows(wanted: Sequence[str], *, seed: int, is_quick: bool) -> dict[str, Any]:
    """Each card is recorded as it is measured; quick ones are not."""
    rows: dict[str, Any] = {}
    all_s = format_seconds(sum(map(expected_s, wanted)))
    print(f"{len(wanted)} cards will take about {all_s} where nothing else runs.", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        where = about(facts_of(SAMPLES["smollm2"], Path(folder)))
        for name in wanted:
            start_s, chance = time.monotonic(), random.Random(f"{seed} {name}")  # noqa: S311 - no secret
            facts = facts_of(SAMPLES[name.partition(":")[0]], Path(folder))
            rows[name] = measure(name, facts, chance, is_quick=is_quick)
            if not is_quick:
                record_row(RESULT, where, name, rows[name])
            print(f"{name} took {format_seconds(time.monotonic() - start_s)}", flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
