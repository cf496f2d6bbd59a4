"""Batches: one plan for each line of a JSON-lines file, for scripts; a line that has no answer says why."""

from __future__ import annotations

import difflib
import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from offloadtune.errors import OffloadTuneError, UsageError
from offloadtune.footprint import BYTES_OF_32
from offloadtune.pipeline.companions import companions_for
from offloadtune.pipeline.planning import facts_for, plan_memory
from offloadtune.pipeline.rooms import named_place
from offloadtune.plans import MemoryPlan, PlanRequest
from offloadtune.records import Settings, Target
from offloadtune.units import parse_split

Found = TypeVar("Found")

_COUNTS = ("n_gpu_layers", "n_ctx", "n_batch", "n_ubatch", "n_cpu_moe", "n_seq_max", "n_outputs_max")
_CHOICES = {
    "type_k": tuple(BYTES_OF_32),
    "type_v": tuple(BYTES_OF_32),
    "load_mode": ("auto", "none", "mmap", "mlock", "mmap_mlock", "direct_io"),
}
_SWITCHES = ("swa_full", "kv_unified", "offload_kqv", "op_offload")
_FLASH_ATTN = {
    **dict.fromkeys(("on", "enabled", "true", "1", 1), "enabled"),  # JSON's true and false are equal to 1 and 0
    **dict.fromkeys(("off", "disabled", "false", "0", 0), "disabled"),
    **dict.fromkeys(("auto", "-1", -1), "auto"),
}
_OF_SPEED = ("ram", "ram_gb_per_s", "n_prompt_tokens", "depth")
_OF_FILES = ("file", "draft", "mmproj")
_OF_PLACE = ("shape", "quant", "card", "vram_limit_bytes", "ram_limit_bytes", "n_devices", "target")
_KEYS = sorted({*_COUNTS, *_CHOICES, *_SWITCHES, *_OF_SPEED, *_OF_FILES, *_OF_PLACE, "flash_attn", "tensor_split"})
_UNTIL_ASKED = {"n_gpu_layers": -1, "swa_full": False, "flash_attn_type": "auto", "n_outputs_max": 0}
"""What a line leaves out is as in llama.cpp's own programs, except that logits are kept for the whole batch."""

_GB_PER_S = (0.1, 100_000)
"""What main memory can have, generously."""

_TOO_LARGE = 1 << 53
_TOO_LONG = 1 << 20
_N_CHARS_OF_TEXT = 4096  # as long as a path can be
_N_KEPT = 64
_SHOWN = 60
_FORM = 'write like {"shape": "llama-3-8b", "quant": "Q4_K_M"}'


def plan_lines(lines: Iterable[str]) -> Iterator[MemoryPlan | str]:
    """The plan of each line that is not blank, in order, or the sentences that say why it has none and what to do.

    A header is read once for the lines that name its file; of the last few only, so that memory stays bounded.
    """
    facts_of, companions_of = _kept(facts_for), _kept(companions_for)
    for line in lines:
        if not line.strip():
            continue
        try:
            request = request_of(line)
            about = PlanRequest(path=request.path, shape=request.shape, quant=request.quant)
            beside = PlanRequest(draft=request.draft, mmproj=request.mmproj)
            yield plan_memory(request, facts_of(about), named_place(request), companions_of(beside))
        except OffloadTuneError as error:
            hint = error.hint.strip()
            yield f"{error} {hint[:1].upper()}{hint[1:].rstrip('.')}." if hint else str(error)


def request_of(line: str) -> PlanRequest:
    """What one line asks. Raises UsageError."""
    spec = _object(line)
    unknown = sorted(set(spec) - set(_KEYS))
    if unknown:
        raise UsageError(f"{_shown(unknown[0])} is no key of a specification.", hint=_nearest_keys(unknown[0]))
    spec = {key: value for key, value in spec.items() if value is not None}
    target = Target(_choice(spec, "target", list(Target))) if "target" in spec else None
    path, draft, mmproj = (None if text is None else Path(text) for text in (_text(spec, key) for key in _OF_FILES))
    return PlanRequest(
        path=path,
        draft=draft,
        mmproj=mmproj,
        shape=_text(spec, "shape"),
        quant=_text(spec, "quant"),
        card=_text(spec, "card"),
        n_devices=_count({"n_devices": 1, **spec}, "n_devices", least=1),
        limit_bytes=_count(spec, "vram_limit_bytes") if "vram_limit_bytes" in spec else None,
        ram_limit_bytes=_count(spec, "ram_limit_bytes") if "ram_limit_bytes" in spec else None,
        target=target or Target.LLAMA_CPP_PYTHON,
        asked={**({"n_gpu_layers": -1} if target else _UNTIL_ASKED), **_asked(spec)},
        ram=_text(spec, "ram"),
        ram_bytes_per_s=_bandwidth(spec, "ram_gb_per_s"),
        n_prompt=_count(spec, "n_prompt_tokens") if "n_prompt_tokens" in spec else None,
        depth=_count({"depth": 0, **spec}, "depth"),
    )


