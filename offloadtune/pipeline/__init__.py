"""The conductor: probe -> plan -> run -> store -> recommend -> export. The only package that knows both wings.

measuring   one sweep under way: self-test, trials, rounds side by side
resuming    what the same sweep measured before
spaces      what it may try
rebuilding  when another engine build would do more
guarding    when the file itself is not, or no longer, what can be measured
answering   its report and profile, or why there is none
recalling   the stored sweep that answers a question
using       its answer again, and its settings as text
serving     the target's own server, started with them
summing     all journals, in short
interrupts  when Ctrl-C must wait
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from offloadtune import export, store
from offloadtune.engine import WORKER_COMMAND, Runner
from offloadtune.errors import EngineError, EngineMissingError, GgufError, InterruptedSweepError, UsageError
from offloadtune.footprint import pad_256
from offloadtune.gguf import read_gguf
from offloadtune.pipeline.answering import answer_sweep, sha256
from offloadtune.pipeline.guarding import GuardedRunner
from offloadtune.pipeline.interrupts import deaf
from offloadtune.pipeline.measuring import Measuring
from offloadtune.pipeline.rebuilding import missing_backend, rebuild_line
from offloadtune.pipeline.serving import serve_stored, server_command
from offloadtune.pipeline.spaces import wanted_n_ctx
from offloadtune.pipeline.summing import history
from offloadtune.pipeline.using import export_stored, recommend_stored, write_export
from offloadtune.probe import probe_host
from offloadtune.records import EngineBuild, GgufFacts, Machine, Note, Settings, Target, Trial
from offloadtune.sweeps import Event, Listener, Said, SweepReport, SweepRequest

__all__ = [
    "crash_path",
    "export_stored",
    "history",
    "inspect",
    "probe",
    "recommend_stored",
    "serve_stored",
    "server_command",
    "sweep",
    "write_export",
]

_ENCODERS = {
    "bert",
    "eurobert",
    "gemma-embedding",
    "jina-bert-v2",
    "jina-bert-v3",
    "modern-bert",
    "neo-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "t5encoder",
}


def probe(endpoints: Sequence[str] = (), *, measure: bool = True) -> tuple[Machine, EngineBuild | None]:
    """The machine, and the engine when it runs; without one the devices are unknown and a note says why.

    Raises EngineError when an endpoint does not answer.
    """
    host = probe_host(measure=measure)
    try:
        with Runner(Path(), endpoints) as runner:
            build, devices = runner.describe()
    except (EngineMissingError, EngineError) as error:
        if endpoints and isinstance(error, EngineError):
            raise
        note = Note(subject="devices", reason=f"{error} To install it: {rebuild_line()}")
        return Machine(host=host, devices=None, notes=(note,)), None
    machine = Machine(host=host, devices=devices)
    if advice := missing_backend(machine, build):
        machine = Machine(host=host, devices=devices, notes=(Note(subject="devices", reason=advice),))
    return machine, build


def crash_path() -> Path:
    """Where the traceback of a mistake of our own is to be kept."""
    return store.data_dir() / f"crash-{datetime.now(UTC):%Y%m%dT%H%M%S}.txt"


def inspect(path: Path) -> GgufFacts:
    """What the header of the file says. Raises GgufError."""
    return read_gguf(path)


def sweep(request: SweepRequest, listen: Listener) -> SweepReport:
    """Measure, choose, write the profile.

    Raises GgufError, EngineMissingError, EngineError, BusyError, BudgetError, NothingWorksError, StoreError,
    ExportError, and InterruptedSweepError when the user stopped before anything was measured.
    """
    listen = _unbreakable(listen)
    facts = read_gguf(request.path)
    _check(request, facts)
    with store.measuring_alone(store.data_dir(), facts.path.name):
        return _measure_and_answer(request, facts, listen)


def _unbreakable(listen: Listener) -> Listener:
    """`listen` whose display may vanish (a closed terminal, a broken pipe) without ending the sweep."""

    def heard_or_not(event: Event) -> None:
        with contextlib.suppress(OSError):
            listen(event)

    return heard_or_not


def _measure_and_answer(request: SweepRequest, facts: GgufFacts, listen: Listener) -> SweepReport:
    sha256_before = sha256(facts, listen, force=True) if request.prove else None
    with GuardedRunner(
        facts,
        rebuild_line,
        endpoints=request.endpoints,
        command=request.worker_command or WORKER_COMMAND,
        arguments=_llama_arguments,
    ) as runner:
        try:
            measuring = Measuring(request, facts, runner, listen)
        except EngineMissingError as error:
            raise EngineMissingError(str(error), hint=rebuild_line()) from None
        except KeyboardInterrupt:
            message = "Stopped before the first trial had begun; nothing was measured."
            raise InterruptedSweepError(message, hint="run the same command again") from None
        if advice := missing_backend(measuring.machine, measuring.engine):
            listen(Said(text=advice))
        try:
            measuring.measure()
        except BaseException:
            measuring.journal.close()
            raise
        with deaf():
            runner.close()
    return answer_sweep(measuring, sha256_before)


def _llama_arguments(trial: Trial) -> dict[str, Any] | None:
    """What the trial's snippet tells `Llama`: what is measured is what is handed over."""
    return export.llama_kwargs(trial.settings, trial.told) if trial.target is Target.LLAMA_CPP_PYTHON else None


