"""Sweeping: one sweep from its checks to its answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from offloadtune import export, store
from offloadtune.engine import WORKER_COMMAND
from offloadtune.errors import EngineMissingError, InterruptedSweepError
from offloadtune.gguf import read_gguf
from offloadtune.pipeline.answering import answer_sweep, sha256
from offloadtune.pipeline.checking import check
from offloadtune.pipeline.guarding import GuardedRunner
from offloadtune.pipeline.interrupts import deaf
from offloadtune.pipeline.marking import standin_sentence
from offloadtune.pipeline.measuring import Measuring
from offloadtune.pipeline.rebuilding import missing_backend, rebuild_line
from offloadtune.records import GgufFacts, Target, Trial
from offloadtune.sweeps import Listener, Said, SweepReport, SweepRequest

OneEvent = TypeVar("OneEvent")


def sweep(request: SweepRequest, listen: Listener) -> SweepReport:
    """Measure, choose, write the profile.

    Raises GgufError, EngineMissingError, EngineError, BusyError, BudgetError, NothingWorksError, StoreError,
    ExportError, and InterruptedSweepError when the user stopped before anything was measured.
    """
    listen = unbreakable(listen)
    facts = read_gguf(request.path)
    check(request, facts)
    with store.measuring_alone(store.data_dir(), facts.path.name):
        return measure_and_answer(request, facts, listen)


def unbreakable(listen: Callable[[OneEvent], None]) -> Callable[[OneEvent], None]:
    """`listen` whose display may vanish (a closed terminal, a broken pipe) without ending what is measured."""

    def heard_or_not(event: OneEvent) -> None:
        with contextlib.suppress(OSError):
            listen(event)

    return heard_or_not


def measure_and_answer(request: SweepRequest, facts: GgufFacts, listen: Listener) -> SweepReport:
    """A sweep of what was checked, for who holds the lock that nobody else measures; raises as `sweep` does."""
    if words := standin_sentence(facts):
        listen(Said(text=words))
    sha256_before = sha256(facts, listen, force=True) if request.prove else None
    with GuardedRunner(
        facts,
        rebuild_line,
        endpoints=request.endpoints,
        command=request.worker_command or WORKER_COMMAND,
        arguments=llama_arguments,
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


def llama_arguments(trial: Trial) -> dict[str, Any] | None:
    """What the trial's snippet tells `Llama`: what is measured is what is handed over."""
    return export.llama_kwargs(trial.settings, trial.told) if trial.target is Target.LLAMA_CPP_PYTHON else None
