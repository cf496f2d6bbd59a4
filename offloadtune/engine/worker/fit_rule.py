"""llama.cpp's own --fit rule, asked of the library that its command-line programs share.

Builds from source carry it beside llama-cpp-python's libraries; without it, or in a version with another signature,
there is no answer.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from offloadtune.engine.worker import native

low = native.low
_SYMBOL = (
    "_Z17common_fit_paramsPKcP18llama_model_paramsP20llama_context_paramsPfP32llama_model_tensor_buft_overridePmj"
    "PK22common_fit_extra_model14ggml_log_level"
)
_N_DEVICES_MAX = 128
_N_OVERRIDES_MAX = 8192
_OVERRIDE_BYTES = 2 * ctypes.sizeof(ctypes.c_void_p)
_N_CTX_LEAST = 4096  # used only where n_ctx is left open, which it never is here
_LOG_LEVEL_ERROR = 4
_SUCCESS = 0


def fit_layers(path: str, settings: dict[str, Any], margin_bytes: int) -> tuple[int | None, bool]:
    """n_gpu_layers by the rule with the memory free now, -1 for all, and whether that is all it says.

    It may also split layers between devices, or leave parts of them on the host (experts first). None where it cannot
    be asked. `margin_bytes` stay free on each device. Nothing but the header is read, and no memory is taken.
    """
    rule = _rule()
    if rule is None:
        return None, False
    placement, keep = native.model_params(settings)
    placement.n_gpu_layers = low.llama_model_default_params().n_gpu_layers  # the rule leaves alone what was chosen
    context = native.context_params(settings)
    margins = (ctypes.c_size_t * _N_DEVICES_MAX)(*[margin_bytes] * _N_DEVICES_MAX)
    split = (ctypes.c_float * _N_DEVICES_MAX)()
    overrides = ctypes.create_string_buffer(_N_OVERRIDES_MAX * _OVERRIDE_BYTES)
    status = rule(
        os.fsencode(path),
        ctypes.byref(placement),
        ctypes.byref(context),
        split,
        overrides,
        margins,
        _N_CTX_LEAST,
        None,
        _LOG_LEVEL_ERROR,
    )
    del keep  # the devices had to outlive the call
    if status != _SUCCESS:
        return None, False
    return int(placement.n_gpu_layers), not any(split) and not any(overrides.raw[:_OVERRIDE_BYTES])


def _rule() -> Any:
    folders = [native.LIBRARY_DIR]
    if "LLAMA_CPP_LIB_PATH" not in os.environ:  # that of another build would take other structs
        folders.append(Path(low.__file__).parent.parent / "lib")
    for folder in folders:
        try:
            library = ctypes.CDLL(str(folder / "libllama-common.so"))
            rule = library[_SYMBOL]
        except (OSError, AttributeError):
            continue
        pointers = (ctypes.c_void_p,) * 5
        rule.argtypes = (ctypes.c_char_p, *pointers, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int)
        return rule
    return None
