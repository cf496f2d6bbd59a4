"""What the worker raises when the engine, or `Llama`, says no and lives on."""

from __future__ import annotations


class RefusedError(Exception):
    """The engine said no and lives on. `kind` names the phase; `is_telling` where the log says less than `reason`."""

    def __init__(self, kind: str, reason: str, *, is_telling: bool = False) -> None:
        super().__init__(reason)
        self.kind, self.is_telling = kind, is_telling
