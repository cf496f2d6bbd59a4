"""Every way offloadtune stops: one exception per exit code, each with a next step.

Floor 0: standard library only. A *trial* never raises one of these; its failure is an `Outcome`.
"""

from __future__ import annotations

from typing import ClassVar


class OffloadTuneError(Exception):
    """Something the user must act on: one sentence (`str(error)`), one next step (`hint`), one exit code.

    The sentence is complete and names the thing at fault; the hint starts with a verb.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, sentence: str, *, hint: str = "") -> None:
        super().__init__(sentence)
        self.hint = hint


class UsageError(OffloadTuneError):
    """An option has a value that cannot be meant."""

    exit_code = 2


class UnknownNameError(UsageError):
    """A name that the catalogue does not have, or has too little about."""

    exit_code = 2


class NothingWorksError(OffloadTuneError):
    """Every trial failed: there is nothing to recommend."""

    exit_code = 3


class RegressionError(OffloadTuneError):
    """A bench ran slower than those before it, outside the noise."""

    exit_code = 4


class WarningsFoundError(OffloadTuneError):
    """`doctor --strict` found what costs speed or memory, and nothing worse."""

    exit_code = 5


class ProblemsFoundError(OffloadTuneError):
    """`doctor --strict` found what stops runs or makes them wrong."""

    exit_code = 6


class ProbeError(OffloadTuneError):
    """The machine could not be read at all."""

    exit_code = 10


class GgufError(OffloadTuneError):
    """The file is missing, unreadable, cut short, or not a GGUF that can generate text."""

    exit_code = 11


class BudgetError(OffloadTuneError):
    """The time or memory allowed is too small for a single trial."""

    exit_code = 12


class EngineError(OffloadTuneError):
    """The worker process cannot be started, or a device it needs cannot be reached."""

    exit_code = 13


class StoreError(OffloadTuneError):
    """A journal cannot be written or read."""

    exit_code = 14


class NotMeasuredError(OffloadTuneError):
    """Nothing stored answers this: it has to be measured first."""

    exit_code = 15


class ExportError(OffloadTuneError):
    """A profile, an exported text or a stand-in cannot be written."""

    exit_code = 16


class EngineMissingError(OffloadTuneError):
    """llama-cpp-python is not installed in this Python."""

    exit_code = 17


class BusyError(OffloadTuneError):
    """Another measurement is under way here, or other programs keep the machine too busy for one."""

    exit_code = 18


class InterruptedSweepError(OffloadTuneError):
    """The user stopped the sweep before any trial had finished."""

    exit_code = 130


EXIT_CODES: dict[int, str] = {
    0: "done",
    1: "a mistake of offloadtune itself; please report it",
    UsageError.exit_code: "an option or argument has a value that cannot be meant",
    NothingWorksError.exit_code: "every trial failed; nothing can be recommended",
    RegressionError.exit_code: "a bench ran slower than before, outside the noise",
    WarningsFoundError.exit_code: "doctor --strict found what costs speed or memory",
    ProblemsFoundError.exit_code: "doctor --strict found what stops runs or makes them wrong",
    ProbeError.exit_code: "the machine could not be read",
    GgufError.exit_code: "the model file is missing, unreadable, cut short or not a text-generating GGUF",
    BudgetError.exit_code: "the time or memory allowed is too small for one trial",
    EngineError.exit_code: "the engine cannot start, or a device it needs cannot be reached",
    StoreError.exit_code: "the journal of measurements cannot be written or read",
    NotMeasuredError.exit_code: "nothing stored answers this; measure first",
    ExportError.exit_code: "a profile, an export or a stand-in cannot be written",
    EngineMissingError.exit_code: "llama-cpp-python is not installed",
    BusyError.exit_code: "another measurement is under way on this machine, or it is too busy for one",
    InterruptedSweepError.exit_code: "stopped by the user; everything measured is kept",
}
"""Exit code -> meaning, as the README prints it (a test keeps the two equal)."""
