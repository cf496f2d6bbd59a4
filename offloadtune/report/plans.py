"""Memory plans for the terminal and as JSON values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offloadtune.plans import DevicePlan, HostPlan, MemoryPlan, PlanReport, RuntimeBasis, Tier
from offloadtune.records import Basis
from offloadtune.report.words import printable
from offloadtune.speeds import Figure, Gain, Prediction
from offloadtune.units import format_bytes, format_seconds, format_split, format_tok_per_s

_BAR_CELLS = 40
_N_ROWS_SHOWN = 12
_RUNTIME_WORTH_SAYING_BYTES = 1 << 30
_KINDS: Mapping[str, tuple[str, str]] = {
    "weights": ("█", "blue"),
    "KV cache": ("▓", "green"),
    "compute": ("▒", "yellow"),
    "logits": ("▒", "yellow"),
    "runtime": ("░", "magenta"),
    "draft model": ("▚", "cyan"),
    "projector": ("▞", "cyan"),
}
"""What memory is taken for: how it is drawn, and in which colour."""

_TIERS = {
    Tier.ENGINE: "How sure: tier A, the engine itself was asked, and loaded nothing for it.",
    Tier.LOG: "How sure: tier B, compute buffers from the engine's log, weights and cache by exact arithmetic.",
    Tier.ARITHMETIC: "How sure: tier C, arithmetic on the header: weights and cache exact, compute to some per cent.",
}
_BASES = {
    RuntimeBasis.CALIBRATED: " as measured here",
    RuntimeBasis.PUBLISHED: " by published logs",
    RuntimeBasis.UNKNOWN: "runtime unknown until a sweep has run on it",
}
_SPEED_BASES = {
    Basis.CATALOGUE: "from the catalogue",
    Basis.CALIBRATED: "calibrated by runs on this machine",
    Basis.MEASURED: "measured on this machine",
}
_N_GAINS_SHOWN = 3
_FRAC_WORTH_SAYING = 0.01
_UNKNOWN = "Whether it fits is not known: name a card with --card, or memory with --vram-limit and --ram-limit."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One bar: `parts` are (kind, bytes, words to add); `size` says what there is to take from."""

    name: str
    parts: tuple[tuple[str, int, str], ...]
    total_bytes: int
    capacity_bytes: int | None
    size: str
    is_short: bool
    notes: tuple[str, ...] = ()


def plan_view(report: PlanReport) -> RenderableType:
    """Whether it fits and why not, bars of what goes where, and what one more layer or more context costs."""
    plan, settings = report.plan, report.plan.settings
    most = " (the most that fits)" if report.chose_layers and plan.fits else ""
    layers = f"n_gpu_layers={settings.n_gpu_layers} of {report.n_layer + 1}{most}, n_ctx={settings.n_ctx}"
    experts = f", n_cpu_moe={settings.n_cpu_moe}" if settings.n_cpu_moe else ""
    shares = f", tensor_split={format_split(settings.tensor_split)}" if settings.tensor_split else ""
    shown = f"n_batch={settings.n_batch}, n_ubatch={settings.n_ubatch}, KV cache {settings.type_k}/{settings.type_v}"
    sequences = f", {settings.n_seq_max} sequences" if settings.n_seq_max > 1 else ""
    rows = [*(_device_row(device) for device in plan.devices), _host_row(plan.host)]
    return Group(
        Text(f"{printable(plan.label)}, {plan.quantisation}, for {plan.target.value}", style="bold"),
        Text(f"{layers}{experts}{shares}"),
        Text(f"{shown}, flash attention {settings.flash_attn_type}{sequences}"),
        Text(),
        *_verdict(report),
        Text(),
        *_bars(rows),
        *_speed(plan.prediction),
        *_gains(report.gains),
        *_costs(report),
        *_rows_table(report),
        *_notes(report),
    )


