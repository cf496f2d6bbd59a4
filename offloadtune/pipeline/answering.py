"""Answering: from a measured sweep to its report and profile, or to the sentence that says why there is none."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Sequence
from pathlib import Path

import offloadtune
from offloadtune import export, search, store
from offloadtune.errors import (
    BudgetError,
    ExportError,
    GgufError,
    InterruptedSweepError,
    NothingWorksError,
    OffloadTuneError,
    StoreError,
)
from offloadtune.gguf import identify, sha256_of
from offloadtune.pipeline.interrupts import deaf
from offloadtune.pipeline.lacking import advice, over_words
from offloadtune.pipeline.measuring import Measuring
from offloadtune.pipeline.rendering import apply_text, baseline_figures
from offloadtune.recommend import explain, pareto_front
from offloadtune.records import GgufFacts, Outcome, Target, TrialResult
from offloadtune.sweeps import Listener, Said, SweepReport
from offloadtune.units import format_bytes, format_count, format_seconds

_LARGE_BYTES = 1 << 30
_HASHED_BYTES_PER_S = 2.5e9
"""What no disk and no core exceeds: a file that would take longer even so is not begun with."""
_HASH_UNTIL_FRAC = 1.08
"""Of the budget: the end of a sweep is no later than a tenth beyond it, and the answer is still to be written."""
_APPLY_SUFFIXES = {Target.LLAMA_CPP_PYTHON: "llama_cpp_python.py", Target.LLAMA_SERVER: "llama_server.sh"}


def answer_sweep(measuring: Measuring, sha256_before: str | None) -> SweepReport:
    """The answer, written as a profile before the long hashing begins and again after it. Raises when there is none.

    Ctrl-C skips the hashing, nothing else.
    """
    with deaf():
        answer = measuring.answer()
        with contextlib.suppress(StoreError):  # the answer is more than its last line in the journal
            measuring.journal.append_end(answer)
        measuring.journal.close()
        if answer is None:
            raise _nothing(measuring)
        profile = export.Profile(
            offloadtune_version=offloadtune.__version__,
            machine=measuring.machine,
            engine=measuring.engine,
            facts=measuring.facts,
            sha256=None,
            recommendation=answer,
            apply_text=apply_text(answer.trial, measuring.facts, measuring.request.endpoints),
            journal_path=measuring.journal.path,
            measured_at=measuring.measured_at,
        )
        profile_path, apply_path = _write(measuring, profile)
    profile = dataclasses.replace(profile, sha256=_proof(measuring, sha256_before))
    with deaf():
        _write(measuring, profile)
        results, rounds = measuring.results, measuring.rounds
        front = pareto_front(measuring.space, results, rounds, answer)
        explanation = explain(measuring.foresight.beside(measuring.space), results, rounds, answer)
    return SweepReport(
        machine=measuring.machine,
        engine=measuring.engine,
        facts=measuring.facts,
        sha256=profile.sha256,
        results=tuple(results),
        n_rounds=len(rounds),
        n_resumed=measuring.n_resumed,
        n_model_loads=measuring.runner.n_model_loads,
        n_steps=measuring.plan.n_steps,
        baselines=baseline_figures(measuring.space, results, rounds),
        recommendation=answer,
        skipped=search.skipped(measuring.space),
        apply_text=profile.apply_text,
        profile_path=profile_path,
        apply_path=apply_path,
        journal_path=measuring.journal.path,
        is_interrupted=measuring.is_interrupted,
        duration_s=measuring.elapsed_s(),
        front=front,
        explanation=explanation,
        ended=measuring.ended,
        changes=tuple(measuring.changes),
    )


def _write(measuring: Measuring, profile: export.Profile) -> tuple[Path, Path]:
    """Write the profile and what the target takes beside it; an early stop does not replace what was well measured."""
    stem = measuring.facts.path.stem
    if measuring.is_interrupted and not measuring.rounds:
        stem += ".interrupted"
    folder = (store.profiles_dir() / measuring.machine.machine_id).absolute()
    profile_path = folder / f"{stem}.toml"
    apply_path = folder / f"{stem}.{_APPLY_SUFFIXES[profile.recommendation.trial.target]}"
    try:
        export.write_text(profile_path, export.render_profile(profile))
        export.write_text(apply_path, profile.apply_text)
    except ExportError as error:
        raise ExportError(str(error), hint=f"{error.hint}; the measurements are in {measuring.journal.path}") from None
    return profile_path, apply_path


def _nothing(measuring: Measuring) -> OffloadTuneError:
    if measuring.is_interrupted:
        message = "Stopped before the first trial had finished; nothing was measured."
        return InterruptedSweepError(message, hint="run the same command again")
    if measuring.is_gone and not measuring.results:
        message = f"Nothing was measured: {measuring.changes[-1]}"
        return NothingWorksError(message, hint="bring back what is missing and run the same command again")
    n_ctx_needed = measuring.request.workload.n_ctx_needed
    results = [r for r in measuring.results if r.trial.settings.n_ctx >= n_ctx_needed]  # the rest cannot but refuse
    enough, acts = advice(measuring.space, measuring.machine, results)
    if not results and enough:
        message = f"Nothing was tried, no settings have room{enough}."
        return NothingWorksError(message, hint=acts)
    if all(result.outcome is Outcome.TIMED_OUT for result in results):
        suggestion = max(60, round(measuring.request.budget_s * 4))
        return BudgetError(
            f"The budget of {format_seconds(measuring.request.budget_s)} ended before the first trial had finished"
            f"{_first_steps(results)}.",
            hint=f"allow more time: --budget {suggestion}s, or ask for less: --workload 0/512/64/1",
        )
    over = list(over_words(measuring.space, results))
    reasons = "; ".join(dict.fromkeys([*(result.reason for result in results if result.reason), *over]))
    how = "within what you allow" if over else "to the end"
    return NothingWorksError(
        f"None of {format_count(len(results), 'trial')} ran {how}: {reasons or 'no figures came of it'}{enough}.",
        hint=acts or f"try a smaller --n-ctx than {measuring.space.n_ctx}, or read {measuring.journal.path}",
    )


def _first_steps(results: Sequence[TrialResult]) -> str:
    """How far the trial came that came furthest."""
    if not results:
        return ""
    furthest = max(results, key=lambda result: result.load_ns is not None)
    loaded = "" if furthest.load_ns is None else f", and loading took {format_seconds(furthest.load_ns / 1e9)}"
    return f": {furthest.reason}{loaded}"


def _proof(measuring: Measuring, sha256_before: str | None) -> str | None:
    """SHA-256 of the file, None when skipped; says so if the file is not what it was, or proves that it is."""
    facts, name, listen = measuring.facts, measuring.facts.path.name, measuring.listen
    digest = None
    try:
        if not measuring.is_interrupted and (measuring.request.prove or not facts.stands_for):  # those are random
            prove = measuring.request.prove
            digest = sha256(facts, listen, force=prove, until_s=math.inf if prove else _hash_until_s(measuring))
        is_same = identify(facts.shard_paths) == facts.gguf_id
    except KeyboardInterrupt:
        listen(Said(text="Hashing was skipped."))
        return None
    except (GgufError, OSError) as error:
        listen(Said(text=f"Warning: {name} cannot be read any more: {error}"))
        return None
    if not is_same or (sha256_before and digest and sha256_before != digest):
        listen(Said(text=f"Warning: {name} was changed by somebody while it was measured."))
    elif sha256_before and digest:
        listen(Said(text=f"{name} is byte for byte what it was: SHA-256 {digest}."))
    elif sha256_before:
        listen(Said(text="The proof that the weights are untouched was skipped with the rest."))
    return digest


def _hash_until_s(measuring: Measuring) -> float:
    """When the hashing of a large file must be over, by the monotonic clock."""
    return measuring.start_s + _HASH_UNTIL_FRAC * measuring.request.budget_s


def sha256(facts: GgufFacts, listen: Listener, *, force: bool, until_s: float = math.inf) -> str | None:
    """SHA-256 over the file (its shards in order), remembered by path, inode, size and time.

    None for a large file that cannot be read until then.
    """
    stats = [path.stat() for path in facts.shard_paths]
    key = "|".join(
        f"{path.resolve()}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"
        for path, stat in zip(facts.shard_paths, stats, strict=True)
    )
    memory = store.FactFile(store.data_dir() / "sha256.json")
    known: str | None = memory.get(key)
    if known and not force:
        return known
    skipped = "The budget ends before the whole file could be hashed: samples of it were compared. --prove hashes all."
    is_large = facts.file_bytes > _LARGE_BYTES
    if is_large and time.monotonic() + facts.file_bytes / _HASHED_BYTES_PER_S > until_s:
        listen(Said(text=skipped))
        return None
    if is_large:
        listen(Said(text=f"Hashing {format_bytes(facts.file_bytes)} to prove the weights untouched; Ctrl-C skips it."))
    digest = sha256_of(facts.shard_paths, until_s=until_s if is_large else math.inf)
    if digest is None:
        listen(Said(text=skipped))
    else:
        memory.put(key, digest)
    return digest
