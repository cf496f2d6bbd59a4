"""What is kept between runs: a journal for each sweep, a trend of benches, and small facts that are dear to find again.

Rejected: one SQLite file (one corruption loses every sweep, migrations in SQL); a journal can be read with `less`.
"""

from offloadtune.store.codec import FORMAT, from_json, to_json
from offloadtune.store.facts import FactFile
from offloadtune.store.home import data_dir, profiles_dir
from offloadtune.store.journal import RULER, Journal, JournalContent, SweepHeader, has_lines, read_header, read_journal
from offloadtune.store.lock import Owner, measuring_alone, owner_now
from offloadtune.store.soundness import check_settings
from offloadtune.store.trends import TREND_FORMAT, BrokenLine, TrendContent, append_run, read_runs, trend_paths

__all__ = [
    "FORMAT",
    "RULER",
    "TREND_FORMAT",
    "BrokenLine",
    "FactFile",
    "Journal",
    "JournalContent",
    "Owner",
    "SweepHeader",
    "TrendContent",
    "append_run",
    "check_settings",
    "data_dir",
    "from_json",
    "has_lines",
    "measuring_alone",
    "owner_now",
    "profiles_dir",
    "read_header",
    "read_journal",
    "read_runs",
    "to_json",
    "trend_paths",
]
