"""The options of the commands that ask the journals, and the question that their texts make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from offloadtune.cli.completion import one_of
from offloadtune.records import WORKLOADS, Goal, Target

if TYPE_CHECKING:
    from offloadtune.recalls import Question

ModelFile = Annotated[
    str, typer.Argument(help="A GGUF model file, any shard of one, or its name in the list.", show_default=False)
]
File = Annotated[
    str, typer.Argument(help="A GGUF model file that was measured, or its name in the list.", show_default=False)
]
GoalText = Annotated[
    str | None, typer.Option("--goal", help=f"What best means: {', '.join(Goal)}.", autocompletion=one_of(Goal))
]
WorkloadText = Annotated[
    str | None,
    typer.Option(
        "--workload",
        help="chat, rag, code, long, CACHED/NEW/GENERATED/SEQUENCES, or a TOML file.",
        autocompletion=one_of(WORKLOADS),
    ),
]
TargetText = Annotated[
    str | None, typer.Option("--target", help=f"The front end: {', '.join(Target)}.", autocompletion=one_of(Target))
]
ContextSize = Annotated[int | None, typer.Option("--n-ctx", min=1, help="Context wanted.")]
VramLimit = Annotated[
    str | None, typer.Option("--vram-limit", metavar="BYTES", help="Use at most this much device memory.")
]
RamLimit = Annotated[
    str | None,
    typer.Option("--ram-limit", metavar="BYTES", help="Use at most this much main memory, mapped weights included."),
]
MinTokPerS = Annotated[
    float | None, typer.Option("--min-tok-per-s", metavar="N", help="Write at least so many tokens a second.")
]
MaxTtft = Annotated[
    str | None,
    typer.Option("--max-ttft", metavar="TIME", help="Have the first token within this time in 95 of 100 turns."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def question(  # noqa: PLR0913 - one parameter an option
    file: str,
    goal: str | None,
    workload: str | None,
    target: str | None,
    n_ctx: int | None,
    *,
    vram_limit: str | None = None,
    ram_limit: str | None = None,
    min_tok_per_s: float | None = None,
    max_ttft: str | None = None,
) -> Question:
    """What is asked; what is not said is taken as in the newest sweep. Raises UsageError."""
    from offloadtune.cli import files, options  # noqa: PLC0415 - kept out of --help
    from offloadtune.recalls import Question  # noqa: PLC0415

    return Question(
        path=files.path_of(file),
        goal=Goal(options.choice("--goal", goal, list(Goal))) if goal else None,
        workload=options.workload(workload) if workload else None,
        target=options.target(target),
        n_ctx=n_ctx,
        vram_limit_bytes=options.bytes_of("--vram-limit", vram_limit) if vram_limit else None,
        limits=options.limits(ram_limit, max_ttft, min_tok_per_s),
    )
