"""Several files side by side in one worker, visited in turn: what differs between them is then of the files.

Separate processes scatter more than short visits that alternate inside one.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from offloadtune.engine.classify import classify
from offloadtune.engine.holding import HeldWorker
from offloadtune.engine.process import WORKER_COMMAND, WorkerDiedError, WorkerRefusedError
from offloadtune.engine.runner import TrialFailedError, VisitPlan, visit_of
from offloadtune.records import Trial, TrialResult, Visit

Side = tuple[Path, Trial]
"""A file, and the settings it is visited with."""


class Abreast(HeldWorker):
    """A context manager: leaving it leaves no process behind. `arguments` are as for `Runner`."""

    def __init__(
        self,
        endpoints: Sequence[str] = (),
        command: Sequence[str] = WORKER_COMMAND,
        arguments: Callable[[Trial], dict[str, Any] | None] = lambda _trial: None,
    ) -> None:
        super().__init__(endpoints, command)
        self._arguments = arguments

    def rounds(
        self, sides: Sequence[Side], plan: VisitPlan, *, timeout_s: float, seed: int = 0
    ) -> Generator[tuple[Visit, ...]]:
        """Load and open all of `sides`, then visit each once a round, in an order by chance, for as long as is asked.

        Each round has the visits in the order of `sides`. The first, which warms up, is kept back. Raises
        TrialFailedError for the side that failed; the worker is ended then, and when nobody asks for another round.
        """
        deadline, trial = time.monotonic() + timeout_s, sides[0][1]
        chance = random.Random(seed)  # noqa: S311 - no secret
        work = {
            "n_prefix": plan.workload.n_prefix_cached,
            "n_new": plan.workload.n_prompt_new,
            "n_steps": plan.n_steps,
        }
        try:
            self._respawn(deadline)
            contexts = []
            for path, trial in sides:
                contexts.append(self._opened(path, trial, deadline))
            is_warmup = True
            while True:
                visits: dict[int, Visit] = {}
                for i in chance.sample(range(len(sides)), len(sides)):
                    trial = sides[i][1]
                    visits[i] = visit_of(
                        self._ask("visit", deadline, context=contexts[i], **work), is_warmup=is_warmup, i_load=i
                    )
                if not is_warmup:
                    yield tuple(visits[i] for i in range(len(sides)))
                is_warmup = False
        except (WorkerDiedError, WorkerRefusedError) as error:
            timed_out = isinstance(error, WorkerDiedError) and error.timed_out
            outcome, reason = classify(error.evidence, offloads=trial.settings.offloads, timed_out=timed_out)
            self.kill()
            failed = TrialResult(trial=trial, outcome=outcome, reason=reason, evidence=error.evidence)
            raise TrialFailedError(failed) from None
        finally:
            self.close()

    def _opened(self, path: Path, trial: Trial, deadline: float) -> int:
        settings = dataclasses.asdict(trial.settings)
        loaded = self._ask("load", deadline, path=str(path), settings=settings)["handle"]
        asked = {"loaded": loaded, "settings": settings, "arguments": self._arguments(trial)}
        context: int = self._ask("open", deadline, **asked)["handle"]
        return context
