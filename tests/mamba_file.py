"""A file with recurrent blocks only: SmolLM2's tokenizer over zeros. It loads; what it writes means nothing."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from moe_file import TOKENIZER_KEYS

N_LAYER, N_EMBD, N_CONV, N_STATE, N_RANK = 4, 256, 4, 16, 16
N_INNER = 2 * N_EMBD
STATE_BYTES = N_LAYER * 4 * ((N_CONV - 1) * N_INNER + N_STATE * N_INNER)
"""What one sequence's states take, in any context."""


def write_mamba_file(path: Path, tokenizer_of: Path) -> None:
    """Some 30 MiB, nearly all of them the embedding."""
    reader = gguf.GGUFReader(tokenizer_of)
    writer = gguf.GGUFWriter(path, "mamba")
    for name in TOKENIZER_KEYS:
        field = reader.fields[f"tokenizer.ggml.{name}"]
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=field.types[-1])
    n_vocab = len(reader.fields["tokenizer.ggml.tokens"].data)
    writer.add_block_count(N_LAYER)
    writer.add_context_length(2048)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(n_vocab)
    writer.add_ssm_conv_kernel(N_CONV)
    writer.add_ssm_inner_size(N_INNER)
    writer.add_ssm_state_size(N_STATE)
    writer.add_ssm_time_step_rank(N_RANK)
    writer.add_tensor("token_embd.weight", np.zeros((n_vocab, N_EMBD), dtype=np.float16))
    writer.add_tensor("output_norm.weight", np.ones(N_EMBD, dtype=np.float32))
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (N_EMBD,),
        "ssm_in.weight": (2 * N_INNER, N_EMBD),
        "ssm_conv1d.weight": (N_INNER, N_CONV),
        "ssm_conv1d.bias": (N_INNER,),
        "ssm_x.weight": (N_RANK + 2 * N_STATE, N_INNER),
        "ssm_dt.weight": (N_INNER, N_RANK),
        "ssm_dt.bias": (N_INNER,),
        "ssm_a": (N_INNER, N_STATE),
        "ssm_d": (N_INNER,),
        "ssm_out.weight": (N_EMBD, N_INNER),
    }
    for i in range(N_LAYER):
        for name, shape in shapes.items():
            writer.add_tensor(f"blk.{i}.{name}", np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
