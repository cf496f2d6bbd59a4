"""Instruction sets as llama.cpp names them: those the CPU has, those an engine was built with.

Names: ggml_backend_cpu_get_features in ggml/src/ggml-cpu/ggml-cpu.cpp. Left out are those every CPU of its kind has,
and AMX beyond 8-bit integers, which llama.cpp does not use.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

NEEDED_FLAGS: Mapping[str, tuple[str, ...]] = {
    "AVX": ("avx",),
    "AVX_VNNI": ("avx_vnni",),
    "AVX2": ("avx2",),
    "F16C": ("f16c",),
    "FMA": ("fma",),
    "BMI2": ("bmi2",),
    "AVX512": ("avx512f",),
    "AVX512_VBMI": ("avx512vbmi",),
    "AVX512_VNNI": ("avx512_vnni",),
    "AVX512_BF16": ("avx512_bf16",),
    "AMX_INT8": ("amx_tile", "amx_int8"),
    "NEON": ("asimd",),
    "ARM_FMA": ("asimd",),
    "FP16_VA": ("asimdhp",),
    "DOTPROD": ("asimddp",),
    "MATMUL_INT8": ("i8mm",),
    "SVE": ("sve",),
    "SME": ("sme",),
}
"""llama.cpp's name -> the flags of /proc/cpuinfo that it takes."""

_MAC_FLAGS: Mapping[str, str] = {
    "hw.optional.avx1_0": "avx",
    "hw.optional.avx2_0": "avx2",
    "hw.optional.f16c": "f16c",
    "hw.optional.fma": "fma",
    "hw.optional.bmi2": "bmi2",
    "hw.optional.avx512f": "avx512f",
    "hw.optional.avx512vbmi": "avx512vbmi",
    "hw.optional.neon": "asimd",
    "hw.optional.AdvSIMD": "asimd",
    "hw.optional.arm.AdvSIMD": "asimd",
    "hw.optional.arm.FEAT_FP16": "asimdhp",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_SME": "sme",
}
"""Name of a sysctl of macOS -> the flag that Linux has for the same."""

_TURNED_ON = re.compile(r"\b([A-Z][A-Z0-9_]*) = 1(?![0-9])")
_MAC_TURNED_ON = re.compile(r"^(hw\.optional\.[\w.]+): 1$", re.MULTILINE)


def cpu_instruction_sets(flags: Collection[str]) -> tuple[str, ...]:
    """Those that a CPU with the flags of /proc/cpuinfo has."""
    return tuple(name for name, needed in NEEDED_FLAGS.items() if set(needed) <= set(flags))


def engine_instruction_sets(system_info: str) -> tuple[str, ...]:
    """Those that stand as "= 1" in what llama_print_system_info printed."""
    found = _TURNED_ON.findall(system_info)
    return tuple(name for name in NEEDED_FLAGS if name in found)


def parse_mac_flags(text: str) -> tuple[str, ...]:
    """Flags as Linux spells them, from what `sysctl hw.optional` printed."""
    return tuple(sorted({_MAC_FLAGS[name] for name in _MAC_TURNED_ON.findall(text) if name in _MAC_FLAGS}))
