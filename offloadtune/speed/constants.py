"""Shares of their peaks that machines reach, and what steps cost in time: the numbers that priors are made of.

Fitted on published speeds by benchmarks/speed_records.py, which checks that these are they and prints how far they lead
on sources and cards they were not fitted on. Rounded to what is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

WELL_KNOWN = {"ampere", "ada", "blackwell"}
"""Families with published speeds of so many cards that a further one is no surprise."""


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A share of a peak (`is_share`) or a number of seconds, of all families together and of those that differ.

    `width` is the relative standard deviation between machines of a family that is well known, `spread` what families
    that are not may lie off besides.
    """

    value: float
    width: float
    spread: float = 0.0
    by_family: Mapping[str, float] = field(default_factory=dict)
    is_share: bool = True

    def of(self, family: str) -> tuple[float, float]:
        """The value for a family, and how far off it may be."""
        value = self.by_family.get(family, self.value)
        return value, self.width if family in WELL_KNOWN else math.hypot(self.width, self.spread)


CONSTANTS: dict[str, Constant] = {
    # --- a step of decode: of the device's bandwidth, and seconds
    "read": Constant(
        value=0.76,
        width=0.11,
        spread=0.18,
        by_family={
            "ada": 0.89,
            "amd_igpu": 0.65,
            "ampere": 0.81,
            "ampere_hbm": 0.62,
            "apple": 0.81,
            "blackwell": 0.96,
            "cdna": 0.62,
            "hopper": 0.64,
            "pascal": 0.63,
            "rdna1": 0.67,
            "rdna2": 0.72,
            "rdna3": 0.72,
            "rdna4": 0.82,
            "turing": 0.7,
            "vega": 0.62,
        },
    ),
    "cache": Constant(value=0.61, width=0.3, spread=0.2),
    "plain_cache": Constant(
        value=0.28,
        width=0.3,
        spread=0.25,
        by_family={
            "ada": 0.44,
            "ampere": 0.29,
            "apple": 0.17,
            "blackwell": 0.21,
            "hopper": 0.33,
            "pascal": 0.33,
            "rdna1": 0.26,
            "volta": 0.29,
        },
    ),
    "block": Constant(
        value=54e-6,
        width=0.35,
        spread=0.4,
        by_family={
            "ada": 43e-6,
            "amd_igpu": 51e-6,
            "ampere": 35e-6,
            "ampere_hbm": 77e-6,
            "apple": 82e-6,
            "cdna": 91e-6,
            "hopper": 130e-6,
            "pascal": 120e-6,
            "rdna1": 69e-6,
            "rdna2": 48e-6,
            "rdna4": 51e-6,
            "turing": 33e-6,
            "vega": 91e-6,
            "volta": 42e-6,
        },
        is_share=False,
    ),
    "step": Constant(value=120e-6, width=0.5, is_share=False),
    "mixed": Constant(value=1.6e-3, width=0.5, is_share=False),
    "handover": Constant(value=42e-6, width=0.5, is_share=False),
    "link": Constant(value=0.7, width=0.3),
    # of main memory's bandwidth, as its modules promise or as measured
    "host_read": Constant(value=0.68, width=0.28),
    "host_read_measured": Constant(value=0.95, width=0.15),
    "host_cache": Constant(value=0.042, width=0.6),
    "host_plain_cache": Constant(value=0.45, width=0.5),
    "host_block": Constant(value=25e-6, width=0.7, is_share=False),
    # --- a prompt: of the device's products, bandwidth (attention: operations a byte) and link
    "compute": Constant(
        value=0.52,
        width=0.38,
        spread=0.3,
        by_family={
            "ada": 0.7,
            "ampere": 0.65,
            "ampere_hbm": 0.32,
            "apple": 0.6,
            "blackwell": 0.76,
            "gcn": 0.31,
            "hopper": 0.17,
            "pascal": 0.46,
            "rdna1": 0.24,
            "rdna2": 0.43,
            "rdna3": 0.46,
            "turing": 0.38,
            "volta": 0.37,
        },
    ),
    "compute_float": Constant(
        value=0.72,
        width=0.38,
        spread=0.3,
        by_family={
            "ada": 1.3,
            "ampere": 0.82,
            "ampere_hbm": 0.49,
            "hopper": 0.29,
            "rdna1": 0.36,
            "rdna2": 0.48,
            "volta": 0.6,
        },
    ),
    "attention": Constant(
        value=0.27, width=0.3, spread=0.3, by_family={"ampere": 0.26, "blackwell": 0.3, "rdna3": 0.29}
    ),
    "plain_attention": Constant(
        value=14.0,
        width=0.35,
        spread=0.2,
        by_family={
            "ada": 19.0,
            "ampere": 16.0,
            "ampere_hbm": 11.0,
            "apple": 15.0,
            "blackwell": 12.0,
            "hopper": 11.0,
            "rdna3": 13.0,
            "turing": 13.0,
            "volta": 14.0,
        },
    ),
    "reread": Constant(
        value=0.32,
        width=0.4,
        spread=0.2,
        by_family={
            "ampere": 0.24,
            "ampere_hbm": 0.3,
            "apple": 0.33,
            "blackwell": 0.38,
            "hopper": 0.3,
            "rdna3": 0.31,
            "turing": 0.3,
            "volta": 0.3,
        },
    ),
    "reread_float": Constant(value=0.94, width=0.4),
    "pass": Constant(
        value=0.79, width=0.4, spread=0.2, by_family={"ada": 1.0, "ampere": 0.77, "ampere_hbm": 0.74, "hopper": 0.76}
    ),
    "ubatch_block": Constant(value=130e-6, width=0.5, is_share=False),
    "pinned": Constant(value=0.77, width=0.2),
    "pageable": Constant(value=0.69, width=0.3),
    "vulkan_copy": Constant(value=0.32, width=0.25),
    "streamed_block": Constant(value=100e-6, width=0.7, is_share=False),
    "mixed_ubatch": Constant(value=1e-3, width=0.7, is_share=False),
    "ubatch": Constant(value=310e-6, width=0.7, is_share=False),
    "prompt": Constant(value=1e-3, width=0.7, is_share=False),
    # operations a second of one core, and of main memory's bandwidth
    "host_compute": Constant(value=140e9, width=0.7),
    "host_attention": Constant(value=40e9, width=0.6),
    "host_reread": Constant(value=0.64, width=0.4),
    "host_pass": Constant(value=2.0, width=0.5),
    "host_ubatch_block": Constant(value=50e-6, width=0.7, is_share=False),
}
