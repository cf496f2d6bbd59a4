"""Options' texts to values, each with a sentence for what cannot be meant."""

from __future__ import annotations

import codecs
import dataclasses
import difflib
import math
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from offloadtune.errors import UsageError
from offloadtune.records import WORKLOADS, Limits, Settings, Target, Workload
from offloadtune.units import parse_bytes, parse_seconds, parse_split

Value = TypeVar("Value")

_WORKLOAD_FORMS = (
    f"{', '.join(WORKLOADS)}, four numbers like 2048/256/256/1 (cached/new/generated/sequences), or a TOML file"
)
_LINE_BYTES = 1 << 21
_ENUMS = {
    "flash_attn_type": ("auto", "disabled", "enabled"),
    "load_mode": ("auto", "none", "mmap", "mlock", "mmap_mlock", "direct_io"),
}
_EXAMPLES = {"--max-ttft": "--max-ttft 500ms", "--min-tok-per-s": "--min-tok-per-s 20"}
_LARGEST = (1 << 31) - 1  # of the engine's own fields
_STORED_PRECISION = "leave it out: it changes the stored precision; sweep --allow-kv-quant tries other types of cache"
_NOT_SET_HERE = {
    "n_ctx": "use --n-ctx, where the command has it",
    "type_k": _STORED_PRECISION,
    "type_v": _STORED_PRECISION,
}
_NOT_FIXABLE = {"devices", "n_ctx", "type_k", "type_v", "n_seq_max", "n_outputs_max", "kv_unified"}


def seconds(option: str, text: str) -> float:
    return _parsed(option, text, parse_seconds)


def bytes_of(option: str, text: str) -> int:
    return _parsed(option, text, parse_bytes)


def split(option: str, text: str) -> tuple[float, ...]:
    """Shares like 3/1 or 3,1. Raises UsageError."""
    return _parsed(option, text, lambda shares: Settings(tensor_split=parse_split(shares)).tensor_split or ())


def limits(ram_limit: str | None, max_ttft: str | None, min_tok_per_s: float | None) -> Limits:
    """Limits that something can keep. Raises UsageError."""
    found = Limits(
        host_bytes=bytes_of("--ram-limit", ram_limit) if ram_limit else None,
        ttft_p95_s=seconds("--max-ttft", max_ttft) if max_ttft else None,
        min_tok_per_s=min_tok_per_s,
    )
    named = {"--max-ttft": found.ttft_p95_s, "--min-tok-per-s": found.min_tok_per_s}
    for option, value in named.items():
        if value is not None and not 0 < value < math.inf:
            message = f"{option} needs a number above 0, not {value:g}."
            raise UsageError(message, hint=f"leave it out where there is no such limit, or write {_EXAMPLES[option]}")
    return found


def workload(text: str) -> Workload:
    """A named workload, four numbers, or a TOML file with the four numbers by name. Raises UsageError."""
    if text in WORKLOADS:
        return WORKLOADS[text]
    names = [field.name for field in dataclasses.fields(Workload) if field.name != "name"]
    is_file = _is_file(text)
    try:
        if is_file:
            values = tomllib.loads(Path(text).read_text(encoding="utf-8"))
            return Workload(
                name=Path(text).stem, **{name: int(value) for name, value in values.items() if name != "name"}
            )
        numbers = [int(part) for part in text.split("/")]
        return Workload(name=text, **dict(zip(names, numbers, strict=True)))
    except (ValueError, TypeError, OverflowError, OSError) as error:
        detail = f" ({error})" if "workload needs" in str(error) or is_file else ""
        near = difflib.get_close_matches(text, WORKLOADS, n=1, cutoff=0.6)
        forms = f"{near[0]} (or one of {_WORKLOAD_FORMS})" if near else _WORKLOAD_FORMS
        raise UsageError(f"--workload {text!r} is not a workload{detail}.", hint=f"use {forms}") from None


def fixed_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Settings named by `--set NAME=VALUE`, as values of their fields. Raises UsageError."""
    return dict(_fixed_setting(text) for text in texts)


def choice(option: str, text: str, values: Sequence[str]) -> str:
    """`text` if it is one of `values`. Raises UsageError with the nearest."""
    if text in values:
        return text
    raise UsageError(f"{option} {text!r} is not known.", hint=f"use {_nearest(text, values)}")


def alone(option: str, is_alone: bool, why: str) -> None:  # noqa: FBT001 - reads like a sentence
    """Raise UsageError where `option` is not alone."""
    if not is_alone:
        raise UsageError(f"{option} goes with no other option but --json: {why}.", hint=f"leave out all but {option}")


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a text file, or of stdin for "-". Raises UsageError where it cannot be read.

    Of a longer line than any that is meant the beginning is given, which is still too long. Bytes that are no text
    are kept as Python keeps them in names of files.
    """
    try:
        if str(path) == "-":
            yield from _lines(sys.stdin.buffer)
            return
        with path.open("rb") as stream:
            yield from _lines(stream)
    except BrokenPipeError:  # what takes our answers has ended, not what brings the questions
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it cannot be read"
        raise UsageError(
            f"--batch {str(path)!r}: {reason}.", hint="name a file of JSON lines, or - for stdin"
        ) from None


def target(text: str | None) -> Target | None:
    """The target named, None when none is. Raises UsageError."""
    return Target(choice("--target", text, list(Target))) if text else None


def _lines(stream: BinaryIO) -> Iterator[str]:
    beginning = codecs.BOM_UTF8
    while line := stream.readline(_LINE_BYTES):
        rest = line
        while not rest.endswith(b"\n") and (rest := stream.readline(_LINE_BYTES)):
            pass
        yield line.removeprefix(beginning).decode(errors="surrogateescape")
        beginning = b""


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a path
        return False


def _fixed_setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    defaults = {field.name: field.default for field in dataclasses.fields(Settings) if field.name not in _NOT_FIXABLE}
    if equals and name in _NOT_SET_HERE:
        raise UsageError(f"--set {text!r}: {name} is not set there.", hint=_NOT_SET_HERE[name])
    if not equals or name not in defaults:
        raise UsageError(
            f"--set {text!r} names no setting.", hint=f"use {_nearest(name, sorted(defaults))}, as NAME=VALUE"
        )
    default = defaults[name]
    if name in _ENUMS:
        return name, choice(f"--set {name}", value, _ENUMS[name])
    if name == "tensor_split":
        return name, split(f"--set {name}", value)
    if isinstance(default, bool):
        return name, choice(f"--set {name}", value.lower(), ("true", "false")) == "true"
    if not value.isdecimal() or int(value) > _LARGEST:
        raise UsageError(f"--set {text!r} needs a whole number.", hint=f"write it like --set {name}=4")
    return name, int(value)


def _nearest(text: str, values: Sequence[str]) -> str:
    near = difflib.get_close_matches(text, values, n=1, cutoff=0.6)
    return f"{near[0]} (or one of {', '.join(values)})" if near else f"one of {', '.join(values)}"


def _parsed(option: str, text: str, parse: Callable[[str], Value]) -> Value:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}.", hint=f"run offloadtune {_command()} --help") from None


def _command() -> str:
    return next((argument for argument in sys.argv[1:] if not argument.startswith("-")), "")
