"""What runs on this machine showed of its speed: kept between sweeps, and turned into the laws that predict.

Runs are kept for each kind: files whose weights are mostly of one type, on the same devices, stored alike by the CPU.
So a file teaches what to expect of the next one of its kind.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from offloadtune import store
from offloadtune.errors import StoreError
from offloadtune.pipeline.rigs import rig_of_machine
from offloadtune.records import EngineBuild, GgufFacts, Machine, Outcome, Settings, TrialResult, Visit
from offloadtune.search import measured
from offloadtune.speed import (
    Law,
    Laws,
    amounts_for,
    calibrated,
    contradiction,
    is_float_file,
    laws_of_kind,
    residuals_of,
    run_of,
    shifted,
)
from offloadtune.speeds import Phase, Run
from offloadtune.units import format_split

_N_ALONE = 4
"""Runs of one sweep that are trusted more than older ones which contradict them."""

_OUTLIERS_FRAC = 0.25
_NOISE_LEAST, _NOISE_DISTURBED, _NOISE_MOST = 0.01, 0.25, 1.0
_KEPT_IN_MEMORY_FRAC = 0.9
_SIGMA_OF_MAD = 1.4826


class SpeedMemory:
    """What is expected of this machine's speed with files like `facts`, and what is learnt of it trial by trial.

    With `is_fresh` the runs kept earlier of the kinds that are asked about do not count, and go when others come.
    """

    def __init__(self, facts: GgufFacts, machine: Machine, engine: EngineBuild, *, is_fresh: bool = False) -> None:
        self._facts, self._machine, self._is_fresh = facts, machine, is_fresh
        self._path = store.speed_path(machine)
        self._maker = store.maker_of(machine, engine.build_id)
        stored, self._said = store.read_speeds(self._path, self._maker)
        self._kept: dict[store.RunKind, tuple[store.KeptRun, ...]] = {} if is_fresh else dict(stored)
        self._session = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}"
        self._laws: dict[store.RunKind, tuple[Laws, tuple[str, ...]]] = {}
        self._not_kept = ""

    @property
    def words(self) -> tuple[str, ...]:
        """What is to be said of the runs kept, and of those that contradict each other in the laws asked for so far."""
        of_laws = (word for _, words in self._laws.values() for word in words)
        return tuple(dict.fromkeys(word for word in (self._said, *of_laws, self._not_kept) if word))

    def laws(self, settings: Settings | None = None) -> Laws:
        """What is believed, for settings of that kind; unasked, for all devices and the engine's own buffers.

        Where runs contradict each other the laws are those without them; `words` says so.
        """
        kind = self._kind_of(settings or Settings())
        if kind not in self._laws:
            self._laws[kind] = self._solved(kind)
        return self._laws[kind][0]

    def prior(self, settings: Settings | None = None) -> Laws:
        """The same before any run."""
        return self._prior(self._kind_of(settings or Settings()))

    def learn(self, result: TrialResult) -> None:
        """Keep what a trial's visits took: a run of each phase, which counts even if it cannot be stored.

        One whose weights main memory cannot keep shows the disk, and teaches nothing.
        """
        host_bytes = sum(one.weights_bytes for one in result.memory if one.is_host)
        if result.outcome is not Outcome.OK or host_bytes > _KEPT_IN_MEMORY_FRAC * self._machine.host.ram.total_bytes:
            return
        kind = self._kind_of(result.trial.settings)
        new = [store.KeptRun(run=run, session=self._session) for run in runs_of(self._facts, self._prior(kind), result)]
        if not new:
            return
        is_first = kind not in self._kept
        self._kept[kind] = store.merged(self._kept.get(kind, ()), new)
        self._laws.pop(kind, None)
        try:
            store.keep_runs(self._path, self._maker, kind, new, is_fresh=self._is_fresh and is_first)
        except StoreError as error:
            self._not_kept = f"Warning: what runs showed of the speed is not kept. {error}"

    def _solved(self, kind: store.RunKind) -> tuple[Laws, tuple[str, ...]]:
        """The laws by the runs of `kind`, and what is to be said of these."""
        prior = self._prior(kind)
        decode, why_decode = believed(prior.decode, self._kept.get(kind, ()))
        prefill, why_prefill = believed(prior.prefill, self._kept.get(kind, ()))
        laws = dataclasses.replace(prior, decode=decode, prefill=prefill)
        return laws, tuple(word for word in (why_decode, why_prefill) if word)

    def _prior(self, kind: store.RunKind) -> Laws:
        by_name = {device.name: device for device in self._machine.devices or ()}
        chosen = tuple(by_name[name] for name in kind.devices if name in by_name)
        rig = rig_of_machine(dataclasses.replace(self._machine, devices=chosen))
        return laws_of_kind(rig, is_float=is_float_file(self._facts))

    def _kind_of(self, settings: Settings) -> store.RunKind:
        of_engine = tuple(device.name for device in self._machine.offload_devices)
        return store.RunKind(
            type_name=self._facts.type_bytes[0][0] if self._facts.type_bytes else "",
            devices=of_engine if settings.devices is None else settings.devices,
            use_extra_bufts=settings.use_extra_bufts,
            no_host=settings.no_host,
        )


def believed(prior: Law, kept: Sequence[store.KeptRun]) -> tuple[Law, str]:
    """The law by those runs of its phase that agree, and a sentence where some were left out.

    Left out are all of earlier sweeps where the last one's agree among themselves, or else the few that lie furthest
    off. Where that does not help the law does not hold here: `prior` as a whole is as slow or fast as the runs are.
    """
    known = {term.name for term in prior.terms}
    kept = [one for one in kept if one.run.phase is prior.phase and {name for name, _ in one.run.amounts} <= known]
    runs = [one.run for one in kept]
    law = calibrated(prior, runs)
    if not (word := contradiction(law)):
        return law, ""
    newest = [one.run for one in kept if one.session == kept[-1].session]
    if _N_ALONE <= len(newest) < len(runs):
        alone = calibrated(prior, newest)
        if not contradiction(alone):
            return alone, f"{word} Those of the last time agree, and count alone."
    fewer = law
    for n_left_out in range(1, int(len(runs) * _OUTLIERS_FRAC) + 1):
        worst = int(np.abs(residuals_of(fewer, fewer.runs)).argmax())
        fewer = calibrated(prior, fewer.runs[:worst] + fewer.runs[worst + 1 :])
        if not contradiction(fewer):
            return fewer, f"{word} Without {n_left_out} of {len(runs)} runs the others agree."
    instead = f"So a typical machine's {prior.phase} is predicted, as much slower or faster as these runs are"
    return shifted(prior, runs), f"{word} {instead}, and no surer than they."


def runs_of(facts: GgufFacts, laws: Laws, result: TrialResult) -> tuple[Run, ...]:
    """A run of each phase: the median of the visits that count, and how far they scatter; () where none was timed.

    Disturbed visits count where there are no others, as far off as such visits are.
    """
    visits = measured(result.visits)
    if not visits:
        return ()
    settings = settings_that_ran(result)
    first = visits[0]
    n_prefix, n_new = first.n_prefix_cached, first.n_prompt_new
    where = where_words(settings)
    step = statistics.median(map(token_s, visits))
    prompt = statistics.median(visit.ttft_s for visit in visits)
    noise = max(_noise_of_steps(visits), _NOISE_LEAST if visits[0].counts else _NOISE_DISTURBED)
    noise = min(noise, _NOISE_MOST)
    return tuple(
        run_of(
            laws.of(phase),
            amounts_for(phase, facts, (settings,), laws.rig, n_prompt=n_prompt, depth=depth)[:, 0],
            seconds,
            noise_frac,
            label,
        )
        for phase, n_prompt, depth, seconds, noise_frac, label in (
            (Phase.DECODE, 1, depth_of_steps(first), step, noise, f"a token after {n_prefix + n_new} {where}"),
            (Phase.PREFILL, n_new, n_prefix, prompt, _noise_of(visits, noise), f"{n_prefix}+{n_new} tokens {where}"),
        )
    )


def where_words(settings: Settings) -> str:
    """What of the settings tells one run from another."""
    words = f"at n_gpu_layers {settings.n_gpu_layers}, n_ubatch {settings.n_ubatch}"
    for name in ("n_cpu_moe", "n_cpu_ffn"):
        words += f", {name} {getattr(settings, name)}" if getattr(settings, name) else ""
    words += f", split {format_split(settings.tensor_split)}" if settings.tensor_split else ""
    return words + ("" if settings.op_offload else ", op_offload off")


def settings_that_ran(result: TrialResult) -> Settings:
    """Those of the trial as the engine took them; its visits write one sequence, whatever there is room for."""
    known = {field.name for field in dataclasses.fields(Settings)}
    effective = {name: value for name, value in result.effective if name in known and value is not None}
    return result.trial.settings.replace(**{**effective, "n_seq_max": 1})


def token_s(visit: Visit) -> float:
    """Seconds of a usual token of a visit: its step and the sampling after it."""
    return (statistics.median(visit.step_ns) + statistics.median(visit.sample_ns)) / 1e9


def depth_of_steps(visit: Visit) -> int:
    """Tokens before the middle one of those that were timed."""
    return visit.n_prefix_cached + visit.n_prompt_new + 1 + len(visit.step_ns) // 2


def _noise_of_steps(visits: Sequence[Visit]) -> float:
    """Standard deviation of a step, as a part of it, by its median absolute deviation."""
    steps = [step / statistics.median(visit.step_ns) for visit in visits for step in visit.step_ns]
    return _SIGMA_OF_MAD * statistics.median(abs(step - 1) for step in steps)


def _noise_of(visits: Sequence[Visit], of_steps: float) -> float:
    """That of a prompt; where it was read once only, or disturbed, no less than that of a step."""
    seconds = [visit.ttft_s for visit in visits]
    of_prompts = statistics.stdev(seconds) / statistics.median(seconds) if len(visits) > 1 else 0.0
    least = _NOISE_LEAST if len(visits) > 1 and visits[0].counts else of_steps
    return min(max(of_prompts, least), _NOISE_MOST)
