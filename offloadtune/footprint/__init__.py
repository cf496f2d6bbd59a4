"""Bytes that settings take, before anything is loaded: pure arithmetic on a header, over arrays of settings.

anatomy   header -> what each block holds and keeps
grid      settings -> arrays, as the engine rounds them
weights   which blocks lie where, with their weights and cache: exact
compute   what the graph needs on top: a rule, exact once identified
reckon    all of it together, for one device or several and for the host
"""

from offloadtune.footprint.anatomy import Backend, anatomy_of
from offloadtune.footprint.compute import Terms
from offloadtune.footprint.grid import BYTES_OF_32, CUDA, HOST, Grid, backend_of, pad_256
from offloadtune.footprint.reckon import (
    Footprint,
    Footprints,
    estimate_footprint,
    estimate_footprints,
    kv_cache_bytes,
    kv_cache_layer_bytes,
    reckon,
)

__all__ = [
    "BYTES_OF_32",
    "CUDA",
    "HOST",
    "Backend",
    "Footprint",
    "Footprints",
    "Grid",
    "Terms",
    "anatomy_of",
    "backend_of",
    "estimate_footprint",
    "estimate_footprints",
    "kv_cache_bytes",
    "kv_cache_layer_bytes",
    "pad_256",
    "reckon",
]
