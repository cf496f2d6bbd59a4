"""What a calibration makes predictions worth: at most eight runs, then points that had no say in them.

On the virtual card (an RPC server with a CPU of its own behind it), each file is calibrated as `offloadtune calibrate`
does, and then a grid of other settings, prompts and depths is measured twice in the same worker, there and back. The
machine is shared and its speed drifts, so every passage, those of the calibration too, is bracketed by an anchor: the
same file's prompt and tokens on the CPU alone, in a worker of its own. All times are divided by how slow the anchors
around them were against the first ones. Printed with the errors is the noise of the grid against itself (A/A).

Ends with 1 unless the median error, for tokens and for first tokens, is at most 6 %, or 1.5 times the A/A noise where
that is more. With --write the residuals are kept in benchmarks/data/speed_calibration.json. To be run where nothing
else runs.

    python benchmarks/speed_calibration.py [--files SmolLM2,gemma] [--quick] [--write]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from against_llama_bench import virtual_card

from offloadtune.engine import OpenedTrial, Runner, VisitPlan
from offloadtune.gguf import read_gguf
from offloadtune.pipeline.calibrating_speed import CalibratingSpeed
from offloadtune.pipeline.guarding import GuardedRunner
from offloadtune.pipeline.speed_memory import runs_of, token_s
from offloadtune.pipeline.sweeping import llama_arguments
from offloadtune.records import GgufFacts, Outcome, Settings, Target, Trial, TrialResult, Visit, Workload
from offloadtune.report import passage_words
from offloadtune.speed.checks import checked
from offloadtune.speed.design import N_PASSAGES_MOST
from offloadtune.speeds import CalibrationEvent, CalibrationRequest, PassageMeasured, Phase, RunCheck

ROOT = Path(__file__).parent.parent
FILES = ("SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf")
RESULT = ROOT / "benchmarks" / "data" / "speed_calibration.json"
HOST: dict[str, Any] = {"use_extra_bufts": False, "n_threads": 1, "n_threads_batch": 1}
"""Slower than the card, whose CPU has neither AMX nor repacked weights: the usual shape."""

N_CTX = 2560
BAR_FRAC, BAR_OF_NOISE = 0.06, 1.5
LAYERS = (0.0, 0.15, 0.4, 0.65, 0.9, 1.0)
KINDS = ((512, 256, 0), (128, 128, 768), (64, 192, 256))
"""(n_ubatch, n_prompt, depth)"""

N_STEPS, N_VISITS = 12, 3
ANCHOR = (0, 48, 8)
N_ANCHORS_FIRST = 7
BUDGET_S = 240.0
PASSAGE_S = 120.0


class Anchored(GuardedRunner):
    """A runner whose visits are timed by the anchors around them, as if the machine were always as at the beginning."""

    def __init__(self, facts: GgufFacts, anchor: OpenedTrial, endpoint: str) -> None:
        super().__init__(facts, lambda: "", endpoints=[endpoint], arguments=llama_arguments)
        self._anchor = anchor
        self._usual = self._read(N_ANCHORS_FIRST)
        self.slowness: list[float] = []

    def revisit(self, trial: Trial, plan: VisitPlan, *, timeout_s: float) -> tuple[Visit, ...] | TrialResult:
        before = self._read(1)
        visits = super().revisit(trial, plan, timeout_s=timeout_s)
        if isinstance(visits, TrialResult):
            return visits
        around = [(one + other) / 2 for one, other in zip(before, self._read(1), strict=True)]
        prompt, token = (now / usual for now, usual in zip(around, self._usual, strict=True))
        self.slowness.append(token)
        return tuple(in_usual_weather(visit, prompt, token) for visit in visits)

    def _read(self, n_visits: int) -> tuple[float, float]:
        """Seconds of the anchor's prompt and of its token."""
        visits = [self._anchor.visit(*ANCHOR, timeout_s=PASSAGE_S) for _ in range(n_visits)]
        return statistics.median(visit.ttft_s for visit in visits), statistics.median(map(token_s, visits))


