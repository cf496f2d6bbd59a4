"""Quantities as text and back: the only place where "GiB", "tok/s" or "ms" is written.

Floor 0: standard library only. Inside the program quantities are plain numbers whose names carry the unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "k": KIB,
    "kib": KIB,
    "m": MIB,
    "mib": MIB,
    "g": GIB,
    "gib": GIB,
    "t": 1024**4,
    "tib": 1024**4,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
}
_SECOND_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*\Z")
_SHARE = re.compile(r"\d+(?:\.\d*)?(?:e[+-]?\d+)?\Z", re.ASCII)
_SECONDS_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)")
_SECONDS = re.compile(r"\s*(?:\d+(?:\.\d+)?\s*[a-zA-Z]+\s*)*(?:\d+(?:\.\d+)?)?\s*\Z")  # only the last may lack a unit


def parse_bytes(text: str) -> int:
    """Bytes named by `text`: "24GiB", "8G" (binary), "500MB" (decimal), "1048576".

    Raises ValueError, with the accepted forms, for anything else.
    """
    match = _QUANTITY.match(text)
    scale = _BYTE_UNITS.get(match[2].lower()) if match else None
    n_bytes = float(match[1]) * scale if match and scale else math.inf
    if not math.isfinite(n_bytes):
        message = f"{text!r} is not an amount of memory; write it like 24GiB, 8G or 500MB"
        raise ValueError(message)
    return round(n_bytes)


def parse_seconds(text: str) -> float:
    """Seconds named by `text`: "120s", "2m", "1.5h", "250ms", "90". Parts add up: "1m30s".

    Raises ValueError, with the accepted forms, for anything else.
    """
    parts = _SECONDS_PART.findall(text) if _SECONDS.match(text) else []
    total = sum(float(number) * _SECOND_UNITS.get(unit.lower(), math.nan) for number, unit in parts)
    if not parts or not math.isfinite(total):
        message = f"{text!r} is not a length of time; write it like 90s, 2m or 1h"
        raise ValueError(message)
    return total


def format_bytes(n_bytes: float) -> str:
    """`n_bytes` to three significant digits in binary units: "0 B", "812 KiB", "1.50 GiB"."""
    size = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 999.5:  # three digits at most, so 1000 KiB reads as 0.98 MiB
            return f"{size:.0f} B" if unit == "B" else f"{_three_digits(size)} {unit}"
        size /= 1024
    return f"{_three_digits(size)} TiB"


def format_seconds(seconds: float) -> str:
    """`seconds` to three significant digits: "850 µs", "12.3 ms", "4.20 s", "2 min 05 s", "1 h 02 min"."""
    if seconds < 0:
        return f"-{format_seconds(-seconds)}"
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{_three_digits(seconds * 1e3)} ms"
    if seconds < 99.95:
        return f"{_three_digits(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_tok_per_s(tok_per_s: float) -> str:
    """`tok_per_s` to three significant digits: "143 tok/s", "7.21 tok/s"."""
    return f"{_three_digits(tok_per_s)} tok/s"


def format_bytes_per_s(bytes_per_s: float) -> str:
    """`bytes_per_s` in decimal gigabytes, as vendors and memory benchmarks print it: "51.2 GB/s"."""
    return f"{_three_digits(bytes_per_s / 1e9)} GB/s"


def format_flop_per_s(flop_per_s: float) -> str:
    """`flop_per_s` as makers print it: "82.6 TFLOP/s", below one in billions: "45.0 GFLOP/s"."""
    if flop_per_s < 0.9995e12:
        return f"{_three_digits(flop_per_s / 1e9)} GFLOP/s"
    return f"{_three_digits(flop_per_s / 1e12)} TFLOP/s"


def format_ratio(ratio: float) -> str:
    """`ratio` as a factor: "1.52x"."""
    return f"{ratio:.2f}x"


def format_count(count: int, noun: str) -> str:
    """`count` with its noun in the right number: "1 trial", "12 trials"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def parse_split(text: str) -> tuple[float, ...]:
    """Shares named by `text`, "3/1" or "3,1". Raises ValueError, with the accepted forms, for anything else."""
    parts = [part.strip() for part in text.replace(",", "/").split("/")]
    if not all(map(_SHARE.match, parts)):
        message = f"{text!r} is no split over devices; write it like 3/1 or 3,1"
        raise ValueError(message)
    return tuple(map(float, parts))


def format_split(shares: Iterable[float], separator: str = "/") -> str:
    """3/1, every digit kept."""
    return separator.join(str(int(one)) if float(one).is_integer() else repr(one) for one in shares)


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"
