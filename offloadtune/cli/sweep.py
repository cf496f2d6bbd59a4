"""`offloadtune sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offloadtune.cli import asking
from offloadtune.cli.completion import name_of, one_of
from offloadtune.errors import InterruptedSweepError, UsageError
from offloadtune.records import WORKLOADS, Goal, Target


def sweep(  # noqa: PLR0913, PLR0917 - one parameter an option
    file: Annotated[
        str | None,
        typer.Argument(help="A GGUF model file, any shard of one, or its name in the list.", show_default=False),
    ] = None,
    standin: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Instead of FILE: a published model, like llama-3-70b, by a file of its size with random weights.",
            autocompletion=name_of("shape_names"),
        ),
    ] = None,
    quant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --standin: the quantisation.", autocompletion=name_of("quant_names")),
    ] = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time for measuring, like 90s or 10m.")] = "120s",
    goal: Annotated[
        str, typer.Option(help=f"What best means: {', '.join(Goal)}.", autocompletion=one_of(Goal))
    ] = Goal.TURN.value,
    workload: Annotated[
        str,
        typer.Option(
            help="chat, rag, code, long, CACHED/NEW/GENERATED/SEQUENCES, or a TOML file.",
            autocompletion=one_of(WORKLOADS),
        ),
    ] = "chat",
    target: Annotated[
        str,
        typer.Option(help=f"The front end to measure for: {', '.join(Target)}.", autocompletion=one_of(Target)),
    ] = "llama_cpp_python",
    n_ctx: Annotated[
        int | None,
        typer.Option("--n-ctx", min=1, help="Context wanted, at least with --goal context; default: what is filled."),
    ] = None,
    min_tok_per_s: asking.MinTokPerS = None,
    max_ttft: asking.MaxTtft = None,
    vram_limit: asking.VramLimit = None,
    ram_limit: asking.RamLimit = None,
    rpc: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="A llama.cpp RPC server to use as a device.")
    ] = None,
    fix: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Fix a setting instead of trying it.")
    ] = None,
    allow_kv_quant: Annotated[
        bool, typer.Option("--allow-kv-quant", help="Try a q8_0 and a q4_0 KV cache too, and say how answers change.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure anew what the same sweep measured before.")] = False,
    prove: Annotated[bool, typer.Option("--prove", help="Hash the whole file before and after.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure how FILE runs best here, write the settings as a profile, and say why.

    With --standin, how a model would run that is not here: nothing is downloaded.
    """
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console, files, options, progress  # noqa: PLC0415
    from offloadtune.sweeps import SweepRequest  # noqa: PLC0415

    _check_source(file, standin, quant)
    request = SweepRequest(
        path=Path() if file is None else files.path_of(file),
        workload=options.workload(workload),
        budget_s=options.seconds("--budget", budget),
        goal=Goal(options.choice("--goal", goal, list(Goal))),
        target=Target(options.choice("--target", target, list(Target))),
        n_ctx=n_ctx,
        vram_limit_bytes=options.bytes_of("--vram-limit", vram_limit) if vram_limit else None,
        limits=options.limits(ram_limit, max_ttft, min_tok_per_s),
        endpoints=tuple(rpc or ()),
        fixed=options.fixed_settings(fix or ()),
        allow_kv_quant=allow_kv_quant,
        prove=prove,
        is_fresh=fresh,
    )
    with progress.listener() as listen:
        if standin is None or quant is None:
            found = pipeline.sweep(request, listen)
            value, view, is_interrupted = report.sweep_json(found), report.sweep_view(found), found.is_interrupted
        else:
            whole = pipeline.sweep_standin(standin, quant, request, listen)
            value, view = report.standin_sweep_json(whole), report.standin_sweep_view(whole)
            is_interrupted = whole.is_interrupted
    if json:
        console.show_json(value)
    else:
        console.show(view)
    if is_interrupted:
        raise typer.Exit(InterruptedSweepError.exit_code)


def _check_source(file: str | None, standin: str | None, quant: str | None) -> None:
    """Refuse what names no model, or two."""
    if (file is None) == (standin is None):
        hint = "offloadtune sweep FILE, or offloadtune sweep --standin llama-3-8b --quant Q4_K_M"
        raise UsageError("A sweep needs a FILE or --standin, and not both.", hint=hint)
    if standin is not None and quant is None:
        raise UsageError(f"--standin {standin} needs a quantisation.", hint="add --quant, for example --quant Q4_K_M")
    if file is not None and quant is not None:
        raise UsageError("A file says its own quantisation.", hint="leave out --quant")
