"""A workload as the TOML file that `--workload` takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tomli_w

from offloadtune.records import Workload


def render_workload(workload: Workload, reasons: Sequence[str]) -> str:
    """The numbers by name, after `reasons` as comments: sentences of ours, each of one line."""
    numbers = dataclasses.asdict(workload)
    del numbers["name"]  # that of the file is taken
    return "".join(f"# {reason}\n" for reason in reasons) + tomli_w.dumps(numbers)
