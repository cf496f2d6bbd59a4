"""Bytes that settings take, before anything is loaded: pure arithmetic on a header, over arrays of settings.

anatomy   header -> what each block holds and keeps
grid      settings -> arrays, as the engine rounds them
weights   which blocks lie where, with their weights and cache: exact
compute   what the graph needs on top: a rule, exact once identified
reckon    all of it together, for one device or several and for the host
"""

from offloadtune.footprint.anatomy import Backend, anatomy_of, has_cache, has_dense_ffn
from offloadtune.footprint.compute import Terms
from offloadtune.footprint.fitting import (
    COMPUTE_BAND_FRAC,
    Room,
    fits,
    grid_of,
    is_mapped,
    largest_contexts,
    margin_of,
    refusals,
)
from offloadtune.footprint.grid import BYTES_OF_32, CUDA, GENERIC, HOST, Grid, backend_of, lends_from, pad_256
from offloadtune.footprint.identify import identify, probes_of
from offloadtune.footprint.knobs import contradiction, warnings
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
    "COMPUTE_BAND_FRAC",
    "CUDA",
    "GENERIC",
    "HOST",
    "Backend",
    "Footprint",
    "Footprints",
    "Grid",
    "Room",
    "Terms",
    "anatomy_of",
    "backend_of",
    "contradiction",
    "estimate_footprint",
    "estimate_footprints",
    "fits",
    "grid_of",
    "has_cache",
    "has_dense_ffn",
    "identify",
    "is_mapped",
    "kv_cache_bytes",
    "kv_cache_layer_bytes",
    "largest_contexts",
    "lends_from",
    "margin_of",
    "pad_256",
    "probes_of",
    "reckon",
    "refusals",
    "warnings",
]