def plan_json(plan: MemoryPlan) -> dict[str, Any]:
    """One plan. `runtime_bytes`, `free_bytes` and `fits` are null where they are not known."""
    return {
        "devices": {device.name: _device_json(device) for device in plan.devices},
        "host": {
            **dataclasses.asdict(plan.host),
            "total_bytes": plan.host.total_bytes,
            "held_bytes": plan.host.held_bytes,
        },
        "fits": plan.fits,
        "tier": plan.tier.value,
        "refusals": list(plan.refusals),
        "warnings": list(plan.warnings),
        "n_splits": None if plan.n_splits is None else list(plan.n_splits),
        "label": plan.label,
        "quantisation": plan.quantisation,
        "target": plan.target.value,
        "settings": dataclasses.asdict(plan.settings),
        "prediction": None if plan.prediction is None else prediction_json(plan.prediction),
    }


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """Figures with the range that holds the truth in 90 of 100 cases, and bounds that are null where none is known."""
    return {
        "decode_tok_per_s": _figure_json(prediction.decode_tok_per_s),
        "prefill_tok_per_s": _figure_json(prediction.prefill_tok_per_s),
        "ttft_s": _figure_json(prediction.ttft_s),
        "bound_tok_per_s": prediction.bound_tok_per_s,
        "bound_prefill_tok_per_s": prediction.bound_prefill_tok_per_s,
        "n_prompt_tokens": prediction.n_prompt_tokens,
        "depth": prediction.depth,
        "decode_depth": prediction.decode_depth,
        "words": list(prediction.words),
    }


def _speed(prediction: Prediction | None) -> Iterator[RenderableType]:
    """Decode, prefill and the first token: each expected value, where it lies in 90 of 100 cases, and its bound."""
    if prediction is None:
        return
    decode, prefill, ttft = prediction.decode_tok_per_s, prediction.prefill_tok_per_s, prediction.ttft_s
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("", "expected", "90 % range", "at most"):
        table.add_column(title, justify="left" if not title else "right")
    at = f" at {prediction.decode_depth} tokens" if prediction.decode_depth else ""
    after = f" after {prediction.depth}" if prediction.depth else ""
    prompt = f"prefill of {prediction.n_prompt_tokens} tokens{after}"
    table.add_row(f"decode{at}", *_rate_cells(decode), _bound(prediction.bound_tok_per_s))
    table.add_row(prompt, *_rate_cells(prefill), _bound(prediction.bound_prefill_tok_per_s))
    low, high = format_seconds(ttft.low), format_seconds(ttft.high)
    table.add_row("time to first token", format_seconds(ttft.value), f"{low} to {high}", "")
    yield Text()
    yield Text("Speed", style="bold").append(f", {_basis(decode, prefill)}", style="not bold")
    yield table
    yield from (Text(f"- {printable(sentence)}") for sentence in prediction.words)


def _rate_cells(figure: Figure) -> tuple[str, str]:
    low = format_tok_per_s(_modest(figure.low)).partition(" ")[0]
    return format_tok_per_s(_modest(figure.value)), f"{low} to {format_tok_per_s(_modest(figure.high))}"


def _bound(tok_per_s: float | None) -> str:
    return "unknown" if tok_per_s is None else format_tok_per_s(_modest(tok_per_s))


def _modest(value: float) -> float:
    """Three digits of it, which is more than anyone knows."""
    return float(f"{value:.3g}")


def _basis(decode: Figure, prefill: Figure) -> str:
    if decode.basis is prefill.basis is Basis.CATALOGUE:
        return f"{_SPEED_BASES[decode.basis]}: no run of such a file has shown it"
    if decode.basis is prefill.basis:
        return _SPEED_BASES[decode.basis]
    return f"decode {_SPEED_BASES[decode.basis]}, prefill {_SPEED_BASES[prefill.basis]}"


def _gains(gains: Sequence[Gain]) -> Iterator[Text]:
    if not gains:
        return
    yield Text()
    yield Text("What would help most", style="bold")
    for gain in gains[:_N_GAINS_SHOWN]:
        sooner = f"first token {abs(gain.ttft_frac):.0%} {'sooner' if gain.ttft_frac > 0 else 'later'}"
        parts = [f"decode {gain.decode_frac:+.0%}"] if abs(gain.decode_frac) >= _FRAC_WORTH_SAYING else []
        parts += [sooner] if abs(gain.ttft_frac) >= _FRAC_WORTH_SAYING else []
        yield Text(f"- {printable(gain.what)}: {', '.join(parts)}")


def _figure_json(figure: Figure) -> dict[str, Any]:
    return {"value": figure.value, "low": figure.low, "high": figure.high, "basis": figure.basis.value}


