"""Watching."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from offloadtune.conditions import Disturbance


class Watch:
    def __init__(self, pids: Callable[[], Sequence[int]], endpoints: Sequence[str] = ()) -> None:
        self._pids, self._endpoints = pids, endpoints

    def standing(self) -> tuple[str, ...]:
        return ()

    def begin(self) -> None:
        return

    def end(self) -> tuple[Disturbance, ...]:
        return ()
