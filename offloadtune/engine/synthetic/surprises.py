"""What no data sheet says: small changes of a machine's truth, each of one kind, none of which the law knows.

Each has every door of `Surprise` and goes through one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offloadtune.engine.synthetic.kernels import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Surprise:
    """Nothing special. `words` name the kind."""

    @property
    def words(self) -> str:
        return "none"

    def ubatch_times(self, n_tokens: int) -> float:  # noqa: ARG002 - a door
        """How many times as long the card takes for a ubatch of so many tokens."""
        return 1.0

    def thread_times(self, n_threads: int, n_cores: int) -> float:  # noqa: ARG002 - a door
        """How many times as long the processor's part takes with so many threads."""
        return 1.0

    def spill_times(self, device_bytes: Floats, free_bytes: int) -> tuple[Floats, Floats]:  # noqa: ARG002 - a door
        """How many times as long prompts and tokens take that use so much of the card."""
        return np.ones(1), np.ones(1)

    def most_bytes(self, free_bytes: int) -> int:
        """What the card gives before an allocation fails."""
        return free_bytes

    def said_free_bytes(self, free_bytes: int) -> int:
        """What the driver says is free."""
        return free_bytes

    def heat_times(self, busy_s: float) -> float:  # noqa: ARG002 - a door
        """How many times as long all takes after so many busy seconds."""
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowKernel(Surprise):
    """Ubatches of one size meet a kernel that takes `times` as long on the card, whatever else they are made of."""

    n_tokens: int
    times: float

    @property
    def words(self) -> str:
        return "slow kernel"

    def ubatch_times(self, n_tokens: int) -> float:
        return self.times if n_tokens == self.n_tokens else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SmtCollapse(Surprise):
    """With more threads than cores the processor's part takes `times` as long: they wait for each other at barriers."""

    times: float

    @property
    def words(self) -> str:
        return "SMT collapse"

    def thread_times(self, n_threads: int, n_cores: int) -> float:
        return self.times if n_threads > n_cores else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spill(Surprise):
    """The driver moves memory to the host instead of failing: slow in the last `near_frac`, and far beyond the end.

    As drivers of NVIDIA do under Windows unless told otherwise.
    """

    near_frac: float
    beyond_frac: float
    token_times: float
    prompt_times: float

    @property
    def words(self) -> str:
        return "spill"

    def spill_times(self, device_bytes: Floats, free_bytes: int) -> tuple[Floats, Floats]:
        is_spilled = device_bytes > free_bytes * (1 - self.near_frac)
        return np.where(is_spilled, self.prompt_times, 1.0), np.where(is_spilled, self.token_times, 1.0)

    def most_bytes(self, free_bytes: int) -> int:
        return int(free_bytes * (1 + self.beyond_frac))


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle(Surprise):
    """After `after_busy_s` all takes `times` as long: heat holds the clock down, and it stays so."""

    after_busy_s: float
    times: float

    @property
    def words(self) -> str:
        return "throttling"

    def heat_times(self, busy_s: float) -> float:
        return self.times if busy_s >= self.after_busy_s else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LyingFreeMemory(Surprise):
    """The driver says that `more_frac` more is free than there is; less where that is negative."""

    more_frac: float

    @property
    def words(self) -> str:
        return "lying free memory"

    def said_free_bytes(self, free_bytes: int) -> int:
        return int(free_bytes * (1 + self.more_frac))