def plan_report_json(report: PlanReport) -> dict[str, Any]:
    """A plan with what lies around it."""
    return {
        **plan_json(report.plan),
        "layer_cost_bytes": report.layer_cost_bytes,
        "context_cost_bytes_per_4096": report.context_cost_bytes,
        "measured_peak_bytes": dict(report.measured),
        "by_n_gpu_layers": [dataclasses.asdict(row) for row in report.rows],
        "gains": [dataclasses.asdict(gain) for gain in report.gains],
    }


def plan_line_json(answer: MemoryPlan | str) -> dict[str, Any]:
    """The answer to one line of a batch."""
    return {"error": answer} if isinstance(answer, str) else plan_json(answer)


def _device_json(device: DevicePlan) -> dict[str, Any]:
    value = dataclasses.asdict(device)
    del value["name"]
    return {**value, "total_bytes": device.total_bytes}


def _device_row(device: DevicePlan) -> _Row:
    parts = [("weights", device.weights_bytes, ""), ("KV cache", device.kv_cache_bytes, "")]
    parts += [("compute", device.compute_bytes, ""), ("draft model", device.draft_bytes, "")]
    parts += [("projector", device.projector_bytes, "")]
    basis, runtime = _BASES[device.runtime_basis], device.runtime_bytes
    if runtime is not None:
        parts.append(("runtime", runtime, basis))
    is_used = device.total_bytes > 0
    return _Row(
        name=device.name,
        parts=tuple(parts),
        total_bytes=device.total_bytes,
        capacity_bytes=device.free_bytes,
        size=", size unknown" if device.free_bytes is None else f" of {format_bytes(device.free_bytes)}",
        is_short=device.short_bytes > 0,
        notes=(basis,) if runtime is None and is_used else () if is_used else ("nothing",),
    )


def _host_row(host: HostPlan) -> _Row:
    how = " mapped from the file" if host.is_mapped else " held in memory"
    parts = [("weights", host.weights_bytes, how), ("KV cache", host.kv_cache_bytes, "")]
    parts += [("compute", host.compute_bytes, ""), ("logits", host.output_bytes, "")]
    parts += [("draft model", host.draft_bytes, ""), ("projector", host.projector_bytes, "")]
    cache = f"and up to {format_bytes(host.prompt_cache_bytes)} of past prompts" if host.prompt_cache_bytes else ""
    available = host.available_bytes
    return _Row(
        name="host",
        parts=tuple(parts),
        total_bytes=host.total_bytes,
        capacity_bytes=available,
        size=", not checked without --ram-limit" if available is None else f" of {format_bytes(available)}",
        is_short=available is not None and host.held_bytes > available,
        notes=(cache,) if cache else (),
    )


def _bars(rows: Sequence[_Row]) -> Iterator[Text]:
    """Each bar as wide as what there is to take from, or as the fullest other one where that is not known."""
    width = max(8, *(len(row.name) for row in rows))
    scale = max(max(row.capacity_bytes or 0, row.total_bytes) for row in rows)
    for row in rows:
        yield _bar(row, width, scale)
        words = [f"{_KINDS[kind][0]} {kind} {format_bytes(size)}{more}" for kind, size, more in row.parts if size > 0]
        for line in _wrapped([*words, *row.notes], 100 - width - 1):
            yield Text(f"{'':<{width}} {line}", style="dim")


def _bar(row: _Row, width: int, scale: int) -> Text:
    """The name, a stacked bar, and the sum."""
    whole = max(row.total_bytes, scale if row.capacity_bytes is None else row.capacity_bytes, 1)
    bar = Text(f"{printable(row.name):<{width}} ")
    edge = filled = 0
    for kind, size, _ in row.parts:
        block, colour = _KINDS[kind]
        edge += size
        cells = round(_BAR_CELLS * edge / whole)
        bar.append(block * (cells - filled), style=colour)
        filled = max(filled, cells)
    bar.append(("·" if row.capacity_bytes is not None else " ") * (_BAR_CELLS - filled), style="dim")
    bar.append(f" {format_bytes(row.total_bytes)}{row.size}")
    if row.is_short:
        bar.append(" - too much", style="bold red")
    return bar


