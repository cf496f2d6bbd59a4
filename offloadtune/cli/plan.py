"""`offloadtune plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from offloadtune.cli.completion import name_of, one_of
from offloadtune.records import Target

_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
_FLASH_ATTN = {"on": "enabled", "off": "disabled", "auto": "auto"}
_LOAD_MODES = ("mmap", "none", "mlock", "mmap_mlock", "direct_io", "auto")


def plan(  # noqa: PLR0913, PLR0917 - one parameter an option
    file: Annotated[
        str | None, typer.Argument(help="A GGUF model file, or its name in the list.", show_default=False)
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A published model, without its file.", autocompletion=name_of("shape_names")
        ),
    ] = None,
    quant: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The quantisation of --shape, like Q4_K_M.", autocompletion=name_of("quant_names")
        ),
    ] = None,
    card: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Plan for this card, like 'RTX 3090'.", autocompletion=name_of("card_names")),
    ] = None,
    n_devices: Annotated[int, typer.Option("--n-devices", min=1, max=16, help="So many of that card.")] = 1,
    ram: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Main memory, for the speed, like ddr5-5600x2 or '76.8 GB/s'.")
    ] = None,
    vram_limit: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Use at most this much memory of each device.")
    ] = None,
    ram_limit: Annotated[str | None, typer.Option(metavar="BYTES", help="Use at most this much main memory.")] = None,
    rpc: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="A llama.cpp RPC server to use as a device.")
    ] = None,
    target: Annotated[
        str, typer.Option(help=f"The front end to plan for: {', '.join(Target)}.", autocompletion=one_of(Target))
    ] = "llama_cpp_python",
    n_gpu_layers: Annotated[
        int | None,
        typer.Option("--n-gpu-layers", min=-1, help="Layers on devices, -1 for all; else the most that fit."),
    ] = None,
    n_ctx: Annotated[int | None, typer.Option("--n-ctx", min=1, help="Context; default 4096.")] = None,
    prompt: Annotated[
        int | None, typer.Option("--prompt", min=1, help="Predict the speed for a prompt of so many tokens.")
    ] = None,
    depth: Annotated[int, typer.Option("--depth", min=0, help="And for so many tokens before it in the cache.")] = 0,
    n_batch: Annotated[int | None, typer.Option("--n-batch", min=1, help="Tokens of a batch.")] = None,
    n_ubatch: Annotated[int | None, typer.Option("--n-ubatch", min=1, help="Tokens computed at once.")] = None,
    type_k: Annotated[
        str | None, typer.Option("--type-k", help="Type of the K cache.", autocompletion=one_of(_CACHE_TYPES))
    ] = None,
    type_v: Annotated[
        str | None, typer.Option("--type-v", help="Type of the V cache.", autocompletion=one_of(_CACHE_TYPES))
    ] = None,
    flash_attn: Annotated[
        str | None, typer.Option("--flash-attn", help="on, off or auto.", autocompletion=one_of(_FLASH_ATTN))
    ] = None,
    n_cpu_moe: Annotated[
        int | None, typer.Option("--n-cpu-moe", min=0, help="Keep the experts of so many blocks in main memory.")
    ] = None,
    tensor_split: Annotated[
        str | None,
        typer.Option("--tensor-split", metavar="SHARES", help="Shares of the devices in the layers, like 3/1."),
    ] = None,
    n_seq_max: Annotated[int | None, typer.Option("--n-seq-max", min=1, help="Sequences at once.")] = None,
    n_outputs_max: Annotated[
        int | None, typer.Option("--n-outputs-max", min=0, help="Logits kept at once, 0 for a whole batch.")
    ] = None,
    swa_full: Annotated[
        bool | None, typer.Option("--swa-full/--no-swa-full", help="Keep whole caches where a window would do.")
    ] = None,
    kv_unified: Annotated[
        bool | None, typer.Option("--kv-unified/--no-kv-unified", help="One cache for all sequences.")
    ] = None,
    load_mode: Annotated[
        str | None, typer.Option("--load-mode", help=f"{', '.join(_LOAD_MODES)}.", autocompletion=one_of(_LOAD_MODES))
    ] = None,
    draft: Annotated[
        str | None, typer.Option(metavar="FILE", help="A draft model, all of it on the last device.")
    ] = None,
    mmproj: Annotated[
        str | None, typer.Option(metavar="FILE", help="A projector of images, on the first device.")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Ask the engine itself, which loads nothing.")] = False,
    batch: Annotated[
        Path | None,
        typer.Option(metavar="SPECS.jsonl", help="One plan a line, as JSON lines; - reads them from stdin."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what settings would take of each device and of main memory, and how fast they should be."""
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console, files, options  # noqa: PLC0415
    from offloadtune.plans import PlanRequest  # noqa: PLC0415

    asked: dict[str, Any] = {
        "n_gpu_layers": n_gpu_layers,
        "n_ctx": n_ctx,
        "n_batch": n_batch,
        "n_ubatch": n_ubatch,
        "type_k": type_k if type_k is None else options.choice("--type-k", type_k.lower(), _CACHE_TYPES),
        "type_v": type_v if type_v is None else options.choice("--type-v", type_v.lower(), _CACHE_TYPES),
        "flash_attn_type": _flash_attn(flash_attn),
        "n_cpu_moe": n_cpu_moe,
        "tensor_split": tensor_split if tensor_split is None else options.split("--tensor-split", tensor_split),
        "n_seq_max": n_seq_max,
        "n_outputs_max": n_outputs_max,
        "swa_full": swa_full,
        "kv_unified": kv_unified,
        "load_mode": load_mode if load_mode is None else options.choice("--load-mode", load_mode, _LOAD_MODES),
    }
    request = PlanRequest(
        path=None if file is None else Path(file) if shape or quant else files.path_of(file),  # both are refused
        shape=shape,
        quant=quant,
        card=card,
        n_devices=n_devices,
        limit_bytes=options.bytes_of("--vram-limit", vram_limit) if vram_limit is not None else None,
        ram_limit_bytes=options.bytes_of("--ram-limit", ram_limit) if ram_limit is not None else None,
        endpoints=tuple(rpc or ()),
        target=Target(options.choice("--target", target, list(Target))),
        asked={name: value for name, value in asked.items() if value is not None},
        draft=None if draft is None else files.path_of(draft),
        mmproj=None if mmproj is None else files.path_of(mmproj),
        is_exact=exact,
        ram=ram,
        n_prompt=prompt,
        depth=depth,
    )
    if batch is not None:
        options.alone("--batch", request == PlanRequest(), "its lines say what is planned")
        console.show_json_lines(report.plan_line_json(one) for one in pipeline.plan_lines(options.lines_of(batch)))
        return
    found = pipeline.plan(request)
    if json:
        console.show_json(report.plan_report_json(found))
    else:
        console.show(report.plan_view(found))


def _flash_attn(text: str | None) -> str | None:
    from offloadtune.cli import options  # noqa: PLC0415 - kept out of --help

    return None if text is None else _FLASH_ATTN[options.choice("--flash-attn", text, list(_FLASH_ATTN))]
