"""An answer as its target takes it, and the figures beside it: for a sweep just done and for a stored one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from offloadtune import export, search
from offloadtune.recommend import Round, counted_visits, figures
from offloadtune.records import Figures, Target, Trial, TrialResult


def apply_text(trial: Trial, path: Path, endpoints: Sequence[str], told: Collection[str] | None = None) -> str:
    """The Python program or the shell command that uses the settings of `trial`; `Llama` may be `told` only a few.

    The path keeps its links: the shards of a file may stand together only as links.
    """
    if trial.target is Target.LLAMA_SERVER:
        return export.render_command(trial.settings, path.absolute(), endpoints)
    return export.render_snippet(trial.settings, path.absolute(), endpoints, told)


def baseline_figures(
    space: search.Space, results: Sequence[TrialResult], rounds: Sequence[Round]
) -> dict[str, Figures]:
    """Figures of the baselines that ran, by name."""
    by_settings = {result.trial.settings: result for result in results if search.is_feasible(result, None)}
    return {
        name: figures(counted_visits(by_settings[trial.settings], rounds), space.workload)
        for name, trial in search.baseline_trials(space).items()
        if trial.settings in by_settings
    }
