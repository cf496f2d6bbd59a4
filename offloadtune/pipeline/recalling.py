"""Recalling: the newest stored sweep that answers a question, or the sentence that says what has to be measured.

A goal is computed anew from the same visits. A workload must have been measured as it is, up to the number of tokens
generated. Sweeps of another computer or another way of measuring never answer.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from offloadtune import search, store
from offloadtune.errors import NotMeasuredError
from offloadtune.footprint import pad_256
from offloadtune.gguf import read_gguf
from offloadtune.pipeline.journals import StoredSweep, headers, last_results, read_all, rounds_among
from offloadtune.pipeline.spaces import space_of
from offloadtune.probe import probe_host
from offloadtune.recalls import Question, UnreadableJournal
from offloadtune.recommend import Round, recommend
from offloadtune.records import WORKLOADS, GgufFacts, Host, Recommendation, TrialResult, Workload
from offloadtune.sweeps import Listener, Said
from offloadtune.units import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """A stored sweep asked a question that it answers; `space` is that of the question."""

    facts: GgufFacts
    stored: StoredSweep
    space: search.Space
    results: tuple[TrialResult, ...]
    rounds: tuple[Round, ...]
    answer: Recommendation
    notes: tuple[str, ...]


def recall(question: Question, listen: Listener) -> Recalled:
    """The answer of the newest stored sweep that has one. Raises GgufError, NotMeasuredError."""
    facts = read_gguf(question.path)
    of_file, unreadable = read_all(lambda header: header.gguf_id == facts.gguf_id)
    if unreadable:
        listen(Said(text=_unreadable_words(unreadable)))
    here = _computer(probe_host(measure=False))
    made_here = [stored for stored in of_file if _computer(stored.header.machine.host) == here]
    usable = [stored for stored in made_here if stored.header.ruler == store.RULER]
    for stored in usable:
        recalled = _answer(question, facts, stored) if _is_answered_by(question, stored.header) else None
        if recalled:
            return recalled
    raise _not_measured(question, facts, of_file, made_here, usable)


def workload_words(workload: Workload) -> str:
    """The workload's name where --workload takes it, else its four numbers."""
    numbers = (workload.n_prefix_cached, workload.n_prompt_new, workload.n_gen, workload.n_parallel)
    return workload.name if WORKLOADS.get(workload.name) == workload else "/".join(map(str, numbers))


def _computer(host: Host) -> tuple[Any, ...]:
    """What a computer is known by without asking the engine for its devices: the stable facts of its machine_id."""
    return host.os.split()[0], host.cpu.brand, host.cpu.n_logical_cores, round(host.ram.total_bytes / 2**30)


def _is_answered_by(question: Question, header: store.SweepHeader) -> bool:
    asked, measured = question.workload or header.workload, header.workload
    return (
        (asked.n_prefix_cached, asked.n_prompt_new) == (measured.n_prefix_cached, measured.n_prompt_new)
        and asked.n_parallel == measured.n_parallel
        and asked.n_ctx_needed <= header.n_ctx
        and question.target in {None, header.target}
        and (question.n_ctx is None or pad_256(question.n_ctx) == header.n_ctx)
    )


def _answer(question: Question, facts: GgufFacts, stored: StoredSweep) -> Recalled | None:
    """What the sweep says to the question, None where nothing ran to its end."""
    header, results = stored.header, last_results(stored.content)
    its_own = space_of(facts, header)
    compared = [trial.settings for trial in search.finalists(its_own, results)]
    rounds: tuple[Round, ...] = tuple(
        one for one in rounds_among(stored.content, results) if all(settings in one for settings in compared)
    )
    space = dataclasses.replace(
        its_own, goal=question.goal or header.goal, workload=question.workload or header.workload
    )
    best_once = min(
        search.candidates(space, results),
        key=lambda result: search.result_cost(result, space.goal, space.workload),
        default=None,
    )
    if best_once and rounds and best_once.trial.settings.n_ctx > max(settings.n_ctx for settings in rounds[0]):
        rounds = ()  # only the goal `context` allows it: more context was reached than was compared
    answer = recommend(space, results, rounds)
    if answer is None or best_once is None:
        return None
    notes = list(_notes(stored, space))
    if rounds and best_once.trial.settings not in rounds[0]:
        why = best_once.trial.why
        notes.append(f"By one visit each {why!r} was best for {space.goal}, but it was not compared side by side.")
    return Recalled(
        facts=facts,
        stored=stored,
        space=space,
        results=results,
        rounds=rounds,
        answer=answer,
        notes=tuple(notes),
    )


def _notes(stored: StoredSweep, space: search.Space) -> Iterator[str]:
    """How far the sweep was made for another question, or for one the user may not remember."""
    header = stored.header
    if space.goal is not header.goal:
        yield f"The search went after {header.goal}: one that goes after {space.goal} may find better settings."
    if space.workload.n_gen != header.workload.n_gen:
        n_gen, n_asked = header.workload.n_gen, space.workload.n_gen
        yield f"A turn of {n_asked} generated tokens is reckoned at the rate measured in turns of {n_gen}."
    options = " ".join(_limits(header))
    if options:
        yield f"Measured with {options}."
    if not stored.content.is_ended:
        yield "That sweep was killed before its end; the same command goes on from there."


def _limits(header: store.SweepHeader) -> Iterator[str]:
    """The options that narrowed what was tried."""
    yield from (f"--set {name}={value}" for name, value in header.fixed.items())
    if header.limit_bytes is not None:
        yield f"--vram-limit {header.limit_bytes}"
    yield from (f"--rpc {endpoint}" for endpoint in header.endpoints)


# --- what is missing -----------------------------------------------------------------------------------------------


def _not_measured(
    question: Question,
    facts: GgufFacts,
    of_file: Sequence[StoredSweep],
    made_here: Sequence[StoredSweep],
    usable: Sequence[StoredSweep],
) -> NotMeasuredError:
    name, n_sweeps = facts.path.name, format_count(len(of_file), "sweep")
    asked = list(_asked(question))
    answering = [stored for stored in usable if _is_answered_by(question, stored.header)]
    if answering:
        tried = format_count(sum(len(last_results(stored.content)) for stored in answering), "stored trial")
        message = f"Of {tried} of {name} none ran to its end."
    elif usable:
        known = "; ".join(dict.fromkeys(_measured_words(stored.header) for stored in usable))
        message = f"{name} was not measured here with {' '.join(asked)}; stored are: {known}."
    elif made_here:
        message = f"{name} was measured here only in another way than today's, so its figures do not compare."
    elif of_file:
        machines = ", ".join(dict.fromkeys(stored.header.machine_id for stored in of_file))
        message = f"{name} was measured only on another machine ({n_sweeps}, {machines})."
    elif any(header.gguf_path.name == name for header in headers()):
        message = f"{name} has changed since it was measured."
    else:
        message = f"Nothing was measured of {name} yet."
    goal = [f"--goal {question.goal}"] if question.goal else []
    command = shlex.join(["offloadtune", "sweep", str(question.path)])
    return NotMeasuredError(message, hint=" ".join(["measure it:", command, *asked, *goal]))


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


def _unreadable_words(unreadable: Sequence[UnreadableJournal]) -> str:
    journals = format_count(len(unreadable), "journal")
    return f"Warning: {journals} left out: {unreadable[0].reason} `offloadtune history` lists them all."