def in_usual_weather(visit: Visit, prompt: float, token: float) -> Visit:
    """`visit`, made when prompts took `prompt` times as long as usual and tokens `token` times."""
    return dataclasses.replace(
        visit,
        tokenize_ns=round(visit.tokenize_ns / prompt),
        prefill_ns=round(visit.prefill_ns / prompt),
        first_sample_ns=round(visit.first_sample_ns / prompt),
        step_ns=tuple(round(step / token) for step in visit.step_ns),
        sample_ns=tuple(round(step / token) for step in visit.sample_ns),
    )


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point of the grid in one phase: what was expected of it, and what it took there and back.

    `had_say` where a run of the calibration was the same work: deeper by so little that no cache grows, say.
    """

    check: RunCheck
    had_say: bool
    there_s: float
    back_s: float

    @property
    def noise_frac(self) -> float:
        return abs(self.back_s / self.there_s - 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", default="", help="parts of the files' names; default: all")
    parser.add_argument("--quick", action="store_true", help="three points a file: whether it works, not what it shows")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.relative_to(ROOT)}")
    options = parser.parse_args()
    wanted = [name for name in FILES if any(part.lower() in name.lower() for part in options.files.split(","))]
    results = {}
    for name in wanted:
        results[name] = measure(ROOT / "gguf_models" / name, is_quick=options.quick)
        if options.write:
            kept = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.is_file() else {}
            RESULT.write_text(json.dumps({**kept, name: results[name]}, indent=1) + "\n", encoding="utf-8")
    return 0 if results and all(one["is_met"] for one in results.values()) else 1


def measure(path: Path, *, is_quick: bool) -> dict[str, Any]:
    """Calibrate with a file, measure its grid, and print both."""
    print(f"\n{path.name}", flush=True)
    facts = read_gguf(path)
    anchor_settings = Settings(devices=(), n_ctx=512, flash_attn_type="enabled", **{**HOST, "n_threads": 2})
    anchor_trial = Trial(settings=anchor_settings, target=Target.LLAMA_SERVER, why="the anchor")
    with (
        virtual_card(2) as endpoint,
        Runner(path) as anchor_runner,
        anchor_runner.opened(anchor_trial, timeout_s=3600.0) as anchor,
        Anchored(facts, anchor, endpoint) as runner,
    ):
        request = CalibrationRequest(path=path, budget_s=BUDGET_S, endpoints=(endpoint,), fixed=HOST, is_fresh=True)
        calibrating = CalibratingSpeed(request, facts, N_CTX, runner, show)
        calibrating.measure()
        report = calibrating.report()
        for one in (*report.words, *report.failures):
            print(f"  {one}")
        points = measured_grid(calibrating, runner, grid_of(facts, calibrating.settings)[:: 4 if is_quick else 1])
        weather = (min(runner.slowness), max(runner.slowness))
    print(f"  anchors: between {weather[0]:.2f} and {weather[1]:.2f} times as slow as at the beginning, divided out")
    verdicts = [judged(points, phase) for phase in Phase]
    return {
        "n_runs": report.n_passages,
        "n_loads": report.n_loads,
        "duration_s": report.duration_s,
        "is_met": all(one["is_met"] for one in verdicts) and report.n_passages <= N_PASSAGES_MOST,
        "weather": [round(one, 3) for one in weather],
        "figures": {phase.value: one for phase, one in zip(Phase, verdicts, strict=True)},
        "points": [row(one.check, one.there_s, one.back_s) for one in points if not one.had_say],
        "left_out_one_by_one": [row(one) for one in report.checks],
        "coefficients": [dataclasses.asdict(one) for one in report.coefficients],
    }


def show(event: CalibrationEvent) -> None:
    print(f"  {passage_words(event) if isinstance(event, PassageMeasured) else event.text}", flush=True)


def grid_of(facts: GgufFacts, settings: Settings) -> list[tuple[Settings, Workload]]:
    """Points over n_gpu_layers, n_ubatch and depth; each placement has two of the three kinds."""
    found = []
    for i, part in enumerate(LAYERS):
        for j in range(2):
            n_ubatch, n_prompt, depth = KINDS[(i + j) % len(KINDS)]
            workload = Workload(name="", n_prefix_cached=depth, n_prompt_new=n_prompt, n_gen=N_STEPS + 1)
            n_gpu_layers = round(part * (facts.n_layer + 1))
            found.append((settings.replace(n_gpu_layers=n_gpu_layers, n_ubatch=n_ubatch), workload))
    return found


def measured_grid(
    calibrating: CalibratingSpeed, runner: Anchored, grid: Sequence[tuple[Settings, Workload]]
) -> list[Point]:
    """The grid there and back, against the laws as the calibration left them."""
    laws = calibrating.memory.laws(calibrating.settings)
    found: dict[tuple[Settings, Workload], list[TrialResult]] = {one: [] for one in grid}
    for settings, workload in (*grid, *reversed(grid)):
        trial = Trial(settings=settings, target=Target.LLAMA_CPP_PYTHON, why="a point of the grid")
        plan = VisitPlan(workload=workload, n_steps=N_STEPS, n_visits=N_VISITS)
        visits = runner.revisit(trial, plan, timeout_s=PASSAGE_S)
        if isinstance(visits, TrialResult):
            raise SystemExit(f"A point of the grid ended: {visits.reason}.")
        result = TrialResult(trial=trial, outcome=Outcome.OK, reason="", visits=visits)
        found[settings, workload].append(result)
    points = []
    for there, back in found.values():
        both = dataclasses.replace(there, visits=there.visits + back.visits)
        runs = (runs_of(calibrating.facts, laws, one) for one in (both, there, back))
        for whole, one, other in zip(*runs, strict=True):
            law = laws.of(whole.phase)
            had_say = any(whole.amounts == run.amounts for run in law.runs)
            points.append(Point(check=checked(law, whole), had_say=had_say, there_s=one.seconds, back_s=other.seconds))
    return points


def judged(points: Sequence[Point], phase: Phase) -> dict[str, Any]:
    """Print the points of a phase with their errors, and tell whether the bar was met."""
    of_phase = [one for one in points if one.check.phase is phase]
    print(f"  {phase.value:<58} {'took':>9} {'expected':>9} {'off':>7} {'A/A':>6}")
    for one in of_phase:
        check, remark = one.check, "  outside its range" if one.check.is_miss else ""
        remark = "  had a say" if one.had_say else remark
        times = f"{check.measured_s * 1e3:>6.1f} ms {check.expected_s * 1e3:>6.1f} ms"
        print(f"    {check.label:<56} {times} {check.off_frac:>+7.1%} {one.noise_frac:>6.1%}{remark}")
    of_phase = [one for one in of_phase if not one.had_say]
    off = statistics.median(abs(one.check.off_frac) for one in of_phase)
    noise = statistics.median(one.noise_frac for one in of_phase)
    n_inside = sum(not one.check.is_miss for one in of_phase)
    bar = max(BAR_FRAC, BAR_OF_NOISE * noise)
    print(
        f"  {phase.value}: median error {off:.1%} of {len(of_phase)} points, A/A noise {noise:.1%}, bar {bar:.1%}; "
        f"{n_inside} inside their range{'' if off <= bar else '   MISSED'}",
        flush=True,
    )
    return {
        "median_error_frac": round(off, 4),
        "aa_noise_frac": round(noise, 4),
        "bar_frac": round(bar, 4),
        "n_points": len(of_phase),
        "n_inside": n_inside,
        "is_met": off <= bar,
    }


def row(check: RunCheck, *there_and_back_s: float) -> dict[str, Any]:
    """A line of the table of residuals."""
    value: dict[str, Any] = {name: rounded(one) for name, one in dataclasses.asdict(check).items()}
    return {**value, "off_frac": round(check.off_frac, 4), "there_and_back_s": [*map(rounded, there_and_back_s)]}


def rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["OFFLOADTUNE_HOME"] = home  # what is learnt here is of no use to anyone's next sweep
        os.chdir(home)
        sys.exit(main())
