"""Where output goes: results to stdout, progress to stderr; `--json` makes stdout one JSON object."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from offloadtune.sweeps import Event, Said

if TYPE_CHECKING:
    from rich.console import RenderableType


_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}  # a name may hold [ and :


def show(view: RenderableType) -> None:
    """Print `view` to stdout, unbroken where it is not a terminal: paths and commands must stay whole."""
    from rich.console import Console  # noqa: PLC0415 - rich is slow to import

    console = Console(**_PLAIN)
    if not console.is_terminal:
        console = Console(**_PLAIN, width=1 << 16)
    console.print(view, soft_wrap=True)


def show_json(value: dict[str, Any]) -> None:
    """Print one JSON object to stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))  # noqa: T201 - this is stdout's place


def show_json_lines(values: Iterable[dict[str, Any]]) -> None:
    """Print each JSON object to stdout on a line of its own, at once, as long as someone reads them."""
    try:
        for value in values:
            print(json.dumps(value, ensure_ascii=False, allow_nan=False), flush=True)  # noqa: T201 - stdout's place
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at exit


def tell(event: Event) -> None:
    """Print what is said to stderr."""
    if isinstance(event, Said):
        print(event.text, file=sys.stderr)  # noqa: T201 - this is stderr's place
