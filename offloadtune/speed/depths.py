"""From two stand-ins of fewer layers to the whole model: what each phase would take, by two ways.

    linear    further layers take what those took that the deeper stand-in has more
    scaled    time goes by the bytes of weights that the phase reads, from the deeper stand-in

The first believes that every layer takes alike and that the rest happens once; the second that all of it is reading.
Where a machine does neither they part, and nothing is said. Layers are those that a token passes through: blocks that
only predict further tokens are no part of any number here.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from offloadtune.footprint.anatomy import ById
from offloadtune.records import Basis, Estimate, GgufFacts
from offloadtune.speed.blocks import blocks_of
from offloadtune.stats import estimate_median
from offloadtune.sweeps import DepthTimes, Extrapolation

_APART_FRAC = 0.15
_LOAD_SPREAD_FRAC = 0.015
"""Standard deviation of loads of one file, beyond what all loads of a session have in common.

Two loads each of 7B stand-ins of 8, 16 and 32 layers, on a CPU, gave 1.0 %, the noise of rounds included; so few that
half as much again is believed (benchmarks/standin_depths.py).
"""

_N_SIGMA_95 = statistics.NormalDist().inv_cdf(0.975)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Depth:
    """A stand-in with the whole model's share of layers on devices; `seconds` round by round."""

    n_layer: int
    n_bytes: int
    seconds: NDArray[np.float64]


def device_layers_around(n_layer_short: int, n_layer: int, n_gpu_layers: int) -> tuple[int, ...]:
    """The one or two `n_gpu_layers` of a stand-in between which the whole model's share of layers lies.

    Both count the output layer: 0 has nothing on devices, everything is everything.
    """
    if not 0 < n_layer_short <= n_layer or n_gpu_layers < 0:
        raise ValueError(f"{n_layer_short} of {n_layer} layers, {n_gpu_layers} of them on devices, make no stand-in")
    if n_gpu_layers == 0:
        return (0,)
    n_whole, n_rest = divmod(min(n_gpu_layers - 1, n_layer) * n_layer_short, n_layer)
    return (n_whole + 1, n_whole + 2) if n_rest else (n_whole + 1,)


def read_bytes(facts: GgufFacts) -> tuple[int, int]:
    """Bytes of weights that are read for many tokens of a prompt, and for one token that is written.

    A prompt asks for every expert and, but for its last token, not for the output.
    """
    blocks = blocks_of(ById(facts))
    dense, experts = blocks.whole[0, -1], blocks.experts[0, -1]
    return round(dense + experts), round(dense + blocks.used_frac * experts + blocks.output_bytes)


def extrapolated(times: Sequence[DepthTimes], n_layer: int, n_gpu_layers: int, n_bytes: int) -> Extrapolation:
    """A phase of the whole model of `n_layer` layers, `n_gpu_layers` of them on devices, that reads `n_bytes`.

    `times` are of two depths, each with the numbers of `device_layers_around`, between which times are interpolated.
    Raises ValueError where they are not.
    """
    shallow, deep = _depths(times, n_layer, n_gpu_layers)
    if not 0 < shallow.n_bytes < deep.n_bytes <= n_bytes:
        raise ValueError(f"{shallow.n_bytes}, {deep.n_bytes} and {n_bytes} bytes read do not rise with the layers")
    ahead = (n_layer - deep.n_layer) / (deep.n_layer - shallow.n_layer)
    linear = (1 + ahead) * deep.seconds - ahead * shallow.seconds
    scaled = deep.seconds * (n_bytes / deep.n_bytes)
    at_shallow, at_deep = float(np.median(shallow.seconds)), float(np.median(deep.seconds))
    linear_s = _estimate(linear, math.hypot((1 + ahead) * at_deep, ahead * at_shallow))
    scaled_s = _estimate(scaled, at_deep * (n_bytes / deep.n_bytes))
    apart_frac = _apart_frac(linear_s, scaled_s)
    return Extrapolation(
        linear_s=linear_s,
        scaled_s=scaled_s,
        apart_frac=apart_frac,
        whole_s=_spanning(linear_s, scaled_s) if apart_frac <= _APART_FRAC else None,
    )


def _depths(times: Sequence[DepthTimes], n_layer: int, n_gpu_layers: int) -> tuple[_Depth, _Depth]:
    """Both stand-ins, the shallow one first."""
    n_rounds = {len(one.seconds) for one in times}
    if len(n_rounds) != 1 or 0 in n_rounds:
        raise ValueError(f"every stand-in needs as many rounds, and one at least; they have {sorted(n_rounds)}")
    if not all(math.isfinite(second) and second > 0 for one in times for second in one.seconds):
        raise ValueError("seconds of stand-ins have to be positive and finite")
    in_order = sorted(times, key=lambda one: (one.n_layer, one.n_gpu_layers))
    groups = [list(group) for _, group in itertools.groupby(in_order, key=lambda one: one.n_layer)]
    if len(groups) != 2:
        raise ValueError(f"stand-ins of two depths are needed, not of {len(groups)}")
    shallow, deep = (_at_share(group, n_layer, n_gpu_layers) for group in groups)
    return shallow, deep


def _at_share(group: Sequence[DepthTimes], n_layer: int, n_gpu_layers: int) -> _Depth:
    """One depth, between its two numbers of layers on devices."""
    first, last = group[0], group[-1]
    around = device_layers_around(first.n_layer, n_layer, n_gpu_layers)
    if tuple(one.n_gpu_layers for one in group) != around or first.n_bytes != last.n_bytes:
        raise ValueError(f"stand-ins of {first.n_layer} layers have to read alike with {around} layers on devices")
    share = min(max(n_gpu_layers - 1, 0), n_layer) * first.n_layer % n_layer / n_layer
    seconds = (1 - share) * np.array(first.seconds) + share * np.array(last.seconds)
    return _Depth(n_layer=first.n_layer, n_bytes=first.n_bytes, seconds=seconds)


def _estimate(seconds: NDArray[np.float64], from_loads_s: float) -> Estimate:
    """The median over rounds; its interval is widened by what loads differ.

    Rounds tell nothing of that: all of them have the same loads. `from_loads_s` times the spread of loads is that of
    the seconds; the whole model would be a load with a spread of its own.
    """
    rounds = estimate_median(seconds.tolist())
    reach = _N_SIGMA_95 * _LOAD_SPREAD_FRAC * math.hypot(from_loads_s, rounds.p50)
    return dataclasses.replace(
        rounds,
        low=rounds.p50 - math.hypot(rounds.p50 - rounds.low, reach),
        high=rounds.p50 + math.hypot(rounds.high - rounds.p50, reach),
        basis=Basis.CALIBRATED,
    )


def _apart_frac(one: Estimate, other: Estimate) -> float:
    """By how much the larger exceeds the smaller; infinite where one is not known to be more than nothing."""
    if min(one.low, other.low) <= 0:
        return math.inf
    return math.exp(abs(math.log(one.p50 / other.p50))) - 1


def _spanning(one: Estimate, other: Estimate) -> Estimate:
    return Estimate(
        p50=math.sqrt(one.p50 * other.p50),
        low=min(one.low, other.low),
        high=max(one.high, other.high),
        n_samples=one.n_samples,
        coverage_frac=min(one.coverage_frac, other.coverage_frac),
        basis=Basis.CALIBRATED,
    )