def _asked(spec: dict[str, Any]) -> dict[str, Any]:
    """The fields of `Settings` that a specification names."""
    asked: dict[str, Any] = {key: _choice(spec, key, values) for key, values in _CHOICES.items() if key in spec}
    asked |= {key: _switch(spec, key) for key in _SWITCHES if key in spec}
    for key in _COUNTS:
        if key in spec:
            asked[key] = _count(spec, key, least=-1 if key == "n_gpu_layers" else 0)
    if "flash_attn" in spec:
        asked["flash_attn_type"] = _flash_attn(spec["flash_attn"])
    if "tensor_split" in spec:
        asked["tensor_split"] = _split(spec["tensor_split"])
    return asked


def _kept(read: Callable[[PlanRequest], Found]) -> Callable[[PlanRequest], Found]:
    """`read` with its last answers kept by what they depend on."""
    kept: OrderedDict[tuple[Any, ...], Found] = OrderedDict()

    def answer(request: PlanRequest) -> Found:
        key = (request.path, request.shape, request.quant, request.draft, request.mmproj)
        kept[key] = kept.pop(key) if key in kept else read(request)
        if len(kept) > _N_KEPT:
            kept.popitem(last=False)
        return kept[key]

    return answer


def _nearest_keys(name: str) -> str:
    near = difflib.get_close_matches(name[:_SHOWN], _KEYS, n=1)
    return f"use {near[0]} (or one of {', '.join(_KEYS)})" if near else f"use one of {', '.join(_KEYS)}"


def _object(line: str) -> dict[str, Any]:
    if len(line) > _TOO_LONG:
        raise UsageError(f"The line is longer than {_TOO_LONG} characters.", hint=_FORM)
    try:
        spec = json.loads(line, object_pairs_hook=_without_doubles, parse_constant=_refused_constant)
    except RecursionError:
        raise UsageError("The line is not JSON that is meant: it is nested too deep.", hint=_FORM) from None
    except ValueError as error:
        raise UsageError(f"The line is not JSON: {error}.", hint=_FORM) from None
    if not isinstance(spec, dict):
        raise UsageError("The line is not a JSON object.", hint=_FORM)
    return spec


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    spec = dict(pairs)
    if len(spec) < len(pairs):
        double, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise UsageError(f"The key {_shown(double)} occurs twice.", hint="name it once")
    return spec


def _refused_constant(name: str) -> NoReturn:
    message = f"it has no {name}"
    raise ValueError(message)


def _bandwidth(spec: dict[str, Any], key: str) -> float | None:
    """Gigabytes a second that memory has, in bytes."""
    value = spec.get(key)
    if value is None:
        return None
    low, high = _GB_PER_S
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        sentence = f"{key} must be a number from {low:g} to {high:g}, not {_shown(value)}."
        raise UsageError(sentence, hint="correct this line, or leave it out where it is not known")
    return float(value) * 1e9


def _count(spec: dict[str, Any], key: str, least: int = 0) -> int:
    value = spec.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < _TOO_LARGE:
        raise UsageError(
            f"{key} must be a whole number of at least {least}, not {_shown(value)}.", hint="correct this line"
        )
    return value


def _text(spec: dict[str, Any], key: str) -> str | None:
    value = spec.get(key)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{key} must be a text, not {_shown(value)}.", hint="correct this line")
    if value is not None and not 0 < len(value) <= _N_CHARS_OF_TEXT:
        what = "is empty" if not value else f"is longer than {_N_CHARS_OF_TEXT} characters"
        raise UsageError(f"{key} {what}.", hint="correct this line")
    return value


def _choice(spec: dict[str, Any], key: str, values: Iterable[str]) -> str:
    value = spec.get(key)
    if isinstance(value, str) and value.lower() in values:
        return value.lower()
    raise UsageError(f"{key} {_shown(value)} is not known.", hint=f"use one of {', '.join(values)}")


def _switch(spec: dict[str, Any], key: str) -> bool:
    value = spec.get(key)
    if value not in (True, False):
        raise UsageError(f"{key} must be true or false, not {_shown(value)}.", hint="correct this line")
    return bool(value)


def _flash_attn(value: Any) -> str:
    try:
        return _FLASH_ATTN[value.lower() if isinstance(value, str) else value]
    except (KeyError, TypeError):
        raise UsageError(f"flash_attn {_shown(value)} is not known.", hint="use on, off or auto") from None


def _split(value: Any) -> tuple[float, ...]:
    """Shares as a list of numbers, or as a text like 3/1."""
    try:
        if isinstance(value, list) and all(type(one) in {int, float} for one in value):
            return Settings(tensor_split=tuple(value)).tensor_split or ()
        if isinstance(value, str):
            return Settings(tensor_split=parse_split(value)).tensor_split or ()
    except (ValueError, OverflowError) as error:
        raise UsageError(f"tensor_split {_shown(value)}: {error}.", hint="write it like [3, 1]") from None
    raise UsageError(f"tensor_split must be a list of numbers, not {_shown(value)}.", hint="write it like [3, 1]")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
