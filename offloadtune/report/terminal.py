"""Tables for the terminal, made of records; the caller prints them."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offloadtune.plans import CacheCost
from offloadtune.records import (
    Estimate,
    Figures,
    GgufFacts,
    Goal,
    Outcome,
    Recommendation,
    Settings,
    Target,
)
from offloadtune.report.around import explanation_lines, front_lines
from offloadtune.report.standins import standin_lines
from offloadtune.report.words import largest_tensors, printable
from offloadtune.sweeps import SweepReport
from offloadtune.units import (
    format_bytes,
    format_count,
    format_seconds,
    format_split,
    format_tok_per_s,
)

_SHOWN_SETTINGS = ("n_gpu_layers", "n_ctx", "n_batch", "n_ubatch", "n_threads", "n_threads_batch", "flash_attn_type")

_SHOWN_WHERE_CHANGED = (
    "devices",
    "n_cpu_moe",
    "n_cpu_ffn",
    "offload_kqv",
    "type_k",
    "type_v",
    "op_offload",
    "op_offload_min_batch",
    "use_extra_bufts",
    "no_host",
    "load_mode",
)


def inspect_view(facts: GgufFacts, cache: CacheCost | None) -> RenderableType:
    """What the header says, what a context costs by it, and the largest tensors."""
    table = facts_table()
    table.add_row("file", f"{facts.path.name}, {format_bytes(facts.file_bytes)}, GGUF version {facts.version}")
    table.add_row(
        "model",
        f"{printable(facts.name) or 'unnamed'}, {printable(facts.arch)}, {facts.n_params / 1e6:,.0f} M parameters",
    )
    if facts.stands_for:
        table.add_row("no real file", printable(facts.standin_words))
    table.add_row("quantisation", f"{facts.quantisation} ({_type_words(facts)})")
    table.add_row("layers", f"{facts.n_layer} and the output: -ngl {facts.n_layer + 1} is everything")
    table.add_row("layer size", f"{format_bytes(min(facts.layer_bytes))} to {format_bytes(max(facts.layer_bytes))}")
    table.add_row(
        "embedding", f"{format_bytes(facts.embedding_bytes)}{', shared with the output' if facts.is_tied else ''}"
    )
    table.add_row("context trained", f"{facts.n_ctx_train:,} tokens")
    if facts.n_expert:
        experts = format_bytes(sum(facts.expert_bytes))
        table.add_row("experts", f"{facts.n_expert_used} of {facts.n_expert} at a time, {experts} in all")
    if facts.n_swa:
        table.add_row("sliding window", f"{facts.n_swa} tokens in {sum(facts.is_swa)} of {facts.n_layer} layers")
    table.add_row("KV cache", _cache_words(facts, cache))
    table.add_row("identity", facts.gguf_id)
    return Group(table, Text(), _tensor_table(facts))


def _cache_words(facts: GgufFacts, cache: CacheCost | None) -> str:
    if cache is None:
        return "unknown: the header's sizes are absurd"
    words = f"{format_bytes(cache.bytes_per_token)} a token of context in f16"
    if cache.fixed_bytes:
        words += f", and {format_bytes(cache.fixed_bytes)} whatever the context"
    whole = cache.bytes_per_token * facts.n_ctx_train + cache.fixed_bytes
    return f"{words}; {format_bytes(whole)} for all {facts.n_ctx_train:,} tokens"


def _tensor_table(facts: GgufFacts) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, justify in (("largest tensors", "left"), ("shape", "right"), ("type", "left"), ("size", "right")):
        table.add_column(title, justify="right" if justify == "right" else "left", no_wrap=True)
    for tensor in largest_tensors(facts):
        shape = " x ".join(map(str, tensor.shape))
        table.add_row(printable(tensor.name), shape, tensor.type_name, format_bytes(tensor.n_bytes))
    return table


def sweep_view(report: SweepReport) -> RenderableType:
    """The answer: figures, settings, reasons, and how to use it."""
    return Group(
        *standin_lines(report.facts.stands_for, report.facts.n_layer),
        *answer_lines(report.recommendation, report.baselines, report.n_steps, report.skipped),
        *(Text(f"- While it was measured: {printable(words)}") for words in report.changes),
        *_expected_lines(report),
        *_memory_lines(report),
        *front_lines(report.front),
        *explanation_lines(report.explanation, report.recommendation.goal),
        *use_lines(report.recommendation, report.apply_text),
        Text(_outcome_words(report), style="dim"),
        Text(f"the same as a file: {report.apply_path}"),
        Text(f"profile: {report.profile_path}"),
        *_next_lines(report),
    )


def _expected_lines(report: SweepReport) -> Iterator[RenderableType]:
    """What was expected of the recommended settings before they ran, and what their placement allows at most."""
    chosen = report.chosen
    if chosen is None or chosen.expected is None:
        return
    ttft, decode, bound = chosen.expected.ttft_s, chosen.expected.decode_tok_per_s, chosen.expected.bound_tok_per_s
    most = f"; memory allows {format_tok_per_s(bound)} at most" if bound else ""
    yield Text(
        f"expected before it ran ({ttft.basis.value}): first token {format_seconds(ttft.low)} to "
        f"{format_seconds(ttft.high)}, writing {format_tok_per_s(decode.low)} to {format_tok_per_s(decode.high)}{most}",
        style="dim",
    )


def _memory_lines(report: SweepReport) -> Iterator[RenderableType]:
    """What the recommended settings took of each device, beside what was expected."""
    chosen = report.chosen
    predicted = dict(chosen.device_predicted_bytes) if chosen else {}
    for name, peak in chosen.device_peak_bytes if chosen else ():
        if peak and name in predicted:
            reckoned, more = predicted[name], peak - predicted[name]
            words = f"{format_bytes(abs(more))} {'more' if more >= 0 else 'less'} than reckoned before it was loaded"
            yield Text(f"memory of {name}: {format_bytes(peak)} at the peak, {words}" if reckoned else "")


def _next_lines(report: SweepReport) -> Iterator[RenderableType]:
    """The commands that go on from here."""
    file, real = shlex.quote(str(report.facts.path)), report.facts.stands_for
    if real and report.facts.n_layer != real.n_layer:
        yield Text(
            "settings for the real file take a stand-in with all of its layers: offloadtune standin, no --layers"
        )
        return
    yield Text(f"for the real file: offloadtune export {file} --yes" if real else f"serve it: offloadtune apply {file}")
    rivals = [one.against for one in report.recommendation.versus if one.ratio.n_samples]
    if rivals:
        sure = " --yes" if real else ""
        yield Text(f"check it by hand: offloadtune export {file} --of {rivals[0]}{sure}", style="dim")


def answer_lines(
    answer: Recommendation, baselines: Mapping[str, Figures], n_steps: int, skipped: Sequence[str]
) -> Iterator[RenderableType]:
    """Figures of the answer beside those of the baselines, its settings, and the reasons."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "first token", "prompt", "writing", "turn"):
        table.add_column(title, justify="left" if not title else "right")
    for name, figures in {"recommended": answer.figures, **baselines}.items():
        table.add_row(
            name.replace("_", " "),
            format_seconds(figures.ttft_s.p50),
            format_tok_per_s(figures.prefill_tok_per_s.p50),
            format_tok_per_s(figures.decode_tok_per_s.p50),
            format_seconds(figures.turn_s.p50),
            style="bold" if name == "recommended" else None,
        )
    yield from (Text(), table)
    yield Text(f"first token: {_interval(answer.figures.ttft_s)}", style="dim")
    yield Text(f"turn: the first token and {_turn_words(answer.workload.n_gen - 1, n_steps)}", style="dim")
    yield Text()
    yield Text(settings_words(answer.trial.settings), style="bold")
    yield from (Text(f"- {printable(reason)}") for reason in answer.reasons)
    yield from (Text(f"- Not tried: {reason}.", style="dim") for reason in skipped)


