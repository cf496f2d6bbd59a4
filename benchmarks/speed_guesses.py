"""What each constant of the law is guessed to be, and how good the guess is: where the fit starts and is drawn back to.

Guesses by family say what is known of the hardware and the kernels: wide stacked memory is not kept busy by reading one
matrix row by row, Hopper runs the kernels written for Ampere's matrix units, older cards have none or slow ones. Who
wrote them had seen the published speeds, so `FLAT`, without them, is what a stranger would have started from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Guess:
    """`value` with a standard deviation of `off` in logarithms; families lie `spread` around it, or around their own.

    `is_share` for a part of a peak, else seconds.
    """

    value: float
    off: float = 0.3
    spread: float = 0.0
    by_family: Mapping[str, float] = field(default_factory=dict)
    is_share: bool = True


_STACKED = ("ampere_hbm", "hopper", "cdna", "vega")
_SLOW_FLOATS = {"ampere_hbm": 0.5, "hopper": 0.3, "volta": 0.5, "rdna1": 0.3, "rdna2": 0.4}
_SLOW_PRODUCTS = {
    "ampere_hbm": 0.35,
    "hopper": 0.2,
    "volta": 0.35,
    "pascal": 0.4,
    "rdna1": 0.3,
    "rdna2": 0.4,
    "gcn": 0.3,
}

GUESSES: dict[str, Guess] = {
    "read": Guess(value=0.80, off=0.1, spread=0.12, by_family=dict.fromkeys(_STACKED, 0.65)),
    "cache": Guess(value=0.6, off=0.25, spread=0.15),
    "plain_cache": Guess(value=0.25, off=0.3, spread=0.25),
    "block": Guess(value=60e-6, off=0.3, spread=0.3, by_family=dict.fromkeys(_STACKED, 100e-6), is_share=False),
    "step": Guess(value=100e-6, is_share=False),
    "mixed": Guess(value=1.5e-3, off=0.5, is_share=False),
    "handover": Guess(value=80e-6, off=0.5, is_share=False),
    "link": Guess(value=0.7),
    "host_read": Guess(value=0.65, off=0.1),
    "host_read_measured": Guess(value=0.9, off=0.1),
    "host_cache": Guess(value=0.06, off=0.5),
    "host_plain_cache": Guess(value=0.2, off=0.5),
    "host_block": Guess(value=20e-6, is_share=False),
    "compute": Guess(value=0.5, off=0.2, spread=0.25, by_family=_SLOW_PRODUCTS),
    "compute_float": Guess(value=0.6, off=0.15, spread=0.2, by_family=_SLOW_FLOATS),
    "attention": Guess(value=0.25, spread=0.3),
    "plain_attention": Guess(value=15.0, spread=0.2),
    "reread": Guess(value=0.6, spread=0.2),
    "reread_float": Guess(value=0.9, off=0.05),
    "pass": Guess(value=0.6, off=0.2, spread=0.15),
    "host_pass": Guess(value=2.0, off=0.1),
    "ubatch_block": Guess(value=60e-6, is_share=False),
    "pinned": Guess(value=0.8, off=0.1),
    "pageable": Guess(value=0.6),
    "vulkan_copy": Guess(value=0.35),
    "streamed_block": Guess(value=100e-6, is_share=False),
    "mixed_ubatch": Guess(value=1e-3, is_share=False),
    "ubatch": Guess(value=300e-6, is_share=False),
    "prompt": Guess(value=1e-3, is_share=False),
    "host_compute": Guess(value=100e9, off=0.2),
    "host_attention": Guess(value=30e9, off=0.5),
    "host_reread": Guess(value=0.65, off=0.1),
    "host_ubatch_block": Guess(value=50e-6, is_share=False),
}

FLAT = {name: dataclasses.replace(guess, by_family={}) for name, guess in GUESSES.items()}
