"""Ctrl-C at the moments when it must not be heard."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """Ignore Ctrl-C and its like inside the block: it is short, and half of it would lose what was measured.

    Outside the main thread nothing changes: signals are not heard there anyway.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [signal.signal(number, signal.SIG_IGN) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(number, handler)
