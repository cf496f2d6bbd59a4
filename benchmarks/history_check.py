"""`offloadtune history --check` on real runs: quiet on twenty unchanged ones, and it finds a slowdown that was planted.

Twenty-five runs of a short script (what fits into a small context) are made one after the other, and each from the
sixth on is checked against those before it. Then the worker is slowed by a duty cycle, by twice the largest minimum
detectable change that the last check printed, and one more run must be called slower.

Ends with 1 unless it is, and every unchanged run was not.

    python benchmarks/history_check.py [seconds a run, 12 unless said]
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from offloadtune import pipeline
from offloadtune.benches import BenchRequest
from offloadtune.report import regression_words

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "gguf_models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
N_EARLIER, N_UNCHANGED = 5, 20
N_CTX = 768


def main(budget_s: float) -> int:
    """Run and judge; the exit code."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["OFFLOADTUNE_HOME"] = home
        os.chdir(home)
        return judge(budget_s)


def judge(budget_s: float) -> int:
    """Unchanged runs, then a slowed one."""
    n_alarms = 0
    print(f"{'run':>4}  {'anchor':>8}  {'ttft 512':>9}  {'decode at 0':>11}  judged by, limit, detectable, verdict")
    for i in range(N_EARLIER + N_UNCHANGED):
        one(budget_s)
        n_alarms += report(str(i + 1))
    (check,) = pipeline.check_trends(None)
    detectable = max(figure.detectable_frac or 0 for figure in check.figures)
    slowdown = 1 + 2 * detectable
    print(f"minimum detectable change printed: {detectable:.1%}; the worker is slowed {slowdown:.2f} times")
    one(budget_s * max(1.0, slowdown), (sys.executable, str(ROOT / "tests/slowed_worker.py"), f"{1 / slowdown:.4f}"))
    is_found = report("slow")
    print(f"false alarms: {n_alarms} of {N_UNCHANGED}; the planted slowdown was {'' if is_found else 'not '}found")
    return 0 if is_found and n_alarms == 0 else 1


def one(budget_s: float, worker_command: tuple[str, ...] = ()) -> None:
    """A run of the script, kept."""
    request = BenchRequest(path=MODEL, n_ctx=N_CTX, budget_s=budget_s, worker_command=worker_command)
    pipeline.bench_file(request, lambda _event: None)


def report(name: str) -> bool:
    """A line on the newest run; whether it was called slower."""
    (check,) = pipeline.check_trends(None)
    row = pipeline.trends(None).trends[0].rows[0]
    anchors = sorted(visit.anchor.multiply_ns for visit in row.run.visits if visit.anchor)
    seconds = [figure.raw_s for figure in row.figures if figure.raw_s is not None and figure.quantile_frac == 0.5]
    judged = [
        f"{figure.name}: {'normalised' if figure.is_normalised else 'raw'} {figure.change_frac or 0:+.1%} "
        f"(limit {figure.limit_frac or 0:.0%}, detectable {figure.detectable_frac or 0:.0%}) {figure.verdict or '-'}"
        for figure in check.figures
    ]
    words = regression_words((check,))
    numbers = "  ".join(f"{value * 1e3:9.1f}" for value in seconds)
    print(f"{name:>4}  {anchors[len(anchors) // 2] / 1e6:8.2f}  {numbers}  {'; '.join(judged)}{check.warnings or ''}")
    return bool(words)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 12.0))
