"""Memory plans for the terminal and as JSON values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offloadtune.plans import DevicePlan, HostPlan, LayerRow, MemoryPlan, PlanReport, RuntimeBasis, Tier
from offloadtune.report.words import printable
from offloadtune.units import format_bytes

_BAR_CELLS = 40
_N_ROWS_SHOWN = 12
_KINDS = (("weights", "█", "blue"), ("KV cache", "▓", "green"), ("compute", "▒", "yellow"), ("runtime", "░", "magenta"))
_TIERS = {
    Tier.ENGINE: "asked of the engine itself (tier A)",
    Tier.LOG: "by the engine's log and arithmetic (tier B)",
    Tier.ARITHMETIC: "by arithmetic (tier C): weights and cache exact, compute buffers to some per cent",
}
_BASES = {
    RuntimeBasis.CALIBRATED: "runtime, calibrated",
    RuntimeBasis.PUBLISHED: "runtime, by published logs",
    RuntimeBasis.UNKNOWN: "runtime, unknown until a sweep has run",
}


def plan_view(report: PlanReport) -> RenderableType:
    """Bars of what goes where, whether it fits, and what one more layer or more context costs."""
    plan = report.plan
    settings = plan.settings
    head = Text(f"{printable(plan.label)}, {plan.quantisation}, for {plan.target.value}", style="bold")
    chosen = " (the most that fits)" if report.chose_layers else ""
    shown = f"n_gpu_layers={settings.n_gpu_layers} of {report.n_layer + 1}{chosen}, n_ctx={settings.n_ctx}"
    shown += f", n_ubatch={settings.n_ubatch}, KV {settings.type_k}/{settings.type_v}"
    shown += f", flash attention {settings.flash_attn_type}"
    parts: list[RenderableType] = [head, Text(shown), Text()]
    parts += [part for device in plan.devices for part in _device_lines(device)]
    parts += [*_host_lines(plan.host), Text()]
    parts += list(_verdict(plan))
    parts += list(_costs(report))
    if report.rows:
        parts += [Text(), _rows_table(report.rows, settings.n_gpu_layers, settings.n_ctx)]
    return Group(*parts)


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
    }


def plan_report_json(report: PlanReport) -> dict[str, Any]:
    """A plan with what lies around it."""
    return {
        **plan_json(report.plan),
        "layer_cost_bytes": report.layer_cost_bytes,
        "context_cost_bytes_per_4096": report.context_cost_bytes,
        "measured_peak_bytes": dict(report.measured),
        "by_n_gpu_layers": [dataclasses.asdict(row) for row in report.rows],
    }


def plan_line_json(answer: MemoryPlan | str) -> dict[str, Any]:
    """The answer to one line of a batch."""
    return {"error": answer} if isinstance(answer, str) else plan_json(answer)


def _device_json(device: DevicePlan) -> dict[str, Any]:
    value = dataclasses.asdict(device)
    del value["name"]
    return {**value, "total_bytes": device.total_bytes}


def _device_lines(device: DevicePlan) -> Iterator[Text]:
    sizes = (device.weights_bytes, device.kv_cache_bytes, device.compute_bytes, device.runtime_bytes or 0)
    yield _bar(device.name, sizes, device.total_bytes, device.free_bytes, is_short=device.short_bytes > 0)
    words = [f"{kind[0]} {format_bytes(size)}" for kind, size in zip(_KINDS[:3], sizes[:3], strict=True)]
    known = "" if device.runtime_bytes is None else f": {format_bytes(device.runtime_bytes)}"
    yield Text(f"         {', '.join(words)}, {_BASES[device.runtime_basis]}{known}", style="dim")


def _host_lines(host: HostPlan) -> Iterator[Text]:
    sizes = (host.weights_bytes, host.kv_cache_bytes, host.compute_bytes + host.output_bytes, 0)
    is_short = host.available_bytes is not None and host.held_bytes > host.available_bytes
    yield _bar("host", sizes, host.total_bytes, host.available_bytes, is_short=is_short)
    mapped = " mapped from the file" if host.is_mapped else " held in memory"
    words = [f"weights {format_bytes(host.weights_bytes)}{mapped}", f"KV cache {format_bytes(host.kv_cache_bytes)}"]
    words += [f"compute {format_bytes(host.compute_bytes)}", f"logits {format_bytes(host.output_bytes)}"]
    if host.prompt_cache_bytes:
        words.append(f"and up to {format_bytes(host.prompt_cache_bytes)} of past prompts")
    yield Text(f"         {', '.join(words)}", style="dim")


def _bar(name: str, sizes: Sequence[int], total: int, capacity: int | None, *, is_short: bool) -> Text:
    """`name`, a stacked bar as wide as the capacity (or as the total, where it is more), and the sum."""
    whole = max(total, capacity or 0, 1)
    bar = Text(f"{name:<8} ")
    edge = filled = 0
    for (_, block, colour), size in zip(_KINDS, sizes, strict=True):
        edge += size
        cells = round(_BAR_CELLS * edge / whole)
        bar.append(block * (cells - filled), style=colour)
        filled = max(filled, cells)
    bar.append("·" * (_BAR_CELLS - filled), style="dim")
    of = "" if capacity is None else f" of {format_bytes(capacity)}"
    bar.append(f" {format_bytes(total)}{of}")
    if is_short:
        bar.append(" - too much", style="bold red")
    return bar


def _verdict(plan: MemoryPlan) -> Iterator[Text]:
    words = {
        True: "It fits",
        False: "It does not fit",
        None: "Whether it fits depends on the card: name one with --card",
    }
    yield Text(f"{words[plan.fits]}, {_TIERS[plan.tier]}.", style="bold")
    yield from (Text(f"- {printable(sentence)}") for sentence in plan.refusals)
    yield from (Text(f"- {printable(sentence)}", style="dim") for sentence in plan.warnings)
    if plan.n_splits is not None:
        yield Text(f"graph: {plan.n_splits[0]} splits for a prompt, {plan.n_splits[1]} for a token", style="dim")


def _costs(report: PlanReport) -> Iterator[Text]:
    if report.layer_cost_bytes is None or report.context_cost_bytes is None:
        return
    is_last = report.plan.settings.n_gpu_layers > report.n_layer
    layer = "The last layer took" if is_last else "One more layer costs"
    context = f"4096 more tokens of context cost {format_bytes(report.context_cost_bytes)}"
    yield Text(f"{layer} {format_bytes(report.layer_cost_bytes)}, {context}.")
    for name, n_bytes in report.measured:
        predicted = next((one.total_bytes for one in report.plan.devices if one.name == name), None)
        if predicted is not None:
            yield Text(f"Measured on {name}: {format_bytes(n_bytes)}, planned {format_bytes(predicted)}.")


def _rows_table(rows: Sequence[LayerRow], chosen: int, n_ctx: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("n_gpu_layers", f"on devices at {n_ctx}", "largest context"):
        table.add_column(title, justify="right")
    step = max(1, -(-len(rows) // _N_ROWS_SHOWN))
    for row in rows:
        if row.n_gpu_layers % step and row.n_gpu_layers not in {chosen, rows[-1].n_gpu_layers}:
            continue
        largest = "unknown" if row.n_ctx_max is None else f"{row.n_ctx_max:,}" if row.n_ctx_max else "none"
        words = f"{largest} (all)" if row.is_all else largest
        style = "bold" if row.n_gpu_layers == chosen else None
        table.add_row(str(row.n_gpu_layers), format_bytes(row.device_bytes), words, style=style)
    return table
