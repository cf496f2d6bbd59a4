"""Records as text for people (rich tables) and for programs (JSON values). Writes nothing itself."""

from offloadtune.report.benches import bench_json, bench_view, visit_words
from offloadtune.report.doctor import doctor_json, doctor_view, finding_words
from offloadtune.report.json_values import history_json, inspect_json, recall_json, sweep_json
from offloadtune.report.listing import listing_json, listing_view
from offloadtune.report.machine import probe_json, probe_view
from offloadtune.report.plans import plan_line_json, plan_report_json, plan_view
from offloadtune.report.speeds import calibration_json, calibration_view, passage_words
from offloadtune.report.standin_sweeps import standin_sweep_json, standin_sweep_view
from offloadtune.report.standins import standin_json, standin_view
from offloadtune.report.stored import history_view, recall_view
from offloadtune.report.terminal import headline, inspect_view, sweep_view
from offloadtune.report.trends import (
    checks_json,
    checks_view,
    imported_json,
    imported_view,
    regression_words,
    trends_json,
    trends_view,
)
from offloadtune.report.workloads import workload_json, workload_view

__all__ = [
    "bench_json",
    "bench_view",
    "calibration_json",
    "calibration_view",
    "checks_json",
    "checks_view",
    "doctor_json",
    "doctor_view",
    "finding_words",
    "headline",
    "history_json",
    "history_view",
    "imported_json",
    "imported_view",
    "inspect_json",
    "inspect_view",
    "listing_json",
    "listing_view",
    "passage_words",
    "plan_line_json",
    "plan_report_json",
    "plan_view",
    "probe_json",
    "probe_view",
    "recall_json",
    "recall_view",
    "regression_words",
    "standin_json",
    "standin_sweep_json",
    "standin_sweep_view",
    "standin_view",
    "sweep_json",
    "sweep_view",
    "trends_json",
    "trends_view",
    "visit_words",
    "workload_json",
    "workload_view",
]
