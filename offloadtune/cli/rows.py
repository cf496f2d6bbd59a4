"""`offloadtune bench FILE --llama-bench`: llama-bench's options to its tests, and their rows as it prints them."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offloadtune.cli import options
from offloadtune.errors import UsageError
from offloadtune.rows import ROW_FORMATS, BenchRow, RowsRequest

_RANGE = re.compile(r"(-?\d+)(?:-(\d+)(?:([+*])(\d+))?)?\Z")
_ALL_ZERO = re.compile(r"0(\.0*)?(/0(\.0*)?)*\Z")
_LARGEST = (1 << 31) - 1  # of the engine's own fields
_MOST_VALUES = 1000
_FORMS = "write it like 512, 512,1024, 0-4096+1024 or 256-4096*2"
_FLASH_ATTN = {"on": "on", "off": "off", "auto": "auto", "1": "on", "0": "off", "-1": "auto"}


def run(file: Path, arguments: Sequence[str], endpoints: Sequence[str]) -> None:
    """Measure FILE as llama-bench does with these `arguments` and print the rows to stdout.

    Raises UsageError and what `pipeline.bench_rows` does.
    """
    from offloadtune import pipeline  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console  # noqa: PLC0415

    given = _parsed(arguments)
    text_format = (given["output"] or ["md"])[-1]
    if text_format not in ROW_FORMATS:
        raise UsageError(f"-o {text_format!r} is no form of llama-bench.", hint=f"use one of {', '.join(ROW_FORMATS)}")
    requests = _requests(file, given, endpoints)
    rows: list[BenchRow] = []
    try:
        pipeline.bench_rows(requests, console.tell, rows.append)
    finally:
        if rows:
            show(pipeline.render_rows(rows, text_format))


def _requests(file: Path, given: Mapping[str, Sequence[str]], endpoints: Sequence[str]) -> list[RowsRequest]:
    """One for each combination of values, in llama-bench's order, so that rows come as it prints them."""
    asked = RowsRequest(
        path=file,
        n_prompt=numbers("-p", given["n_prompt"]) or (512,),
        n_gen=numbers("-n", given["n_gen"]) or (128,),
        n_pg=tuple(pair("-pg", text) for text in given["n_pg"]),
        n_depth=numbers("-d", given["n_depth"]) or (0,),
        n_reps=(numbers("-r", given["n_reps"], least=1) or (5,))[-1],
        endpoints=tuple(endpoints),
    )
    values: dict[str, tuple[Any, ...]] = {
        "n_gpu_layers": numbers("-ngl", given["n_gpu_layers"], least=-1),
        "n_cpu_moe": numbers("-ncmoe", given["n_cpu_moe"]),
        "tensor_split": splits("-ts", given["tensor_split"]),
        "repack": switches("--repack", given["repack"]),
        "n_batch": numbers("-b", given["n_batch"], least=1),
        "n_ubatch": numbers("-ub", given["n_ubatch"], least=1),
        "type_k": names(given["type_k"]),
        "type_v": names(given["type_v"]),
        "flash_attn": flash_attentions("-fa", given["flash_attn"]),
        "n_threads": numbers("-t", given["n_threads"], least=1),
    }
    values = {name: some for name, some in values.items() if some}
    n_runs = math.prod(map(len, values.values()))
    if n_runs > _MOST_VALUES:
        raise UsageError(f"These values combine to {n_runs} runs of the tests.", hint="give fewer values at a time")
    return [
        dataclasses.replace(asked, **dict(zip(values, variant, strict=True)))
        for variant in itertools.product(*values.values())
    ]


