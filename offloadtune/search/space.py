"""What may be tried, where the search begins, and what its answer is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offloadtune.footprint import Grid, anatomy_of, estimate_footprints, pad_256, reckon
from offloadtune.records import NO_LIMITS, GgufFacts, Goal, Limits, Settings, Target, Trial, Workload
from offloadtune.speed import Laws

FIT_MARGIN_BYTES = 1 << 30
"""What llama.cpp's --fit rule leaves free on each device."""

N_CTX_SHIPPED = 512
"""Context of `Llama` unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What may be tried. `device_bytes` is what the offload devices together have to give, 0 without any.

    `lists_devices` where the engine lists some, even if they have nothing to give now.
    `fixed` are settings the user named, `kept` those the self-test needs to stay alive; both hold everywhere, in
    the baselines too, but for n_gpu_layers of the CPU alone. `allow_kv_quant` where the user allows a cache of lower
    precision than f16, which is never tried unasked. `limit_bytes` is the user's own limit on device memory, `limits`
    are all others.
    `n_fit_layers` is what llama.cpp's own --fit rule answered, None where it could not be asked and is estimated here;
    `no_fit` says why its answer cannot be tried at all, "" where it can.
    `runtime_bytes` is what earlier trials took of the devices beyond any footprint, 0 where none has told.
    `n_devices` take layers; `device_names` are theirs and `device_free_bytes` what each of them has free, in the
    engine's order, whatever the user's limit is; () where that is not known.
    `pins_host` where a device offers pinned memory of the host, `repacks` where the CPU has layouts of its own.
    Cores and threads are those this process may use; `n_os_cpus` counts all of the system's, as front ends do.
    `laws` says what is believed of the speed of settings like those given, None where nothing is to be foretold.
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
    allow_kv_quant: bool = False
    n_fit_layers: int | None = None
    no_fit: str = ""
    lists_devices: bool = False
    runtime_bytes: int = 0
    n_devices: int = 1
    device_names: tuple[str, ...] = ()
    device_free_bytes: tuple[int, ...] = ()
    pins_host: bool = False
    repacks: bool = False
    laws: Callable[[Settings], Laws] | None = field(default=None, compare=False, repr=False)
    limits: Limits = NO_LIMITS

    @property
    def everything(self) -> int:
        """n_gpu_layers that puts every layer, the output too, on the device."""
        return self.facts.n_layer + 1

    @property
    def has_devices(self) -> bool:
        return self.lists_devices or self.device_bytes > 0

    @property
    def counts_reading(self) -> bool:
        """Whether it matters how long a prompt takes."""
        return self.goal is not Goal.DECODE or self.limits.ttft_p95_s is not None

    @property
    def counts_writing(self) -> bool:
        """Whether it matters how long a token takes."""
        return self.goal is not Goal.TTFT or self.limits.min_tok_per_s is not None

    @property
    def fit_basis(self) -> str:
        """What is to be said of the --fit rule's layers where we had to reckon them ourselves."""
        if self.n_fit_layers is not None:
            return ""
        return " in whole layers as we estimate it" if self.no_fit else " as we estimate it"

    def hold(self, settings: Settings) -> Settings:
        """`settings` with what the self-test keeps and the user fixed; n_batch gives way to a larger fixed n_ubatch."""
        held = {**self.kept, **self.fixed}
        n_batch = max(settings.n_batch, held.get("n_ubatch", 0))
        return _clipped(settings.replace(**{"n_batch": n_batch, **held}))

    def trial(self, settings: Settings, why: str, told: tuple[str, ...] | None = None) -> Trial:
        return Trial(settings=settings, target=self.target, why=why, told=told)


def start_settings(space: Space) -> Settings:
    """Where the search begins on the CPU: the target's constraints, one thread a core, flash attention."""
    cores = space.n_physical_cores
    common = settings_of_target(space.target).replace(n_ctx=space.n_ctx, n_threads=cores, n_threads_batch=cores)
    return space.hold(sane(common))


def settings_of_target(target: Target) -> Settings:
    """What the target fixes, with flash attention: `Llama` keeps the logits of a whole batch and full caches."""
    if target is Target.LLAMA_SERVER:
        return Settings(n_batch=2048, flash_attn_type="auto", swa_full=False, n_outputs_max=1)
    return Settings(flash_attn_type="enabled")


def default_settings(space: Space) -> Settings:
    """What the target does unasked, only n_ctx raised where the workload does not fit.

    llama-cpp-python: Llama.__init__ (CPU, half of multiprocessing.cpu_count() to decode and all of it for prompts, no
    flash attention). llama-server: arg.cpp (four slots, all layers) with its --fit rule for the number of layers.
    """
    if space.target is Target.LLAMA_CPP_PYTHON:
        return space.hold(llama_defaults(space.n_ctx, space.n_os_cpus))
    return _fit_settings(space)


