"""Recalling: the newest stored sweep that answers a question, or the sentence that says what has to be measured.

A goal is computed anew from the same visits. A workload must have been measured as it is, up to the number of tokens
generated. Sweeps of another computer, engine build, driver or way of measuring never answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from offloadtune import search, store
from offloadtune.engine import installed_build_id
from offloadtune.gguf import read_gguf
from offloadtune.pipeline.diverging import remembered
from offloadtune.pipeline.journals import StoredSweep, as_reported, read_all
from offloadtune.pipeline.likeness import Here
from offloadtune.pipeline.missing import fixed_words, is_answered_by, limit_words, not_measured, sweep_command
from offloadtune.pipeline.spaces import asked_space, space_of
from offloadtune.probe import probe_host
from offloadtune.recalls import Question, UnreadableJournal
from offloadtune.recommend import Round, recommend
from offloadtune.records import GgufFacts, Recommendation, TrialResult
from offloadtune.sweeps import Said, Teller
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


def recall(question: Question, listen: Teller) -> Recalled:
    """The answer of the newest stored sweep that has one. Raises GgufError, NotMeasuredError, UsageError."""
    facts = read_gguf(question.path)
    of_file, unreadable = read_all(lambda header: header.gguf_id == facts.gguf_id)
    here = Here(host=probe_host(measure=False), build_id=installed_build_id())
    usable = [stored for stored in of_file if here.unlike(stored.header) is None]
    found = _best_founded(_answers(question, facts, usable, unreadable))
    if unreadable:
        listen(Said(text=_unreadable_words(unreadable)))
    if found is None:
        raise not_measured(question, facts, of_file, unreadable, here)
    if here.build_id is None:
        note = (
            "The engine is not installed in this Python: whether it is still the build that was measured is not known."
        )
        found = dataclasses.replace(found, notes=(*found.notes, note))
    return found


def _answers(
    question: Question, facts: GgufFacts, usable: Sequence[StoredSweep], unreadable: list[UnreadableJournal]
) -> Iterator[Recalled]:
    """What each sweep says, newest first; one whose figures make no sense joins `unreadable` and hides no other."""
    for stored in usable:
        if not is_answered_by(question, stored.header):
            continue
        try:
            recalled = _answer(question, facts, stored)
        except Exception:  # noqa: BLE001 - whatever stands in a file that somebody else may have written
            reason = f"{stored.path} holds figures that do not go together."
            unreadable.append(
                UnreadableJournal(
                    path=stored.path, written_at=stored.written_at, reason=reason, gguf_id=stored.header.gguf_id
                )
            )
            continue
        if recalled:
            yield recalled


def _best_founded(answers: Iterator[Recalled]) -> Recalled | None:
    """The newest, but for one cut short before its rounds where an older one compared side by side for the same."""
    newest = next(answers, None)
    if newest is None or newest.rounds or not newest.stored.is_cut_short:
        return newest
    for older in answers:
        if older.rounds and _asked_the_same(older, newest):
            note = (
                f"A newer sweep, begun {newest.stored.header.started_at}, has compared nothing side by side yet: "
                "it is passed over."
            )
            return dataclasses.replace(older, notes=(*older.notes, note))
    return newest


def _asked_the_same(one: Recalled, other: Recalled) -> bool:
    """Whether two sweeps, asked the same question, were made for the same too."""
    first, second = (
        (*found.stored.header.question[1:], found.stored.header.endpoints, found.space.goal) for found in (one, other)
    )
    return first == second


def _answer(question: Question, facts: GgufFacts, stored: StoredSweep) -> Recalled | None:
    """What the sweep says to the question, None where nothing ran to its end."""
    its_own = space_of(facts, stored.content.header_now, stored.content.kept)
    results, compared = as_reported(its_own, stored.content)
    rounds: tuple[Round, ...] = compared
    space = asked_space(its_own, question)
    best_once = min(
        search.candidates(space, results), key=lambda result: search.result_rank(space, result), default=None
    )
    if best_once and rounds and best_once.trial.settings.n_ctx > max(settings.n_ctx for settings in rounds[0]):
        rounds = ()  # only the goal `context` allows it: more context was reached than was compared
    answer = recommend(space, results, rounds)
    if answer is None or best_once is None:
        return None
    if rounds and not all(one.is_kept for one in answer.limits) and search.keeps_limits(space, best_once):
        rounds = ()  # none of those compared keep the limits asked for, and others do
        answer = recommend(space, results, rounds) or answer
    notes = list(_notes(stored, space))
    if (space.limit_bytes, space.limits) != (its_own.limit_bytes, its_own.limits):
        notes += _limit_notes(question, stored.header, space, results)
    if rounds and best_once.trial.settings not in rounds[0]:
        why = best_once.trial.why
        notes.append(f"By one visit each {why!r} was best for {space.goal}, but it was not compared side by side.")
    return Recalled(
        facts=facts,
        stored=stored,
        space=space,
        results=results,
        rounds=rounds,
        answer=remembered(answer, stored.content.recommendation),
        notes=tuple(notes),
    )


def _notes(stored: StoredSweep, space: search.Space) -> Iterator[str]:
    """How far the sweep was made for another question, or for one the user may not remember."""
    header = stored.header
    if space.goal is not header.goal:
        yield f"The search went after {header.goal}: one that goes after {space.goal} may find better settings."
    options = " ".join(limit_options(header))
    if options:
        yield f"Measured with {options}."
    yield from (change.words for change in stored.content.changes if change.words)
    if stored.is_under_way:
        yield "That sweep is being measured now: its answer may still change."
    elif not stored.content.is_ended:
        go_on = "; the same command goes on from there" if stored.is_gone_on_with else ""
        yield f"That sweep was killed before its end{go_on}."


def _limit_notes(
    question: Question, header: store.SweepHeader, space: search.Space, results: Sequence[TrialResult]
) -> Iterator[str]:
    """What a sweep that knows the limits asked for would try next, where it would."""
    missing = search.next_trial(space, results)
    if missing is not None:
        yield (
            f"Measured with other limits or none; not tried yet for these: {missing.why}. "
            f"A sweep that goes after them: {sweep_command(question, header)}"
        )


def limit_options(header: store.SweepHeader) -> Iterator[str]:
    """The options that said what was tried."""
    yield from fixed_words(header)
    yield from limit_words(header.limit_bytes, header.limits)
    yield from (f"--rpc {endpoint}" for endpoint in header.endpoints)


def _unreadable_words(unreadable: Sequence[UnreadableJournal]) -> str:
    journals = format_count(len(unreadable), "journal")
    return f"Warning: {journals} left out: {unreadable[0].reason} `offloadtune history` lists them all."