def _wrapped(words: Sequence[str], width: int) -> Iterator[str]:
    """`words` joined to lines of at most `width` characters."""
    line = ""
    for word in words:
        if line and len(line) + 2 + len(word) > width:
            yield line
            line = ""
        line += f"  {word}" if line else word
    if line:
        yield line


def _verdict(report: PlanReport) -> Iterator[Text]:
    plan = report.plan
    is_checked = plan.host.available_bytes is not None or not plan.devices
    fits = "It fits." if is_checked else "It fits on the device; main memory is not checked without --ram-limit."
    yield Text({True: fits, False: "It does not fit.", None: _UNKNOWN}[plan.fits], style="bold")
    yield from (Text(f"- {printable(sentence)}") for sentence in plan.refusals)
    if plan.fits is False:
        yield from (Text(f"- {sentence}") for sentence in _ways_out(report))
    if plan.fits:
        yield from (Text(f"- {sentence}") for sentence in _provisos(plan))


def _provisos(plan: MemoryPlan) -> Iterator[str]:
    """What is left for a runtime that nobody has measured, where it may be too little."""
    for device in plan.devices:
        if device.runtime_bytes is None and device.free_bytes is not None and device.total_bytes:
            left = device.free_bytes - device.total_bytes - device.band_bytes
            if left < _RUNTIME_WORTH_SAYING_BYTES:
                yield f"On {device.name} {format_bytes(left)} are left for its runtime, of which nothing is known."


def _ways_out(report: PlanReport) -> Iterator[str]:
    """What would fit: fewer layers at this context, or less context with these layers."""
    settings = report.plan.settings
    enough = [row for row in report.rows if (row.n_ctx_max or 0) >= settings.n_ctx]
    if enough and enough[-1].n_gpu_layers < settings.n_gpu_layers:
        yield f"With n_gpu_layers={enough[-1].n_gpu_layers} it fits."
    own = next((row for row in report.rows if row.n_gpu_layers == settings.n_gpu_layers), None)
    if own and own.n_ctx_max and own.n_ctx_max < settings.n_ctx:
        yield f"With n_ctx={own.n_ctx_max} it fits."


def _notes(report: PlanReport) -> Iterator[Text]:
    plan = report.plan
    yield Text()
    yield Text(_TIERS[plan.tier], style="dim")
    yield from (Text(f"- {printable(sentence)}", style="dim") for sentence in plan.warnings)
    if plan.n_splits is not None and max(plan.n_splits) > 1:
        prompt, token = plan.n_splits
        yield Text(f"The work is handed over between devices in {prompt} parts for a prompt, {token} for a token.")


def _costs(report: PlanReport) -> Iterator[Text]:
    if report.layer_cost_bytes is None or report.context_cost_bytes is None:
        return
    yield Text()
    is_last = report.plan.settings.n_gpu_layers > report.n_layer
    layer = "The last layer took" if is_last else "One more layer costs"
    context = f"4096 more tokens of context cost {format_bytes(report.context_cost_bytes)}"
    yield Text(f"{layer} {format_bytes(report.layer_cost_bytes)} of device memory, {context}.")
    for name, n_bytes in report.measured:
        predicted = next((one.total_bytes for one in report.plan.devices if one.name == name), None)
        if predicted is not None:
            yield Text(f"Measured on {name}: {format_bytes(n_bytes)}, planned {format_bytes(predicted)}.")


def _rows_table(report: PlanReport) -> Iterator[RenderableType]:
    rows, chosen = report.rows, report.plan.settings.n_gpu_layers
    if not rows:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("n_gpu_layers", f"device memory at n_ctx={report.plan.settings.n_ctx}", "largest n_ctx that fits"):
        table.add_column(title, justify="right")
    step = max(1, -(-len(rows) // _N_ROWS_SHOWN))
    for row in rows:
        if row.n_gpu_layers % step and row.n_gpu_layers not in {chosen, rows[-1].n_gpu_layers}:
            continue
        largest = "unknown" if row.n_ctx_max is None else f"{row.n_ctx_max:,}" if row.n_ctx_max else "none"
        words = f"{largest} (all)" if row.is_all else largest
        mark = "* " if row.n_gpu_layers == chosen else ""
        style = "bold" if row.n_gpu_layers == chosen else None
        table.add_row(f"{mark}{row.n_gpu_layers}", format_bytes(row.device_bytes), words, style=style)
    yield Text()
    yield table
