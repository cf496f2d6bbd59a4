"""Tables and steps: the share of a peak that a kernel reaches, interpolated between recorded points."""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

N_MATVEC_MOST = 8
"""Up to so many tokens products are made while the weights are read once, as for a single one (ggml-cuda, mmvq.cuh)."""

_TILES = ((64, 32), (128, 64), (1 << 30, 128))
"""Up to so many tokens a tile has so many columns; what a last tile lacks is computed all the same (ggml-cuda, mmq)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Shares `y` at rising points `x`, straight between them over the logarithm of x, level beyond the ends."""

    x: tuple[float, ...]
    y: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y) or not self.x or any(b <= a for a, b in itertools.pairwise(self.x)):
            message = "a curve needs as many values as points, and points that rise"
            raise ValueError(message)

    def at(self, x: float) -> float:
        """The share at one point."""
        i = bisect.bisect_right(self.x, x)
        if i in {0, len(self.x)}:
            return self.y[min(i, len(self.y) - 1)]
        low, high = self.x[i - 1], self.x[i]
        part = math.log(x / low) / math.log(high / low)
        return self.y[i - 1] + part * (self.y[i] - self.y[i - 1])

    def over(self, x: Floats) -> Floats:
        """The shares at many points, none below 0; 0 counts as the first point."""
        return np.interp(np.log(np.maximum(x, self.x[0])), np.log(self.x), self.y)


def padded(n_tokens: float) -> float:
    """Columns computed for so many tokens: whole tiles once products are of matrices."""
    if n_tokens <= N_MATVEC_MOST:
        return n_tokens
    tile = next(tile for most, tile in _TILES if n_tokens <= most)
    return math.ceil(n_tokens / tile) * tile