def llama_defaults(n_ctx: int, n_os_cpus: int) -> Settings:
    """What `Llama` takes unasked, but for the context."""
    n_threads = max(n_os_cpus // 2, 1)
    return sane(Settings(n_ctx=n_ctx, n_threads=n_threads, n_threads_batch=n_os_cpus, flash_attn_type="disabled"))


def baseline_trials(space: Space) -> dict[str, Trial]:
    """What the recommendation is compared with, by name; without devices "cpu_only" is where the search begins.

    `default` is what the target does unasked, `fit` the number of layers by llama.cpp's --fit rule, `as_shipped` the
    front end as it comes, where the workload is too long for the context it comes with: it shows that it refuses.
    """
    cpu_only, default = start_settings(space), default_settings(space)
    if space.has_devices:
        cpu_only = cpu_only.replace(n_gpu_layers=0, devices=())
    why = f"{space.target.value} with its own defaults"
    trials = {"cpu_only": space.trial(cpu_only, "the CPU alone")}
    if space.target is Target.LLAMA_SERVER:
        by_rule = space.has_devices and "n_gpu_layers" not in space.fixed
        trials["default"] = space.trial(default, why + by_rule * f", the layers by its --fit rule{space.fit_basis}")
        return trials
    held = tuple({**space.kept, **space.fixed, **({"n_batch": 0} if "n_ubatch" in space.fixed else {})})
    raised = default.n_ctx != N_CTX_SHIPPED
    raised_words = f", n_ctx set to {default.n_ctx}" if raised else ""
    trials["default"] = space.trial(default, why + raised_words, told=("n_ctx",) * raised + held)
    if raised and space.workload.n_ctx_needed > N_CTX_SHIPPED:
        shipped = space.hold(sane(default.replace(n_ctx=N_CTX_SHIPPED)))
        trials["as_shipped"] = space.trial(shipped, f"{space.target.value} as shipped", told=held)
    if space.has_devices and "n_gpu_layers" not in space.fixed and not space.no_fit:
        fit = _fit_settings(space)
        why = f"{fit.n_gpu_layers} of {space.everything} layers, by llama.cpp's --fit rule{space.fit_basis}"
        trials["fit"] = space.trial(fit, why)
    return trials


def sane(settings: Settings) -> Settings:
    """As the engine will round it: contexts in blocks of 256, a batch no larger than the context."""
    return _clipped(settings.replace(n_ctx=pad_256(settings.n_ctx)))


def _clipped(settings: Settings) -> Settings:
    """No batch larger than the context, no ubatch larger than the batch."""
    n_batch = min(settings.n_batch, settings.n_ctx)
    return settings.replace(n_batch=n_batch, n_ubatch=min(settings.n_ubatch, n_batch))


def can_fit(space: Space, settings: Settings) -> bool:
    """False only when the least the settings can take is more than there is; without devices nothing goes there."""
    return n_that_can_fit(space, (settings,)) > 0


def can_hold(space: Space, settings: Settings) -> bool:
    """False only where main memory would have to hold more than the user allows."""
    limit = space.limits.host_bytes
    return limit is None or least_host_bytes(space.facts, settings) <= limit


def least_host_bytes(facts: GgufFacts, settings: Settings) -> int:
    """What main memory holds at the least: weights, mapped from the file too, and the cache where its rule is exact.

    Of a compute buffer not all is ever touched, so it is not resident.
    """
    found = reckon(facts, Grid.of((settings,), facts.n_layer))
    is_exact = not anatomy_of(facts).why_inexact
    return int((found.host_weights_bytes + found.host_kv_cache_bytes * is_exact)[0])


def n_that_can_fit(space: Space, settings: Sequence[Settings]) -> int:
    """How many of these can fit; see `can_fit`."""
    if not space.has_devices:
        return len(settings)
    return sum(one.least_bytes <= space.device_bytes for one in estimate_footprints(space.facts, settings))


def settings_to_fit(space: Space) -> Settings:
    """Settings whose layers llama.cpp's --fit rule is to choose."""
    settings = start_settings(space)
    if space.target is Target.LLAMA_SERVER:
        settings = settings.replace(n_seq_max=4, n_outputs_max=4, kv_unified=True)
    return settings


def _fit_settings(space: Space) -> Settings:
    """`settings_to_fit` with the layers that the rule chose; by our estimate, the most that leave its margin free."""
    settings = settings_to_fit(space)
    if space.n_fit_layers is not None:
        n_gpu_layers = space.n_fit_layers if space.n_fit_layers >= 0 else space.everything
        return space.hold(settings.replace(n_gpu_layers=min(n_gpu_layers, space.everything)))
    available = space.device_bytes - FIT_MARGIN_BYTES
    ladder = [space.hold(settings.replace(n_gpu_layers=k)) for k in range(space.everything, 0, -1)]
    sizes = estimate_footprints(space.facts, ladder)
    fitting = (one for one, size in zip(ladder, sizes, strict=True) if size.bytes <= available)
    return next(fitting, space.hold(settings.replace(n_gpu_layers=0)))
