"""Watching: what else went on in the machine during a stretch of work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from offloadtune.conditions import Conditions, Disturbance, DisturbanceKind
from offloadtune.interference import disturbances, is_too_busy, on_cards
from offloadtune.probe import slept_s
from offloadtune.probe.conditions import read_conditions
from offloadtune.records import Machine, Settings
from offloadtune.units import format_seconds

LEAST_S = 0.3
"""The counters tick 100 times a second: of a shorter window they cannot tell another program from their own error."""

_SLEPT_LEAST_S = 0.5
"""Two clocks are not read at the same moment; nobody suspends a machine for less."""

_LONG_S = 1.0  # a shorter burst of others is over before the repeat

Reader = Callable[[Sequence[int]], Conditions]


class Watch:
    """Takes the conditions at both ends of each stretch of work, and tells what disturbed it.

    `pids` are the processes that do the work besides this one and its children: servers on this machine. A stretch
    shorter than LEAST_S is judged together with those just before it. What does not pass does not spoil the stretch: it
    is true of all of them, and told once. A program that came to a card since the first stretch disturbs as long as it
    stays. `cards` are the PCI bus ids, as in `NvmlGpu`, of the cards that the stretch that ends used: none of them
    for work on the CPU alone, all cards where `cards` is None. Never raises.
    """

    def __init__(
        self,
        pids: Callable[[], Sequence[int]],
        read: Reader = read_conditions,
        *,
        cards: Callable[[], Collection[str]] | None = None,
        sleep: Callable[[], float | None] = slept_s,
    ) -> None:
        self._pids, self._read, self._cards, self._sleep = pids, read, cards, sleep
        self._slept_s: float | None = None
        self._first: Conditions | None = None
        self._before: deque[Conditions] = deque()
        """Beginnings of the stretches that lie close together, the one under way last."""
        self._ended_at_s: float | None = None
        self._told: set[DisturbanceKind] = set()
        self.was_too_busy = False
        """Whether it was told once; `too_busy` says how it is now."""
        self._since: Conditions | None = None
        """Where the stretches began of which each was disturbed, up to the last; None when that one was not. The
        last alone where it was long: of a machine that was busy an hour ago nothing is said."""
        self._until: Conditions | None = None

    def begin(self) -> None:
        """A stretch of work begins now; one that was never ended is forgotten."""
        self._ended_at_s, ended_at_s = None, self._ended_at_s
        self._slept_s = self._sleep()
        now = self._now()
        if now is None or ended_at_s is None or now.at_s - ended_at_s >= LEAST_S:
            self._before.clear()
        if now is not None:
            self._first = self._first or now
            self._before.append(now)

    def end(self) -> tuple[Disturbance, ...]:
        """What disturbed the stretch that ends now. What does not pass is told once."""
        after = self._now(is_end=True)
        if after is None or not self._before:
            self._since = None
            return ()
        while len(self._before) > 1 and after.at_s - self._before[1].at_s >= LEAST_S:
            self._before.popleft()
        self._ended_at_s = after.at_s
        before = self._before[0]
        found = (*asleep(self._slept_s, self._sleep()), *disturbances(before, after, since=self._first))
        fresh = tuple(one for one in found if one.is_passing or one.kind not in self._told)
        self._told |= {one.kind for one in found if not one.is_passing}
        is_disturbed = any(one.is_passing for one in found)
        is_long = after.at_s - before.at_s >= _LONG_S
        self._since = ((not is_long and self._since) or before) if is_disturbed else None
        self._until = after
        return fresh

    def end_and_tell(self, tell: Callable[[str], None]) -> tuple[str, ...]:
        """The sentences on what disturbed the stretch that ends now; what no repeat mends is told, each once."""
        found = self.end()
        for one in found:
            if not one.is_passing:
                tell(one.words)
        if self.too_busy and not self.was_too_busy:
            self.was_too_busy = True
            tell(f"{self.too_busy} It goes on, and what is disturbed does not count where there is anything else.")
        return tuple(one.words for one in found if one.is_passing)

    @property
    def too_busy(self) -> str | None:
        """Why repeats cannot help, a full sentence, where the last stretches were disturbed that much; None else."""
        if self._since is None or self._until is None or self._until.at_s - self._since.at_s < _LONG_S:
            return None
        return is_too_busy(self._since, self._until)

    def _now(self, *, is_end: bool = False) -> Conditions | None:
        """None where even asking fails: a watch must not end what it watches."""
        try:
            now = self._read(tuple(self._pids()))
            return on_cards(now, self._cards()) if is_end and self._cards else now
        except Exception:  # noqa: BLE001
            return None


def asleep(before_s: float | None, after_s: float | None) -> tuple[Disturbance, ...]:
    """Whether the machine was suspended between two readings of `slept_s`."""
    if before_s is None or after_s is None or after_s - before_s < _SLEPT_LEAST_S:
        return ()
    words = f"The machine slept for {format_seconds(after_s - before_s)}."
    return (Disturbance(kind=DisturbanceKind.SLEEP, words=words, is_passing=True),)


def cards_of(machine: Machine, settings: Settings) -> tuple[str, ...]:
    """PCI addresses of the NVIDIA cards that the settings use, () for the CPU alone."""
    if not settings.offloads:
        return ()
    used = [one for one in machine.offload_devices if settings.devices is None or one.name in settings.devices]
    cards = [machine.nvml_of(device) for device in used]
    return tuple(card.pci_bus_id for card in cards if card and card.pci_bus_id)
