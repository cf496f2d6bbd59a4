"""`offloadtune recommend`."""

from __future__ import annotations

from offloadtune.cli import asking


def recommend(  # noqa: PLR0913, PLR0917 - one parameter an option
    file: asking.File,
    goal: asking.GoalText = None,
    workload: asking.WorkloadText = None,
    target: asking.TargetText = None,
    n_ctx: asking.ContextSize = None,
    json: asking.AsJson = False,
) -> None:
    """Answer at once from what was measured before.

    What is not said is taken as in the newest sweep of FILE.
    """
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console  # noqa: PLC0415

    found = pipeline.recommend_stored(asking.question(file, goal, workload, target, n_ctx), console.tell)
    if json:
        console.show_json(report.recall_json(found))
    else:
        console.show(report.recall_view(found))
