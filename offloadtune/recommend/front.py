"""The Pareto front: settings that no others equal in everything that may be wanted and beat in something.

Wanted are a short time to the first token, a high rate of writing, much context and little device memory. Figures that
differ by less than a tolerance count as equal, so that noise makes no rows: the exact front comes first, which the
order of results cannot change; of it every point is kept that none kept before equals in everything. The recommended
settings are looked at first, then those with the shortest turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from offloadtune.recommend.evidence import Case, Round
from offloadtune.records import Recommendation, TrialResult
from offloadtune.search import Space, differences, is_allowed
from offloadtune.search.acquire import is_as_fixed
from offloadtune.sweeps import Front, FrontPoint

TOLERANCE_FRAC = 0.02
"""Of bytes; of times it is the least: where the same settings differ by more from one round to the next, as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A point as costs, less is better. Bytes that nobody knows equal any others."""

    ttft_s: float
    token_s: float
    n_ctx: int
    device_bytes: int | None

    @classmethod
    def of(cls, point: FrontPoint) -> _Wanted:
        return cls(
            ttft_s=point.ttft_s,
            token_s=1 / point.decode_tok_per_s,
            n_ctx=point.n_ctx,
            device_bytes=point.device_bytes,
        )

    def equals(self, other: _Wanted, tolerance_frac: float) -> bool:
        """Whether this is at least as good as `other` in everything, within the tolerance of times."""
        most, most_bytes = 1 + tolerance_frac, 1 + min(tolerance_frac, TOLERANCE_FRAC)
        is_as_small = None in {self.device_bytes, other.device_bytes} or self._bytes <= other._bytes * most_bytes
        is_as_fast = self.ttft_s <= other.ttft_s * most and self.token_s <= other.token_s * most
        return is_as_fast and is_as_small and self.n_ctx >= other.n_ctx

    def beats(self, other: _Wanted) -> bool:
        """Whether this is at least as good in everything and better in something."""
        return self.equals(other, 0.0) and not other.equals(self, 0.0)

    @property
    def _bytes(self) -> int:
        return self.device_bytes or 0


def pareto_front(
    space: Space, results: Sequence[TrialResult], rounds: Sequence[Round], answer: Recommendation
) -> Front:
    """What can be had for what, of all that ran within the user's limits and as the user fixed it."""
    case = Case(space=space, results=results, rounds=rounds)
    ran = {one.trial.settings: one for one in results if is_allowed(space, one) and is_as_fixed(space, one)}
    chosen = ran.pop(answer.trial.settings, None)
    best_first = sorted(ran.values(), key=lambda one: case.figures(one).turn_s.p50)
    points = [_point(case, one, answer) for one in ([chosen] if chosen else []) + best_first]
    tolerance_frac = max(TOLERANCE_FRAC, case.noise_frac)
    kept = front_of(points, tolerance_frac)
    most_bytes = max((point.device_bytes or 0 for point in kept), default=0)
    near_first = sorted(kept, key=lambda point: _distance(point, kept[0], most_bytes))
    return Front(points=tuple(near_first), n_ran=len(points), tolerance_frac=tolerance_frac)


def front_of(points: Sequence[FrontPoint], tolerance_frac: float) -> list[FrontPoint]:
    """The first of `points`, whatever it is worth, and those of the front that none before them equals."""
    wanted = [_Wanted.of(point) for point in points]
    kept: list[int] = []
    for i, one in enumerate(wanted):
        is_beaten = any(other.beats(one) for other in wanted)
        if i == 0 or not (is_beaten or any(wanted[k].equals(one, tolerance_frac) for k in kept)):
            kept.append(i)
    return [points[i] for i in kept]


def _point(case: Case, result: TrialResult, answer: Recommendation) -> FrontPoint:
    settings, figures = result.trial.settings, case.figures(result)
    peaks = [peak for _, peak in result.device_peak_bytes]
    return FrontPoint(
        trial=result.trial,
        changes=differences(settings, answer.trial.settings),
        ttft_s=figures.ttft_s.p50,
        decode_tok_per_s=figures.decode_tok_per_s.p50,
        n_ctx=settings.n_ctx,
        device_bytes=sum(peaks) if peaks or not settings.offloads else None,
        n_visits=figures.ttft_s.n_samples,
    )


def _distance(point: FrontPoint, first: FrontPoint, most_bytes: int) -> float:
    """How far apart two points are: logarithms of times and context, and bytes as a part of the most."""
    apart = [
        math.log(point.ttft_s / first.ttft_s),
        math.log(point.decode_tok_per_s / first.decode_tok_per_s),
        math.log(point.n_ctx / first.n_ctx),
        ((point.device_bytes or 0) - (first.device_bytes or 0)) / max(most_bytes, 1),
    ]
    return math.hypot(*apart)
