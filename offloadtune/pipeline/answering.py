"""Answering: from a measured sweep to its report and profile, or to the sentence that says why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import offloadtune
from offloadtune import export, search, store
from offloadtune.errors import BudgetError, ExportError, InterruptedSweepError, NothingWorksError, OffloadTuneError
from offloadtune.gguf import identify, sha256_of
from offloadtune.pipeline.measuring import Measuring
from offloadtune.recommend import figures
from offloadtune.records import Figures, GgufFacts, Outcome, Target, Trial
from offloadtune.sweeps import Listener, Said, SweepReport
from offloadtune.units import format_bytes, format_count, format_seconds

_APPLY_SUFFIXES = {Target.LLAMA_CPP_PYTHON: "llama_cpp_python.py", Target.LLAMA_SERVER: "llama_server.sh"}


def answer_sweep(run: Measuring, sha256_before: str | None) -> SweepReport:
    """The answer, written as a profile. Raises when there is none."""
    answer = run.best()
    run.journal.append_end(answer)
    run.journal.close()
    if answer is None:
        raise _nothing(run)
    digest = None if run.is_interrupted else sha256(run.facts, run.listen, force=run.request.prove)
    _check_untouched(run, sha256_before, digest)
    apply_text = _apply_text(answer.trial, run.facts.path, run.request.endpoints)
    profile = export.Profile(
        offloadtune_version=offloadtune.__version__,
        machine=run.machine,
        engine=run.engine,
        facts=run.facts,
        sha256=digest,
        recommendation=answer,
        apply_text=apply_text,
        journal_path=run.journal.path,
        measured_at=run.started_at.isoformat(timespec="seconds"),
    )
    folder = store.profiles_dir() / run.machine.machine_id
    profile_path = folder / f"{run.facts.path.stem}.toml"
    apply_path = folder / f"{run.facts.path.stem}.{_APPLY_SUFFIXES[answer.trial.target]}"
    try:
        export.write_text(profile_path, export.render_profile(profile))
        export.write_text(apply_path, apply_text)
    except ExportError as error:
        raise ExportError(str(error), hint=f"{error.hint}; the measurements are in {run.journal.path}") from None
    return SweepReport(
        machine=run.machine,
        engine=run.engine,
        facts=run.facts,
        sha256=digest,
        results=tuple(run.results),
        n_rounds=len(run.rounds),
        n_model_loads=run.runner.n_model_loads,
        baselines=_baselines(run),
        recommendation=answer,
        skipped=search.skipped(run.space),
        apply_text=apply_text,
        profile_path=profile_path.resolve(),
        apply_path=apply_path.resolve(),
        journal_path=run.journal.path,
        is_interrupted=run.is_interrupted,
        duration_s=run.elapsed_s(),
    )


def _baselines(run: Measuring) -> dict[str, Figures]:
    by_settings = {r.trial.settings: r for r in run.results if search.is_feasible(r, None)}
    found = {}
    for name, trial in search.baseline_trials(run.space).items():
        if trial.settings in by_settings:
            later = [visit for one in run.rounds for visit in one.get(trial.settings, ())]
            visits = (*by_settings[trial.settings].visits, *later)
            found[name] = figures(visits, run.request.workload)
    return found


def _nothing(run: Measuring) -> OffloadTuneError:
    if run.is_interrupted:
        message = "Stopped before the first trial had finished; nothing was measured."
        return InterruptedSweepError(message, hint="run the same command again")
    timed_out = [result for result in run.results if result.outcome is Outcome.TIMED_OUT]
    if not run.results or len(timed_out) == len(run.results):
        suggestion = max(60, round(run.request.budget_s * 4))
        return BudgetError(
            f"The budget of {format_seconds(run.request.budget_s)} ended before the first trial had finished.",
            hint=f"allow more time: --budget {suggestion}s",
        )
    failures = [result for result in run.results if result.reason]  # the rest ran, but not as the user allows
    reasons = "; ".join(dict.fromkeys(result.reason for result in failures)) or "they take more than you allow"
    failed = format_count(len(failures) or len(run.results), "trial")
    return NothingWorksError(
        f"None of {failed} ran to the end: {reasons}.",
        hint=f"try a smaller --n-ctx than {run.space.n_ctx}, or read {run.journal.path}",
    )


def _check_untouched(run: Measuring, sha256_before: str | None, sha256_after: str | None) -> None:
    """The file must be what it was: size and identity always, the whole hash with --prove."""
    same = identify(run.facts.shard_paths) == run.facts.gguf_id
    if not same or (sha256_before and sha256_after and sha256_before != sha256_after):
        run.listen(Said(text=f"Warning: {run.facts.path.name} was changed by somebody while it was measured."))


def _apply_text(trial: Trial, path: Path, endpoints: Sequence[str]) -> str:
    if trial.target is Target.LLAMA_SERVER:
        return export.render_command(trial.settings, path.resolve(), endpoints)
    return export.render_snippet(trial.settings, path.resolve(), endpoints)


def sha256(facts: GgufFacts, listen: Listener, *, force: bool) -> str | None:
    """SHA-256 over the file (its shards in order), remembered by path, inode, size and time; None when stopped."""
    stats = [path.stat() for path in facts.shard_paths]
    key = "|".join(
        f"{path.resolve()}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"
        for path, stat in zip(facts.shard_paths, stats, strict=True)
    )
    memory = store.FactFile(store.data_dir() / "sha256.json")
    known: str | None = memory.get(key)
    if known and not force:
        return known
    if facts.file_bytes > 1 << 30:
        listen(Said(text=f"Hashing {format_bytes(facts.file_bytes)} to prove the weights untouched; Ctrl-C skips it."))
    try:
        digest: str = sha256_of(facts.shard_paths)
    except KeyboardInterrupt:
        listen(Said(text="Hashing was skipped."))
        return None
    memory.put(key, digest)
    return digest
