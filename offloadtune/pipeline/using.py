"""Using what is stored: the answer again, its settings as text, and the target's own server started with them."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from offloadtune import catalogue, export, search, serve, store
from offloadtune.errors import UnknownNameError, UsageError
from offloadtune.gguf import read_gguf
from offloadtune.pipeline.recalling import Recalled, recall
from offloadtune.pipeline.rendering import apply_text, baseline_figures, is_like_the_real
from offloadtune.pipeline.speed_memory import SpeedMemory
from offloadtune.pipeline.summing import summarise
from offloadtune.recalls import JournalSummary, Question, RecallReport
from offloadtune.recommend import explain, pareto_front
from offloadtune.records import GgufFacts, StandsFor, Target
from offloadtune.report.words import printable
from offloadtune.sweeps import Explanation, Front, Listener, Said

_GGUF_MAGIC = b"GGUF"


def recommend_stored(question: Question, listen: Listener) -> RecallReport:
    """The stored answer to the question. Raises GgufError, NotMeasuredError, ExportError."""
    recalled = recall(question, listen)
    answer, header, path = recalled.answer, recalled.stored.header, recalled.facts.path
    by_settings = {result.trial.settings: result for result in recalled.results}
    front, explanation = _around(recalled)
    return RecallReport(
        path=path,
        gguf_id=header.gguf_id,
        recommendation=answer,
        baselines=baseline_figures(recalled.space, recalled.results, recalled.rounds),
        skipped=search.skipped(recalled.space),
        n_steps=max(len(visit.step_ns) for visit in by_settings[answer.trial.settings].visits),
        apply_text=apply_text(answer.trial, recalled.facts, header.endpoints),
        rests_on=_basis(recalled),
        notes=recalled.notes,
        n_layer=recalled.facts.n_layer,
        stands_for=recalled.facts.stands_for,
        front=front,
        explanation=explanation,
    )


def _around(recalled: Recalled) -> tuple[Front, Explanation]:
    """What else could be had, and why the answer won, by what runs here have shown of the machine's speed."""
    header, measured = recalled.stored.header, (recalled.results, recalled.rounds, recalled.answer)
    speeds = SpeedMemory(recalled.facts, header.machine, header.engine)
    try:
        front = pareto_front(recalled.space, *measured)
        return front, explain(dataclasses.replace(recalled.space, laws=speeds.laws), *measured)
    except Exception:  # noqa: BLE001 - whatever stands in a file that somebody else may have written
        return Front(), Explanation(unknown="some of the stored figures do not go together")


def export_stored(question: Question, of: str | None, listen: Listener, *, may_be_standin: bool = False) -> str:
    """The recommended settings as their target takes them, or those of the baseline named `of`, as it was told them.

    `may_be_standin`: those of a stand-in are wanted for the real file. Raises GgufError, NotMeasuredError, UsageError,
    ExportError.
    """
    facts = read_gguf(question.path, identify=False)
    if facts.stands_for and not (may_be_standin and is_like_the_real(facts)):
        raise _standin_refused(facts)
    recalled = _recall_and_tell(question, listen)
    trial, told = recalled.answer.trial, None
    if of is not None:
        baselines = search.baseline_trials(recalled.space)
        if of not in baselines:
            hint = f"use one of {', '.join(baselines)}, or leave --of out"
            raise UsageError(f"--of {of!r} is no baseline.", hint=hint)
        trial, told = baselines[of], baselines[of].told
    return apply_text(trial, recalled.facts, recalled.stored.header.endpoints, told)


def write_export(path: Path, text: str, listen: Listener) -> None:
    """Write an exported text and say where, never over a model file. Raises UsageError, ExportError."""
    if _is_gguf(path):
        hint = "name another file after --output: it is where the settings are written to"
        raise UsageError(f"--output {path} is a GGUF model file and stays as it is.", hint=hint)
    export.write_text(path, text)
    listen(Said(text=f"Written to {path}."))


def server_command(question: Question, extra: Sequence[str], listen: Listener) -> list[str]:
    """The words that start the target's own server with the stored recommendation, `extra` at their end.

    What the words alone cannot say stands in a program written beside the profile. A stand-in is not served. Raises
    GgufError, NotMeasuredError, UsageError, ExportError.
    """
    facts = read_gguf(question.path, identify=False)
    if facts.stands_for:
        raise _standin_refused(facts)
    recalled = _recall_and_tell(question, listen)
    settings, path = recalled.answer.trial.settings, recalled.facts.path.absolute()
    endpoints = recalled.stored.header.endpoints
    if recalled.answer.trial.target is Target.LLAMA_SERVER:
        return [*export.llama_server_words(settings, path, endpoints), *extra]
    program = export.render_server_program(settings, path, endpoints)
    if program is None:
        return [sys.executable, "-m", "llama_cpp.server", *export.llama_cpp_server_words(settings, path), *extra]
    return [sys.executable, str(_written(program, recalled)), *extra]


def serve_stored(command: Sequence[str]) -> int:
    """Become what `server_command` named; the exit code on Windows. Raises EngineError, EngineMissingError."""
    return serve.run_server(command)


def _standin_refused(facts: GgufFacts) -> UsageError:
    """Its settings go to nobody unasked, and to the real file only where they mean the same there."""
    what = f"{facts.path} is a {printable(facts.standin_words)}"
    if facts.stands_for and not is_like_the_real(facts):
        sentence = f"{what}: its settings are not those of the whole model."
        return UsageError(sentence, hint=_whole_hint(facts.stands_for))
    hint = f"print them for that one: offloadtune export {shlex.quote(str(facts.path))} --yes"
    return UsageError(f"{what}: what it writes means nothing, and its settings are for the real file.", hint=hint)


def _whole_hint(real: StandsFor) -> str:
    """How settings for the whole model are found; by its name where the catalogue has it."""
    try:
        shape, quant = catalogue.find_shape(real.label), catalogue.find_quant(real.quantisation)
    except UnknownNameError:
        return "write a stand-in with all layers, offloadtune standin without --layers, and sweep that"
    words = ["offloadtune", "sweep", "--standin", shape.label, "--quant", quant.name]
    return f"measure for the whole: {shlex.join(words)}"


def _recall_and_tell(question: Question, listen: Listener) -> Recalled:
    """The answer; what it rests on and what is to be known of it is said."""
    recalled = recall(question, listen)
    for text in (_basis(recalled).basis_words, *recalled.notes):
        listen(Said(text=text))
    return recalled


def _basis(recalled: Recalled) -> JournalSummary:
    """The sweep behind the answer, with the rounds that speak to the question."""
    return dataclasses.replace(summarise(recalled.stored), n_rounds=len(recalled.rounds))


def _is_gguf(path: Path) -> bool:
    """Whether a model file stands there, or a shard of one. A pipe is not asked: that would take what it holds."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            return stream.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
    except (OSError, ValueError):  # then it cannot be written either, and the writer says why
        return False


def _written(program: str, recalled: Recalled) -> Path:
    folder = (store.profiles_dir() / recalled.stored.header.machine_id).absolute()
    path = folder / f"{recalled.facts.path.stem}.llama_cpp_python_server.py"
    export.write_text(path, program)
    return path
