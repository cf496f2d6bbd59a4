"""What may be tried, where the search begins, and what its answer is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from offloadtune.footprint import estimate_footprint, pad_256
from offloadtune.records import GgufFacts, Goal, Settings, Target, Trial, Workload

_FIT_MARGIN_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What may be tried. `device_bytes` is what the offload devices together have to give, 0 without any.

    `fixed` are settings the user named, `kept` those the self-test needs to stay alive; both hold everywhere, in
    the baselines too, but for n_gpu_layers of the CPU alone. `limit_bytes` is the user's own limit on device memory.
    Cores and threads are those this process may use; `n_os_cpus` counts all of the system's, as front ends do.
    """

    facts: GgufFacts
    workload: Workload
    goal: Goal
    target: Target
    n_ctx: int
    device_bytes: int
    limit_bytes: int | None
    n_physical_cores: int
    n_logical_cores: int
    n_os_cpus: int
    fixed: Mapping[str, Any] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)

    @property
    def everything(self) -> int:
        """n_gpu_layers that puts every layer, the output too, on the device."""
        return self.facts.n_layer + 1

    @property
    def has_devices(self) -> bool:
        return self.device_bytes > 0

    def hold(self, settings: Settings) -> Settings:
        """`settings` with what the self-test keeps and the user fixed; n_batch gives way to a larger fixed n_ubatch."""
        held = {**self.kept, **self.fixed}
        n_batch = max(settings.n_batch, held.get("n_ubatch", 0))
        return settings.replace(**{"n_batch": n_batch, **held})

    def trial(self, settings: Settings, why: str) -> Trial:
        return Trial(settings=settings, target=self.target, why=why)


def start_settings(space: Space) -> Settings:
    """Where the search begins on the CPU: the target's constraints, one thread a core, flash attention."""
    common = Settings(
        n_ctx=space.n_ctx,
        n_threads=space.n_physical_cores,
        n_threads_batch=space.n_physical_cores,
        flash_attn_type="enabled",
    )
    if space.target is Target.LLAMA_SERVER:
        common = common.replace(n_batch=2048, flash_attn_type="auto", swa_full=False, n_outputs_max=1)
    return space.hold(sane(common))


def default_settings(space: Space) -> Settings:
    """What the target does unasked, only n_ctx raised so that the workload runs.

    llama-cpp-python: Llama.__init__ (CPU, half of multiprocessing.cpu_count() to decode and all of it for prompts, no
    flash attention). llama-server: arg.cpp (four slots, all layers) with its --fit rule for the number of layers: one
    GiB stays free.
    """
    if space.target is Target.LLAMA_CPP_PYTHON:
        settings = Settings(
            n_ctx=space.n_ctx,
            n_threads=max(space.n_os_cpus // 2, 1),
            n_threads_batch=space.n_os_cpus,
            flash_attn_type="disabled",
        )
        return space.hold(sane(settings))
    settings = start_settings(space).replace(n_seq_max=4, n_outputs_max=4, kv_unified=True)
    return space.hold(settings.replace(n_gpu_layers=_fit_rule(space, settings)))


def baseline_trials(space: Space) -> dict[str, Trial]:
    """What the recommendation is compared with, by name; without devices "cpu_only" is where the search begins."""
    cpu_only = start_settings(space)
    if space.has_devices:
        cpu_only = cpu_only.replace(n_gpu_layers=0, devices=())
    why = f"{space.target.value} with its own defaults"
    if space.target is Target.LLAMA_SERVER and space.has_devices and "n_gpu_layers" not in space.fixed:
        why += ", the layers by our estimate of its --fit rule"
    return {
        "cpu_only": space.trial(cpu_only, "the CPU alone"),
        "default": space.trial(default_settings(space), why),
    }


def sane(settings: Settings) -> Settings:
    """As the engine will round it: contexts in blocks of 256, a batch no larger than the context."""
    n_ctx = pad_256(settings.n_ctx)
    n_batch = min(settings.n_batch, n_ctx)
    return settings.replace(n_ctx=n_ctx, n_batch=n_batch, n_ubatch=min(settings.n_ubatch, n_batch))


def can_fit(space: Space, settings: Settings) -> bool:
    """False only when the least the settings can take is more than there is; without devices nothing goes there."""
    return not space.has_devices or estimate_footprint(space.facts, settings).least_bytes <= space.device_bytes


def _fit_rule(space: Space, settings: Settings) -> int:
    """Largest n_gpu_layers that leaves the margin of llama.cpp's --fit free, by our estimate."""
    available = space.device_bytes - _FIT_MARGIN_BYTES
    for k in range(space.everything, 0, -1):
        if estimate_footprint(space.facts, settings.replace(n_gpu_layers=k)).bytes <= available:
            return k
    return 0
