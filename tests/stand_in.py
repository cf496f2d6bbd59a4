"""A file with the header of a model nobody downloaded and a hole for its data: on disk it takes the header alone."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from offloadtune.catalogue import Described

_SET_APART = ("tokenizer.", "general.architecture")


def write_stand_in(path: Path, header: Described, *, n_merges: int | None = None) -> None:
    """Write the header that `header` describes as GGUF for llama.cpp, with a vocabulary that is only counted.

    With `n_merges` it has tokens of its own and so many merges, made up, as long as a real one.
    """
    writer = gguf.GGUFWriter(path, header.shape.arch)
    if n_merges is None:
        writer.add_tokenizer_model("no_vocab")
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"token{i}" for i in range(header.shape.n_vocab)])
        writer.add_token_types([1] * header.shape.n_vocab)
        writer.add_token_merges([f"left{i} right{i}" for i in range(n_merges)])
    for key, value in header.key_values.items():
        if not key.startswith(_SET_APART):
            _add(writer, key, value)
    for name, type_name, dims in header.tensors:
        ggml_type = gguf.GGMLQuantizationType[type_name]
        n_block, block_bytes = gguf.GGML_QUANT_SIZES[ggml_type]
        n_bytes = math.prod(dims) // n_block * block_bytes
        writer.add_tensor_info(name, dims[::-1], np.dtype("float32"), n_bytes, raw_dtype=ggml_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    n_data_bytes = sum(writer.ggml_pad(info.nbytes, 32) for info in writer.tensors[0].values())
    writer.close()
    os.truncate(path, writer.ggml_pad(path.stat().st_size, 32) + n_data_bytes)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, tuple):
        writer.add_array(key, value)
    else:
        writer.add_uint32(key, value)
