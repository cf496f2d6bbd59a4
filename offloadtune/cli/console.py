"""Where output goes: results to stdout, progress to stderr; `--json` makes stdout one JSON object."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
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


@contextlib.contextmanager
def counting(before: str, doing: str, words: Callable[[int], str] = str) -> Iterator[Callable[[int, int], None]]:
    """A line that moves on stderr, where that is a terminal: `before`, then what is done of all, told as `words`."""
    from rich.console import Console  # noqa: PLC0415 - rich is slow to import

    stderr = Console(stderr=True, **_PLAIN)
    if not stderr.is_terminal:
        yield lambda _n_done, _n_all: None
        return
    with stderr.status(before) as status:
        yield lambda n_done, n_all: status.update(f"{doing}: {words(n_done)} of {words(n_all)}")
