"""Records as text for people (rich tables) and for programs (JSON values). Writes nothing itself."""

from offloadtune.report.json_values import inspect_json, probe_json, sweep_json
from offloadtune.report.terminal import headline, inspect_view, probe_view, sweep_view

__all__ = ["headline", "inspect_json", "inspect_view", "probe_json", "probe_view", "sweep_json", "sweep_view"]
