"""Trending: runs of a bench are kept, and shown and checked against those before them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from offloadtune import store
from offloadtune.bench import trend
from offloadtune.bench.changes import changes
from offloadtune.benches import BenchRun
from offloadtune.engine import installed_build_id
from offloadtune.errors import StoreError
from offloadtune.gguf import read_gguf
from offloadtune.pipeline.journals import headers
from offloadtune.pipeline.likeness import Here
from offloadtune.pipeline.staling import stale_profiles
from offloadtune.probe import probe_host
from offloadtune.trends import BrokenTrend, Trend, TrendCheck, TrendReport, TrendRow


def keep_run(run: BenchRun) -> Path:
    """Append a run to the trend; its file, once it is on disk. Raises StoreError."""
    return store.append_run(store.data_dir(), run)


def trends(path: Path | None) -> TrendReport:
    """All trends, those of this machine and then the newest first, or those of the file at `path`; and stale profiles.

    Raises GgufError, ProbeError.
    """
    is_wanted = _wanted(path)
    groups, broken = _read(is_wanted)
    places = {path.absolute(), path.resolve()} if path else None
    swept = [header for header in headers() if places is None or header.gguf_path in places]
    if not groups and not swept:
        return TrendReport(trends=(), broken=broken, stale=())
    here = _here()
    found = [_trend(runs, is_here=here.is_in(runs[-1].machine.host)) for runs in groups]
    return TrendReport(
        trends=tuple(sorted(found, key=lambda one: not one.is_here)),
        broken=broken,
        stale=tuple(stale_profiles(swept, here)),
    )


def check_trends(path: Path | None) -> tuple[TrendCheck, ...]:
    """The newest run of every trend of this machine, or of the file at `path`, against those before it.

    Raises GgufError, ProbeError.
    """
    groups, broken = _read(_wanted(path))
    here = _here() if groups else None
    return tuple(_check(runs, broken) for runs in groups if here and here.is_in(runs[-1].machine.host))


def _check(runs: Sequence[BenchRun], broken: Sequence[BrokenTrend]) -> TrendCheck:
    """The check, which tells of lines that cannot be read: the newest run may be among them."""
    found = trend.check(runs)
    names = {(run.machine.machine_id, run.gguf_id) for run in runs}
    told = [one.reasons[0] for one in broken if (one.path.parent.name, one.path.stem) in names]
    return dataclasses.replace(found, warnings=(*found.warnings, *told))


def _here() -> Here:
    return Here(host=probe_host(measure=False), build_id=installed_build_id())


def _wanted(path: Path | None) -> Callable[[BenchRun], bool]:
    """Whether a run is of the file at `path`; one that is gone is known by its name."""
    if path is None:
        return lambda _run: True
    if not path.exists():
        return lambda run: run.gguf_path.name == path.name
    gguf_id, places = read_gguf(path).gguf_id, {path.absolute(), path.resolve()}
    return lambda run: run.gguf_id == gguf_id or run.gguf_path in places


def _read(is_wanted: Callable[[BenchRun], bool]) -> tuple[list[tuple[BenchRun, ...]], tuple[BrokenTrend, ...]]:
    """Runs by trend, each the oldest first, trends by their newest run; and the files with lines that are no runs.

    What is broken is told whatever was asked for: it may be of any file.
    """
    runs: list[BenchRun] = []
    broken = []
    for path in store.trend_paths(store.data_dir()):
        try:
            content = store.read_runs(path)
        except StoreError as error:
            broken.append(BrokenTrend(path=path, reasons=(str(error),)))
            continue
        runs += content.runs
        if content.broken:
            broken.append(BrokenTrend(path=path, reasons=tuple(line.reason for line in content.broken)))
    groups = trend.series(sorted(runs, key=_started_at))
    wanted = [group for group in groups if any(map(is_wanted, group))]
    return sorted(wanted, key=lambda group: _started_at(group[-1]), reverse=True), tuple(broken)


def _started_at(run: BenchRun) -> datetime:
    return datetime.fromisoformat(run.started_at)


def _trend(runs: Sequence[BenchRun], *, is_here: bool) -> Trend:
    usual = trend.usual_anchor(runs)
    figures = [trend.run_figures(run, usual) for run in runs]
    changed = [(), *(changes(before, after) for before, after in itertools.pairwise(runs))]
    rows = [
        TrendRow(run=run, figures=some, changes=what) for run, some, what in zip(runs, figures, changed, strict=True)
    ]
    return Trend(
        gguf_path=runs[-1].gguf_path,
        machine_id=runs[-1].machine.machine_id,
        is_here=is_here,
        rows=tuple(reversed(rows)),
        sparks=trend.sparks([some for run, some in zip(runs, figures, strict=True) if run.script == runs[-1].script]),
    )