def use_lines(answer: Recommendation, apply_text: str) -> Iterator[RenderableType]:
    """How to use the answer."""
    yield Text()
    yield Text("use it:" if answer.trial.target is Target.LLAMA_SERVER else "use it in Python:", style="bold")
    yield Text(apply_text)


def headline(answer: Recommendation) -> str:
    """The goal's figure and the split, in a few words."""
    if answer.goal is Goal.TTFT:
        figure = f"{format_seconds(answer.figures.ttft_s.p50)} to the first token"
    elif answer.goal is Goal.DECODE:
        figure = format_tok_per_s(answer.figures.decode_tok_per_s.p50)
    else:
        figure = f"{format_seconds(answer.figures.turn_s.p50)} a turn"
    settings = answer.trial.settings
    away = {name: getattr(settings, name) for name in ("n_cpu_moe", "n_cpu_ffn")}
    words = "".join(f", {name} {n}" for name, n in away.items() if n)
    return f"{figure}, n_gpu_layers {settings.n_gpu_layers}{words}"


def _outcome_words(report: SweepReport) -> str:
    outcomes = Counter(result.outcome for result in report.results)
    failed = sum(outcomes.values()) - outcomes[Outcome.OK] - outcomes[Outcome.CANCELLED]
    words = [format_count(outcomes[Outcome.OK], "trial") + " ok", f"{failed} failed"]
    words += [format_count(report.n_rounds, "round") + " side by side", format_count(report.n_model_loads, "load")]
    stopped = "stopped by you after" if report.is_interrupted else "in"
    why = f": {report.ended}" if report.ended and not report.is_interrupted else ""
    return f"{', '.join(words)}, {stopped} {format_seconds(report.duration_s)}{why}"


def _turn_words(n_more: int, n_timed: int) -> str:
    return f"{n_more} more at the rate of the {n_timed} timed" if n_more > n_timed else f"{n_more} more"


def _interval(estimate: Estimate) -> str:
    if estimate.n_samples == 1:
        return f"{format_seconds(estimate.p50)}, one sample"
    return (
        f"{format_seconds(estimate.low)} to {format_seconds(estimate.high)} around the median "
        f"({format_count(estimate.n_samples, 'sample')}, coverage {estimate.coverage_frac:.0%})"
    )


def settings_words(settings: Settings) -> str:
    """Those that a sweep looks for, and others that are not the default."""
    shown = ", ".join(f"{name}={getattr(settings, name)}" for name in _SHOWN_SETTINGS)
    return shown + _device_setting(settings)


def _device_setting(settings: Settings) -> str:
    changed = [name for name in _SHOWN_WHERE_CHANGED if getattr(settings, name) != _DEFAULTS[name]]
    shares = f", tensor_split={format_split(settings.tensor_split)}" if settings.tensor_split else ""
    return "".join(f", {name}={getattr(settings, name)}" for name in changed) + shares


_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Settings)}


def facts_table() -> Table:
    """A table of titles and what is said of each."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    return table


def _type_words(facts: GgufFacts) -> str:
    largest = sorted(facts.type_bytes, key=lambda pair: -pair[1])[:3]
    return ", ".join(f"{name} {n_bytes / max(1, facts.tensor_bytes):.0%}" for name, n_bytes in largest)