def _check(request: SweepRequest, facts: GgufFacts) -> None:
    """Refuse what cannot be measured or written down, before anything is."""
    _check_generates(facts)
    if request.workload.n_parallel != 1:
        message = f"Workload {request.workload.name} asks for {request.workload.n_parallel} sequences at once."
        raise UsageError(message, hint="measure one sequence: this version does not measure several")
    needed = request.workload.n_ctx_needed
    if request.n_ctx is not None and request.n_ctx < needed:
        message = f"--n-ctx {request.n_ctx} cannot hold the workload {request.workload.name}: it fills {needed} tokens."
        raise UsageError(message, hint=f"use --n-ctx {pad_256(needed)} or a smaller --workload")
    if facts.n_ctx_train and max(needed, request.n_ctx or 0) > facts.n_ctx_train:
        asked = max(needed, request.n_ctx or 0)
        message = f"{facts.path.name} was trained for {facts.n_ctx_train} tokens of context; this asks for {asked}."
        raise UsageError(message, hint=f"stay within it: a smaller --workload or --n-ctx {facts.n_ctx_train}")
    _check_fixed(request.fixed, wanted_n_ctx(request, facts))
    if request.target is Target.LLAMA_CPP_PYTHON:
        export.render_snippet(Settings(**request.fixed), facts.path)


def _check_fixed(fixed: Mapping[str, Any], n_ctx: int) -> None:
    """Refuse what the engine would round to something else: that would be measured and not recommended."""
    for name in ("n_threads", "n_threads_batch", "n_batch", "n_ubatch"):
        if fixed.get(name) == 0:
            raise UsageError(f"--set {name}=0 needs a number above 0.", hint=f"write it like --set {name}=4")
    n_batch, n_ubatch = fixed.get("n_batch", n_ctx), fixed.get("n_ubatch", 1)
    if max(n_batch, n_ubatch) > n_ctx:
        message = f"A batch of {max(n_batch, n_ubatch)} is more than the context of {n_ctx}, which is all it can hold."
        raise UsageError(message, hint="use a larger --n-ctx or a smaller batch")
    if n_ubatch > n_batch:
        message = f"--set n_ubatch={n_ubatch} is more than n_batch={n_batch}, which it divides."
        raise UsageError(message, hint="set n_batch to at least as much")


def _check_generates(facts: GgufFacts) -> None:
    """Refuse what llama.cpp loads but what does not write one token after another."""
    key_values, name = dict(facts.key_values), facts.path.name
    hint = "name a file of a text-generating model"
    if facts.arch in _ENCODERS or key_values.get(f"{facts.arch}.pooling_type"):
        message = f"{name} is an embedding model ({facts.arch}): it makes vectors of text and does not generate any."
        raise GgufError(message, hint=hint)
    if facts.arch == "t5" or key_values.get(f"{facts.arch}.attention.causal") is False:
        message = f"{name} does not write one token after another ({facts.arch}): this version cannot measure that."
        raise GgufError(message, hint=hint)
