"""An answer as its target takes it, and the figures beside it: for a sweep just done and for a stored one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from offloadtune import export, search
from offloadtune.recommend import Round, counted_visits, figures
from offloadtune.records import Figures, GgufFacts, StandsFor, Target, Trial, TrialResult

_NAME_MARKS = "._-+"
"""What a file's name in a comment and on a command line holds besides letters and digits."""


def apply_text(trial: Trial, facts: GgufFacts, endpoints: Sequence[str], told: Collection[str] | None = None) -> str:
    """The Python program or the shell command that uses the settings of `trial`; `Llama` may be `told` only a few.

    The path keeps its links: the shards of a file may stand together only as links. Settings of a stand-in are for the
    real file, whose path is left to be put in; where it has fewer layers than that, for the stand-in alone.
    """
    return _text(trial, endpoints, told, *_comment_and_path(facts))


def reckoned_text(trial: Trial, real: StandsFor, depths: Sequence[int], endpoints: Sequence[str]) -> str:
    """The same for settings of a model that was not loaded itself: stand-ins with so many layers were."""
    layers = f"{' and '.join(map(str, depths))} of its {real.n_layer} layers"
    return _text(trial, endpoints, None, *_placeholder(real, f"reckoned from stand-ins with {layers}"))


def _text(trial: Trial, endpoints: Sequence[str], told: Collection[str] | None, comment: str, path: Path) -> str:
    if trial.target is Target.LLAMA_SERVER:
        return comment + export.render_command(trial.settings, path, endpoints)
    return comment + export.render_snippet(trial.settings, path, endpoints, told)


def is_like_the_real(facts: GgufFacts) -> bool:
    """Whether settings of this stand-in mean the same for the real file: n_gpu_layers counts the layers of a file."""
    return facts.stands_for is not None and facts.n_layer == facts.stands_for.n_layer


def _comment_and_path(facts: GgufFacts) -> tuple[str, Path]:
    """What stands above the text, and the file in it.

    Without quotes and brackets, which a shell that knows no comments would take for its own.
    """
    real = facts.stands_for
    if real is None:
        return "", facts.path.absolute()
    if is_like_the_real(facts):
        return _placeholder(real, "measured on a stand-in")
    share = f"{facts.n_layer} of {real.n_layer} layers"
    of = f"# measured on a stand-in of {_file_word(real.label)} {_file_word(real.quantisation)}"
    comment = f"{of}, {share}, with random weights:\n# settings for this file alone, not for the real one\n"
    return comment, facts.path.absolute()


def _placeholder(real: StandsFor, how: str) -> tuple[str, Path]:
    """A comment that says how settings of the real file were found, and what stands for its path."""
    label, quantisation = _file_word(real.label), _file_word(real.quantisation)
    path = Path("PATH_TO", f"{label}-{quantisation}.gguf")
    return (
        f"# {how} of {label} {quantisation}, with random weights:\n# put the path of your file in place of {path}\n",
        path,
    )


def _file_word(text: str) -> str:
    """A stranger's text as a word of a file's name; a comment of it cannot end early, nor name an encoding."""
    plain = "".join(one if one.isalnum() or one in _NAME_MARKS else " " for one in text[:80])
    return "-".join(plain.split()) or "unknown"


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
