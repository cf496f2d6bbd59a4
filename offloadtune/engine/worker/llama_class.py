"""llama-cpp-python's own `Llama` over a file that is loaded already: its context, its `eval`, its greedy `sample`.

Only the loading is answered with what is there; every other step of its construction is its own. Its parameters must
come out as the settings say, or something else would be measured.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

from llama_cpp import Llama

from offloadtune.engine.worker import native

low = native.low
_PLACEMENT_FIELDS = ("n_gpu_layers", "load_mode")
_CONTEXT_FIELDS = (
    "n_ctx",
    "n_batch",
    "n_ubatch",
    "n_seq_max",
    "n_outputs_max",
    "n_threads",
    "n_threads_batch",
    "flash_attn_type",
    "type_k",
    "type_v",
    "offload_kqv",
    "op_offload",
    "swa_full",
    "kv_unified",
)


free_weights = low.llama_model_free
low.llama_model_free = lambda _handle: None  # weights are the session's: a `Llama` that goes leaves them behind


class LlamaRefusedError(Exception):
    """`Llama` would not be made. `kind` names the phase: of memory, of the file, or of its defaults."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def make_llama(loaded: Any, path: str, settings: dict[str, Any], arguments: dict[str, Any]) -> Any:
    """`Llama(path, **arguments)` on the weights behind the handle `loaded`; None where the engine opens no context.

    What it prints is dropped: metadata and templates hold any words, and the log is read for words of trouble.

    Raises LlamaRefusedError.
    """
    try:
        with _loads(loaded), contextlib.redirect_stderr(io.StringIO()):
            llama = Llama(model_path=path, **arguments)
    except MemoryError as error:
        raise LlamaRefusedError("open", f"MemoryError: {error}") from None
    except Exception as error:  # noqa: BLE001 - whatever it is, its users would have got it too
        if "Failed to create llama_context" in str(error):
            return None
        raise LlamaRefusedError("front_end", f"{type(error).__name__}: {error}") from None
    differing = ", ".join(_differing(llama, settings))
    if differing:
        llama.close()
        raise LlamaRefusedError("defaults", f"llama-cpp-python's own defaults are not those expected: {differing}")
    return llama


def begin_turn(llama: Any, n_prefix: int) -> None:
    """What `Llama.generate`, which takes no tokens of ours, does before it reads on after `n_prefix` cells."""
    llama.n_tokens = n_prefix
    llama._sampler = llama._init_sampler(temp=0.0)  # noqa: SLF001


def refusal_of(llama: Any, tokens: list[int]) -> str | None:
    """Its words when asked to complete `tokens`, None when it takes them."""
    try:
        llama.create_completion(tokens, max_tokens=1)
    except ValueError as error:
        return str(error)
    return None


@contextlib.contextmanager
def _loads(loaded: Any) -> Iterator[None]:
    original = low.llama_model_load_from_file
    low.llama_model_load_from_file = lambda *_: loaded
    try:
        yield
    finally:
        low.llama_model_load_from_file = original


def _differing(llama: Any, settings: dict[str, Any]) -> Iterator[str]:
    placement, _keep = native.model_params(settings)
    for fields, ours, theirs in (
        (_PLACEMENT_FIELDS, placement, llama.model_params),
        (_CONTEXT_FIELDS, native.context_params(settings), llama.context_params),
    ):
        for name in fields:
            if getattr(ours, name) != getattr(theirs, name):
                yield f"{name}={getattr(theirs, name)}"
    if (shares := native.split_of(llama.model_params)) != native.split_of(placement):
        yield f"tensor_split={shares}"
