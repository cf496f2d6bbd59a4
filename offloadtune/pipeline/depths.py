"""Two depths: what settings come to with a whole model, by stand-ins of fewer layers measured side by side."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from offloadtune.engine import WORKER_COMMAND, Abreast, TrialFailedError, VisitPlan
from offloadtune.errors import UsageError
from offloadtune.footprint import has_dense_ffn
from offloadtune.pipeline.rendering import reckoned_text
from offloadtune.pipeline.spaces import begin_settings
from offloadtune.pipeline.surroundings import Surroundings
from offloadtune.pipeline.sweeping import llama_arguments
from offloadtune.records import NO_LIMITS, Estimate, GgufFacts, Settings, Trial, Visit
from offloadtune.speed.depths import device_layers_around, extrapolated, read_bytes
from offloadtune.sweeps import (
    DepthTimes,
    Listener,
    Said,
    StandinReport,
    SweepReport,
    SweepRequest,
    WholeFigures,
)
from offloadtune.units import MIB, format_count

_N_ROUNDS_LEAST, _N_ROUNDS_MOST = 3, 9
_N_STEPS = 16
_LEAST_S = 30.0
"""That one comparison may take in any case before its engine counts as hung; else what is left of the budget, twice."""
_LIMIT_STEP_BYTES = 32 * MIB


def check_fixed(request: SweepRequest) -> None:
    """Refuse what the user fixed for the whole and what means nothing with fewer layers. Raises UsageError."""
    for name in ("n_cpu_moe", "n_cpu_ffn"):
        if name in request.fixed:
            message = f"{name} counts layers of the whole model, and stand-ins of fewer layers are measured."
            raise UsageError(message, hint=f"leave out --set {name}")
    if request.limits != NO_LIMITS:
        message = "Limits of speed and main memory are for the whole model, and stand-ins of fewer layers are measured."
        raise UsageError(message, hint="leave out --min-tok-per-s, --max-ttft and --ram-limit")


_Side = tuple[GgufFacts, Trial]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByDepths:
    """A model, two stand-ins of it with fewer layers, and why there is none with all."""

    request: SweepRequest
    whole: GgufFacts
    shallow: GgufFacts
    deep: GgufFacts
    around: Surroundings
    why_fewer: str

    def deep_request(self, budget_s: float) -> SweepRequest:
        """The sweep of the deeper stand-in, on a card so small that it holds the share of layers that it would hold.

        All weights stay with their layers: which share of them is away is no part of what two depths tell.
        """
        begin, fixed, limit = begin_settings(self.request, self.whole), dict(self.request.fixed), None
        if self.whole.n_expert:
            fixed["n_cpu_moe"] = 0
        if has_dense_ffn(self.whole):
            fixed["n_cpu_ffn"] = 0
        n_most = self._most(begin)
        n_top = self._n_top(n_most)
        if "n_gpu_layers" in fixed or not n_most:
            fixed["n_gpu_layers"] = n_top
        else:
            spared = self.around.device_bytes(self.whole, begin.replace(n_gpu_layers=n_most))
            taken = self.around.device_bytes(self.deep, begin.replace(n_gpu_layers=n_top))
            limit = self.around.free_bytes - spared + taken
            limit = limit // _LIMIT_STEP_BYTES * _LIMIT_STEP_BYTES  # the same again is resumed
        return dataclasses.replace(
            self.request, path=self.deep.path, budget_s=budget_s, vram_limit_bytes=limit, fixed=fixed
        )

    def answer(self, found: SweepReport, budget_s: float, listen: Listener) -> StandinReport:
        """What the settings that `found` recommends come to with the whole model, beside those of the CPU alone."""
        trial, end_s = found.recommendation.trial, time.monotonic() + budget_s
        asked = {"recommended": self._of_whole(trial.settings)}
        if trial.settings.offloads:
            asked["cpu_only"] = trial.settings.replace(devices=(), n_gpu_layers=0)
        wholes: list[WholeFigures] = []
        notes, is_interrupted = [], found.is_interrupted
        for name, settings in asked.items() if not is_interrupted else ():
            words, left_s = name.replace("_", " "), end_s - time.monotonic()
            if wholes and left_s <= 0:
                notes.append(f"{words}: no time was left for it; allow more with --budget")
                continue
            listen(Said(text=f"{words}: {self._words} side by side."))
            try:
                wholes.append(self._whole_figures(name, dataclasses.replace(trial, settings=settings), left_s))
            except TrialFailedError as error:
                notes.append(f"{words}: not reckoned, {error.result.reason}")
            except KeyboardInterrupt:
                is_interrupted = True
                break
        if is_interrupted:
            notes.append("stopped by you before all was reckoned")
        return StandinReport(
            sweep=found,
            apply_text=self._apply_text(dataclasses.replace(trial, settings=asked["recommended"])),
            why_fewer=self.why_fewer,
            depths=(self.shallow.n_layer, self.deep.n_layer),
            n_layer=self.whole.n_layer,
            wholes=tuple(wholes),
            notes=tuple(notes),
            is_interrupted=is_interrupted,
        )

    def _apply_text(self, trial: Trial) -> str:
        real = self.deep.stands_for
        assert real is not None
        return reckoned_text(trial, real, (self.shallow.n_layer, self.deep.n_layer), self.request.endpoints)

    @property
    def _words(self) -> str:
        return f"stand-ins of {self.shallow.n_layer} and {format_count(self.deep.n_layer, 'layer')}"

    def _most(self, settings: Settings) -> int:
        """n_gpu_layers of the whole: as the user fixed it, else all that the devices hold."""
        if "n_gpu_layers" in self.request.fixed:
            return begin_settings(self.request, self.whole).n_gpu_layers
        return self.around.most_layers(self.whole, settings)

    def _n_top(self, n_most: int) -> int:
        """The deeper one's n_gpu_layers for the whole's: its share of the layers, and part of one more."""
        return self._layers_around(self.deep, n_most)[-1]

    def _layers_around(self, facts: GgufFacts, n_gpu_layers: int) -> tuple[int, ...]:
        """n_gpu_layers of a stand-in around the whole's share of the layers that a token passes through.

        Those that predict further tokens are the last ones, so they are on the devices first.
        """
        around = device_layers_around(_depth(facts), _depth(self.whole), _of_trunk(self.whole, n_gpu_layers))
        return tuple(n and n + facts.n_layer_nextn for n in around)

    def _of_whole(self, settings: Settings) -> Settings:
        """Settings of the deeper one as those of the whole: the same share of the layers on the devices."""
        if not settings.offloads:
            return settings
        n_most = self._most(settings)
        if settings.n_gpu_layers >= self._n_top(n_most):
            return settings.replace(n_gpu_layers=n_most)
        share = (_of_trunk(self.deep, settings.n_gpu_layers) - 1) / _depth(self.deep)
        n_gpu_layers = round(share * _depth(self.whole)) + 1 + self.whole.n_layer_nextn
        return settings.replace(n_gpu_layers=min(n_gpu_layers, n_most))

    def _whole_figures(self, name: str, trial: Trial, budget_s: float) -> WholeFigures:
        """What `trial`, with settings of the whole, comes to. Raises TrialFailedError."""
        measured = self._measured(trial, budget_s)
        n_read, n_written = read_bytes(self.whole)
        n_gpu_layers = _of_trunk(self.whole, trial.settings.n_gpu_layers)
        shape = {"n_layer": _depth(self.whole), "n_gpu_layers": n_gpu_layers}
        ttft = extrapolated([one.ttft for one in measured], n_bytes=n_read, **shape)
        token = extrapolated([one.token for one in measured], n_bytes=n_written, **shape)
        return WholeFigures(
            name=name,
            settings=trial.settings,
            ttft=ttft,
            token=token,
            turn_s=_turn(ttft.whole_s, token.whole_s, self.request.workload.n_gen),
            no_room=self.around.lacking(self.around.host_bytes(self.whole, trial.settings)),
        )

    def _measured(self, trial: Trial, budget_s: float) -> list[_Timed]:
        """Both depths with the numbers of device layers around the share that `trial` has of the whole's."""
        both, end_s = (self.shallow, self.deep), time.monotonic() + budget_s
        around = [self._layers_around(one, trial.settings.n_gpu_layers) for one in both]
        pairs = list(dict.fromkeys(zip(*_as_long(around), strict=True)))
        timed: dict[tuple[int, int], _Timed] = {}
        for i, layers in enumerate(pairs):
            sides = [
                (facts, dataclasses.replace(trial, settings=trial.settings.replace(n_gpu_layers=k)))
                for facts, k in zip(both, layers, strict=True)
            ]
            for facts, side, visits in self._visited(sides, (end_s - time.monotonic()) / (len(pairs) - i)):
                key = facts.n_layer, side.settings.n_gpu_layers
                timed.setdefault(key, _Timed.of(facts, side, visits))
        n_rounds = min(len(one.ttft.seconds) for one in timed.values())
        return [one.first(n_rounds) for one in timed.values()]

    def _visited(self, sides: Sequence[_Side], budget_s: float) -> Iterator[tuple[GgufFacts, Trial, list[Visit]]]:
        """Visits of both side by side, or of one after the other where there is no room for both at once."""
        on_devices = sum(self.around.device_bytes(facts, trial.settings) for facts, trial in sides)
        on_host = sum(self.around.host_bytes(facts, trial.settings) for facts, trial in sides)
        have_room = on_devices <= self.around.free_bytes and not self.around.lacking(on_host)
        groups = [sides] if have_room else [[side] for side in sides]
        for group in groups:
            rounds = self._rounds([(facts.path, trial) for facts, trial in group], budget_s / len(groups))
            for (facts, trial), visits in zip(group, zip(*rounds, strict=True), strict=True):
                yield facts, trial, list(visits)

    def _rounds(self, sides: Sequence[tuple[Path, Trial]], budget_s: float) -> list[tuple[Visit, ...]]:
        """Rounds for as long as the budget lasts, a few in any case. Raises TrialFailedError."""
        workload = self.request.workload
        plan = VisitPlan(workload=workload, n_steps=max(1, min(workload.n_gen - 1, _N_STEPS)), n_visits=1)
        end_s = time.monotonic() + budget_s
        found: list[tuple[Visit, ...]] = []
        command = self.request.worker_command or WORKER_COMMAND
        with (
            Abreast(self.request.endpoints, command, llama_arguments) as abreast,
            contextlib.closing(abreast.rounds(sides, plan, timeout_s=max(_LEAST_S, 2 * budget_s))) as rounds,
        ):
            try:
                for one in rounds:
                    found.append(one)
                    is_late = time.monotonic() > end_s and len(found) >= _N_ROUNDS_LEAST
                    if is_late or len(found) == _N_ROUNDS_MOST:
                        break
            except TrialFailedError:
                if len(found) < _N_ROUNDS_LEAST:
                    raise
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """Both phases of one stand-in with one number of device layers."""

    ttft: DepthTimes
    token: DepthTimes

    @classmethod
    def of(cls, facts: GgufFacts, trial: Trial, visits: Sequence[Visit]) -> _Timed:
        n_read, n_written = read_bytes(facts)
        where = {"n_layer": _depth(facts), "n_gpu_layers": trial.settings.n_gpu_layers}
        return cls(
            ttft=DepthTimes(n_bytes=n_read, seconds=tuple(visit.ttft_s for visit in visits), **where),
            token=DepthTimes(n_bytes=n_written, seconds=tuple(visit.token_s for visit in visits), **where),
        )

    def first(self, n_rounds: int) -> _Timed:
        """Without the rounds beyond so many."""
        parts = (dataclasses.replace(one, seconds=one.seconds[:n_rounds]) for one in (self.ttft, self.token))
        ttft, token = parts
        return _Timed(ttft=ttft, token=token)


def _depth(facts: GgufFacts) -> int:
    """Layers that a token passes through."""
    return facts.n_layer - facts.n_layer_nextn


def _of_trunk(facts: GgufFacts, n_gpu_layers: int) -> int:
    """`n_gpu_layers` without the layers that predict further tokens."""
    return min(n_gpu_layers, max(1, n_gpu_layers - facts.n_layer_nextn))


def _as_long(counts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Each as long as the longest, by its last."""
    n_most = max(map(len, counts))
    return [one + one[-1:] * (n_most - len(one)) for one in counts]


def _turn(ttft: Estimate | None, token: Estimate | None, n_gen: int) -> Estimate | None:
    if ttft is None or token is None:
        return None
    values = {name: getattr(ttft, name) + (n_gen - 1) * getattr(token, name) for name in ("p50", "low", "high")}
    return dataclasses.replace(ttft, **values)
