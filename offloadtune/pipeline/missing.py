"""What is missing: the sentence that says why nothing stored answers, and the command that measures it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from offloadtune import store
from offloadtune.errors import NotMeasuredError
from offloadtune.footprint import pad_256
from offloadtune.pipeline.checking import check
from offloadtune.pipeline.journals import StoredSweep, headers, last_results
from offloadtune.pipeline.likeness import Here, Unlike
from offloadtune.recalls import Question, UnreadableJournal
from offloadtune.records import WORKLOADS, GgufFacts, Target, Workload
from offloadtune.sweeps import SweepRequest
from offloadtune.units import format_count


def not_measured(
    question: Question,
    facts: GgufFacts,
    of_file: Sequence[StoredSweep],
    unreadable: Sequence[UnreadableJournal],
    here: Here,
) -> NotMeasuredError:
    """Why none of `of_file`, all that is stored of it, answers. Raises what a sweep would refuse the question with."""
    workload, target = question.workload or WORKLOADS["chat"], question.target or Target.LLAMA_CPP_PYTHON
    request = SweepRequest(path=question.path, workload=workload, budget_s=0, target=target, n_ctx=question.n_ctx)
    check(request, facts)
    options = [*_asked(question), *([f"--goal {question.goal}"] if question.goal else [])]
    command = " ".join([shlex.join(["offloadtune", "sweep", str(question.path)]), *options])
    damaged = [one for one in unreadable if one.gguf_id == facts.gguf_id]
    if damaged and not of_file:
        message = f"What was measured of {facts.path.name} cannot be read: {damaged[0].reason}"
        return NotMeasuredError(message, hint=f"move that file away and measure it again: {command}")
    return NotMeasuredError(_why(question, facts, of_file, here), hint=f"measure it: {command}")


def workload_words(workload: Workload) -> str:
    """The workload's name where --workload takes it, else its four numbers."""
    numbers = (workload.n_prefix_cached, workload.n_prompt_new, workload.n_gen, workload.n_parallel)
    return workload.name if WORKLOADS.get(workload.name) == workload else "/".join(map(str, numbers))


def is_answered_by(question: Question, header: store.SweepHeader) -> bool:
    """Whether a sweep under `header` says anything to the question; its goal may be another."""
    asked, measured = question.workload or header.workload, header.workload
    return (
        (asked.n_prefix_cached, asked.n_prompt_new) == (measured.n_prefix_cached, measured.n_prompt_new)
        and asked.n_parallel == measured.n_parallel
        and asked.n_ctx_needed <= header.n_ctx
        and question.target in {None, header.target}
        and (question.n_ctx is None or pad_256(question.n_ctx) == header.n_ctx)
    )


def _why(question: Question, facts: GgufFacts, of_file: Sequence[StoredSweep], here: Here) -> str:
    name = facts.path.name
    usable = [stored for stored in of_file if here.unlike(stored.header) is None]
    answering = [stored for stored in usable if is_answered_by(question, stored.header)]
    if answering:
        tried = format_count(sum(len(last_results(stored.content)) for stored in answering), "stored trial")
        return f"Of {tried} of {name} none ran to its end."
    if usable:
        known = "; ".join(dict.fromkeys(_measured_words(stored.header) for stored in usable))
        return f"{name} was not measured here with {' '.join(_asked(question))}; stored are: {known}."
    if of_file:
        return _unlike_words(name, of_file, here)
    places = {facts.path.absolute(), facts.path.resolve()}
    if any(header.gguf_path in places and header.gguf_id != facts.gguf_id for header in headers()):
        return f"{name} has changed since it was measured."
    return f"Nothing was measured of {name} yet."


def _unlike_words(name: str, of_file: Sequence[StoredSweep], here: Here) -> str:
    """What all of the sweeps were made with that is not here now; of the one that is nearest to it."""
    nearest = min(of_file, key=lambda stored: here.unlike(stored.header) or Unlike.MACHINE).header
    unlike = here.unlike(nearest)
    if unlike is Unlike.DRIVER:
        now = ", ".join(dict.fromkeys(str(gpu.driver) for gpu in here.host.nvml_gpus or ()))
        then = ", ".join(dict.fromkeys(map(str, nearest.drivers)))
        return f"{name} was measured here with another driver ({then}, now it is {now}), so it may run otherwise."
    if unlike is Unlike.ENGINE:
        return f"{name} was measured with another build of the engine ({nearest.engine.version}) than is installed now."
    if unlike is Unlike.RULER:
        return f"{name} was measured here only in another way than today's, so its figures do not compare."
    machines = ", ".join(dict.fromkeys(stored.header.machine_id for stored in of_file))
    return f"{name} was measured only on another machine ({format_count(len(of_file), 'sweep')}, {machines})."


def _asked(question: Question) -> Iterator[str]:
    """What the user asked for, as options of a sweep, but for the goal, which any sweep answers."""
    if question.workload:
        yield f"--workload {workload_words(question.workload)}"
    if question.target:
        yield f"--target {question.target}"
    if question.n_ctx:
        yield f"--n-ctx {question.n_ctx}"


def _measured_words(header: store.SweepHeader) -> str:
    return f"--workload {workload_words(header.workload)} --target {header.target} --n-ctx {header.n_ctx}"
