"""A simulated engine: a machine that does not exist, on a clock that is not real. Nothing of it was measured.

For trying out the search on hundreds of machines in seconds. What it says of itself is labelled "synthetic".

machines   what a simulated machine consists of
kernels    tables and steps: how much of a peak a kernel reaches
truth      settings -> seconds and bytes, of many at once
surprises  what no data sheet says, applied over the truth
noise      how visits of the same settings differ
runner     `SyntheticRunner`: trials on the simulated clock

The truth has another form than the law that the search goes by, so that a law cannot find itself again: places and
kernels take the longer of reading and computing, rates are interpolated between points drawn for each machine, and
sizes step by whole tiles. Judgement may not import this, nor this judgement: memory and shapes are handed in.
"""

from offloadtune.engine.synthetic.kernels import Curve
from offloadtune.engine.synthetic.machines import (
    Blocks,
    MemoryTaken,
    SyntheticCard,
    SyntheticHost,
    SyntheticMachine,
)
from offloadtune.engine.synthetic.noise import Noise, NoiseSource
from offloadtune.engine.synthetic.runner import SyntheticRunner
from offloadtune.engine.synthetic.surprises import (
    LyingFreeMemory,
    SlowKernel,
    SmtCollapse,
    Spill,
    Surprise,
    Throttle,
)
from offloadtune.engine.synthetic.truth import Truth, decode_s, prompt_s, truth

__all__ = [
    "Blocks",
    "Curve",
    "LyingFreeMemory",
    "MemoryTaken",
    "Noise",
    "NoiseSource",
    "SlowKernel",
    "SmtCollapse",
    "Spill",
    "Surprise",
    "SyntheticCard",
    "SyntheticHost",
    "SyntheticMachine",
    "SyntheticRunner",
    "Throttle",
    "Truth",
    "decode_s",
    "prompt_s",
    "truth",
]
