"""Looking at a comparison while it grows, without the false alarms that looking again and again brings.

Testing at 5 % after each of five batches calls one A/A comparison in seven different. Here the looks are fixed
beforehand and each has its own, stricter level, so that all together err in 5 %.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from offloadtune.records import Estimate, Verdict
from offloadtune.stats.pairs import estimate_from_logs, verdict_of
from offloadtune.stats.samples import checked_noise, log_ratios

N_PAIRS_A_LOOK = 8
_NORMAL = statistics.NormalDist()
# two-sided error of 5 % over 1, 2, ... equally spaced looks: Jennison and Turnbull, Group Sequential Methods with
# Applications to Clinical Trials (2000), tables 2.1 and 2.3
_POCOCK = (1.960, 2.178, 2.289, 2.361, 2.413, 2.453, 2.485, 2.512, 2.535, 2.555)
_OBRIEN_FLEMING = (1.960, 1.977, 2.004, 2.024, 2.040, 2.053, 2.063, 2.072, 2.080, 2.087)


class StoppingRule(StrEnum):
    """How the error is shared among the looks.

    `pocock`: alike, so that large differences end early (Pocock, Biometrika 64 (1977), 191-199);
    `obrien_fleming`: little at first, so that the last look is almost as sharp as if it were the only one (O'Brien
    and Fleming, Biometrics 35 (1979), 549-556).
    """

    POCOCK = "pocock"
    OBRIEN_FLEMING = "obrien_fleming"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What look number `i_look` (from 1) says. `ratio` is B's time over A's with the interval of that look's level.

    All intervals of the planned looks hold the ratio together with a chance of 95 %. `is_final`: no more pairs are
    due, for the verdict stands or the looks are used up.
    """

    i_look: int
    n_planned_looks: int
    confidence_frac: float
    ratio: Estimate
    verdict: Verdict
    is_decided: bool

    @property
    def is_final(self) -> bool:
        return self.is_decided or self.i_look == self.n_planned_looks


def look_confidence_frac(i_look: int, n_planned_looks: int, rule: StoppingRule = StoppingRule.POCOCK) -> float:
    """Confidence of the interval at look `i_look` (from 1) of `n_planned_looks`."""
    if not 1 <= n_planned_looks <= len(_POCOCK):
        raise ValueError(f"n_planned_looks is {n_planned_looks}, not from 1 to {len(_POCOCK)}")
    if not 1 <= i_look <= n_planned_looks:
        raise ValueError(f"look {i_look} is not one of the {n_planned_looks} planned")
    if rule is StoppingRule.POCOCK:
        critical = _POCOCK[n_planned_looks - 1]
    else:
        critical = _OBRIEN_FLEMING[n_planned_looks - 1] * math.sqrt(n_planned_looks / i_look)
    return 2 * _NORMAL.cdf(critical) - 1


def decide(
    pairs: Sequence[tuple[float, float]],
    n_planned_looks: int,
    *,
    n_pairs_a_look: int = N_PAIRS_A_LOOK,
    noise_frac: float = 0.0,
    rule: StoppingRule = StoppingRule.POCOCK,
) -> Decision:
    """Verdict on B from all (A, B) seconds so far, at the level of this look; a look between looks is refused.

    Repeated confidence intervals (Jennison and Turnbull, J. R. Statist. Soc. B 51 (1989), 305-361) of the signed-rank
    test; where pairs are too few for the level of an early look, Student's t stands in (see `paired_ratio`).
    """
    checked_noise(noise_frac)
    if n_pairs_a_look < 1:
        raise ValueError(f"n_pairs_a_look is {n_pairs_a_look}, not 1 or more")
    logs = log_ratios([a for a, _ in pairs], [b for _, b in pairs])
    i_look, n_over = divmod(len(logs), n_pairs_a_look)
    if n_over:
        raise ValueError(f"looks are due after every {n_pairs_a_look} pairs, not after {len(logs)}")
    confidence_frac = look_confidence_frac(i_look, n_planned_looks, rule)
    ratio = estimate_from_logs(logs, confidence_frac)
    verdict, is_decided = verdict_of(ratio, noise_frac)
    return Decision(
        i_look=i_look,
        n_planned_looks=n_planned_looks,
        confidence_frac=confidence_frac,
        ratio=ratio,
        verdict=verdict,
        is_decided=is_decided,
    )