_OPTIONS = {
    "-p": ("--n-prompt", "n_prompt"),
    "-n": ("--n-gen", "n_gen"),
    "-pg": ("--n-pg", "n_pg"),
    "-d": ("--n-depth", "n_depth"),
    "-b": ("--batch-size", "n_batch"),
    "-ub": ("--ubatch-size", "n_ubatch"),
    "-ctk": ("--cache-type-k", "type_k"),
    "-ctv": ("--cache-type-v", "type_v"),
    "-t": ("--threads", "n_threads"),
    "-ngl": ("--n-gpu-layers", "n_gpu_layers"),
    "-ncmoe": ("--n-cpu-moe", "n_cpu_moe"),
    "-ts": ("--tensor-split", "tensor_split"),
    "-fa": ("--flash-attn", "flash_attn"),
    "--repack": ("--repack", "repack"),
    "-r": ("--repetitions", "n_reps"),
    "-o": ("--output", "output"),
}
_NAMES = {word: name for short, (long, name) in _OPTIONS.items() for word in (short, long)}


def _parsed(arguments: Sequence[str]) -> dict[str, list[str]]:
    """The texts given to each option: all take one value, be it -1, and may come several times. Raises UsageError."""
    given: dict[str, list[str]] = {name: [] for _, name in _OPTIONS.values()}
    words, hint = iter(arguments), f"use its options: {' '.join(_OPTIONS)}"
    for word in words:
        option, equals, rest = word.partition("=")
        if option not in _NAMES:
            raise UsageError(f"--llama-bench: {word!r} is no option of it that offloadtune knows.", hint=hint)
        value = rest if equals else next(words, None)
        if value is None:
            raise UsageError(f"--llama-bench: {option} has no value.", hint=hint)
        given[_NAMES[option]].append(value)
    return given


def show(text: str) -> None:
    """Print rows to stdout as they are: a program may read them."""
    sys.stdout.write(text)
    sys.stdout.flush()


def numbers(option: str, texts: Sequence[str], *, least: int = 0) -> tuple[int, ...]:
    """The numbers of llama-bench's lists and ranges: 512,1024 or 0-4096+1024 or 256-4096*2. Raises UsageError."""
    found: list[int] = []
    for part in names(texts):
        match = _RANGE.match(part)
        if match is None or len(part) > 50:
            raise UsageError(f"{option} {part!r} is no number, nor a range of numbers.", hint=_FORMS)
        first, last = int(match[1]), int(match[2] or match[1])
        if not least <= first <= last <= _LARGEST:
            raise UsageError(f"{option} {part!r} does not go up from {least} to {_LARGEST} at most.", hint=_FORMS)
        step = int(match[4] or 1)
        while first <= last:
            found.append(first)
            following = first * step if match[3] == "*" else first + step
            if following <= first or len(found) > _MOST_VALUES:
                raise UsageError(f"{option} {part!r} has no end, or thousands of values.", hint=_FORMS)
            first = following
    return tuple(found)


def pair(option: str, text: str) -> tuple[int, int]:
    """Two numbers, as in 512,128. Raises UsageError."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(part.isdecimal() and len(part) <= 20 and int(part) <= _LARGEST for part in parts):
        raise UsageError(f"{option} {text!r} is not a prompt and an answer.", hint=f"write it like {option} 512,128")
    return int(parts[0]), int(parts[1])


def switches(option: str, texts: Sequence[str]) -> tuple[bool, ...]:
    """Of 0 and 1. Raises UsageError."""
    parts = names(texts)
    for part in parts:
        if part not in {"0", "1"}:
            raise UsageError(f"{option} {part!r} is neither 0 nor 1.", hint="use 0 or 1")
    return tuple(part == "1" for part in parts)


def splits(option: str, texts: Sequence[str]) -> tuple[tuple[float, ...] | None, ...]:
    """Shares like 3/1; None, the engine's own rule, for what llama-bench takes for it: all 0. Raises UsageError."""
    parts = [part.replace(";", "/") for part in names(texts)]
    return tuple(None if _ALL_ZERO.match(part) else options.split(option, part) for part in parts)


def flash_attentions(option: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Of on, off and auto, or the numbers older versions take for them. Raises UsageError."""
    parts = names(texts)
    for part in parts:
        if part not in _FLASH_ATTN:
            raise UsageError(f"{option} {part!r} is not known.", hint="use on, off or auto")
    return tuple(_FLASH_ATTN[part] for part in parts)


def names(texts: Sequence[str]) -> tuple[str, ...]:
    """What commas part."""
    return tuple(part.strip() for text in texts for part in text.split(","))
