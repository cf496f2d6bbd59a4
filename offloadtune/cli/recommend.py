"""`offloadtune recommend`."""

from __future__ import annotations

from typing import Any

from offloadtune.cli import asking


def recommend(  # noqa: PLR0913, PLR0917 - one parameter an option
    file: asking.File,
    goal: asking.GoalText = None,
    workload: asking.WorkloadText = None,
    target: asking.TargetText = None,
    n_ctx: asking.ContextSize = None,
    min_tok_per_s: asking.MinTokPerS = None,
    max_ttft: asking.MaxTtft = None,
    vram_limit: asking.VramLimit = None,
    ram_limit: asking.RamLimit = None,
    json: asking.AsJson = False,
) -> None:
    """Answer at once from what was measured before.

    What is not said is taken as in the newest sweep of FILE.
    """
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console  # noqa: PLC0415

    limits: dict[str, Any] = {"vram_limit": vram_limit, "ram_limit": ram_limit}
    limits |= {"min_tok_per_s": min_tok_per_s, "max_ttft": max_ttft}
    asked = asking.question(file, goal, workload, target, n_ctx, **limits)
    found = pipeline.recommend_stored(asked, console.tell)
    if json:
        console.show_json(report.recall_json(found))
    else:
        console.show(report.recall_view(found))
