"""Statistics of few, noisy samples: pure functions.

quantiles    medians, P50 and P95 with intervals, outliers flagged
drift        whether a session goes up or down, per hour
pairs        B against A from interleaved pairs: ratio, verdict, what n pairs can show, A/A noise
"""

from offloadtune.stats.drift import Drift, estimate_drift
from offloadtune.stats.pairs import (
    PairedComparison,
    aa_noise,
    compare_pairs,
    inverse,
    minimum_detectable_frac,
    paired_ratio,
    pairs_needed,
    session_noise_frac,
    spread_of_pairs,
)
from offloadtune.stats.quantiles import (
    QuantileEstimate,
    estimate_median,
    estimate_quantile,
    modified_z_scores,
    outlier_flags,
    quantile,
)

__all__ = [
    "Drift",
    "PairedComparison",
    "QuantileEstimate",
    "aa_noise",
    "compare_pairs",
    "estimate_drift",
    "estimate_median",
    "estimate_quantile",
    "inverse",
    "minimum_detectable_frac",
    "modified_z_scores",
    "outlier_flags",
    "paired_ratio",
    "pairs_needed",
    "quantile",
    "session_noise_frac",
    "spread_of_pairs",
]
