"""What is kept between runs: journals, trends of benches, llama-bench's rows, machines and speeds, facts dear to find.

Rejected: one SQLite file (one corruption loses every sweep, migrations in SQL); a journal can be read with `less`.
"""

from offloadtune.store.codec import FORMAT, from_json, to_json
from offloadtune.store.facts import FactFile
from offloadtune.store.home import data_dir, profiles_dir, standins_dir
from offloadtune.store.journal import RULER, Journal, JournalContent, SweepHeader, has_lines, read_header, read_journal
from offloadtune.store.lock import Owner, measuring_alone, owner_now
from offloadtune.store.machines import (
    MACHINE_FORMAT,
    at_rest,
    machine_path,
    previous_path,
    read_machine,
    render_machine,
    with_figures_of,
)
from offloadtune.store.rows import StoredRows, append_rows, keep_imported, machine_of, read_stored_rows
from offloadtune.store.soundness import check_settings
from offloadtune.store.speeds import (
    N_RUNS_KEPT,
    SPEED_FORMAT,
    KeptRun,
    RunKind,
    SpeedMaker,
    keep_runs,
    maker_of,
    merged,
    read_speeds,
    speed_path,
)
from offloadtune.store.trends import TREND_FORMAT, BrokenLine, TrendContent, append_run, read_runs, trend_paths

__all__ = [
    "FORMAT",
    "MACHINE_FORMAT",
    "N_RUNS_KEPT",
    "RULER",
    "SPEED_FORMAT",
    "TREND_FORMAT",
    "BrokenLine",
    "FactFile",
    "Journal",
    "JournalContent",
    "KeptRun",
    "Owner",
    "RunKind",
    "SpeedMaker",
    "StoredRows",
    "SweepHeader",
    "TrendContent",
    "append_rows",
    "append_run",
    "at_rest",
    "check_settings",
    "data_dir",
    "from_json",
    "has_lines",
    "keep_imported",
    "keep_runs",
    "machine_of",
    "machine_path",
    "maker_of",
    "measuring_alone",
    "merged",
    "owner_now",
    "previous_path",
    "profiles_dir",
    "read_header",
    "read_journal",
    "read_machine",
    "read_runs",
    "read_speeds",
    "read_stored_rows",
    "render_machine",
    "speed_path",
    "standins_dir",
    "to_json",
    "trend_paths",
    "with_figures_of",
]
