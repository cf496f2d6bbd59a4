"""A file with a mixture of experts: SmolLM2's tokenizer over zeros. It loads and runs; what it writes means nothing."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

N_LAYER, N_EXPERT, N_EMBD, N_FF, N_HEAD = 4, 16, 512, 1024, 8
TOKENIZER_KEYS = ("model", "pre", "tokens", "token_type", "merges", "bos_token_id", "eos_token_id")


def write_moe_file(path: Path, tokenizer_of: Path) -> None:
    """Some 250 MiB, nine tenths of them experts."""
    reader = gguf.GGUFReader(tokenizer_of)
    writer = gguf.GGUFWriter(path, "llama")
    for name in TOKENIZER_KEYS:
        field = reader.fields[f"tokenizer.ggml.{name}"]
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=field.types[-1])
    n_vocab = len(reader.fields["tokenizer.ggml.tokens"].data)
    writer.add_block_count(N_LAYER)
    writer.add_context_length(2048)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(N_EMBD // N_HEAD)
    writer.add_vocab_size(n_vocab)
    writer.add_expert_count(N_EXPERT)
    writer.add_expert_used_count(2)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (n_vocab, N_EMBD)}
    for i in range(N_LAYER):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"blk.{i}.{name}.weight"] = (N_EMBD, N_EMBD)
        shapes[f"blk.{i}.ffn_gate_inp.weight"] = (N_EXPERT, N_EMBD)
        shapes[f"blk.{i}.ffn_gate_exps.weight"] = (N_EXPERT, N_FF, N_EMBD)
        shapes[f"blk.{i}.ffn_up_exps.weight"] = (N_EXPERT, N_FF, N_EMBD)
        shapes[f"blk.{i}.ffn_down_exps.weight"] = (N_EXPERT, N_EMBD, N_FF)
    for name, shape in shapes.items():
        writer.add_tensor(name, np.zeros(shape, dtype=np.float32 if "gate_inp" in name else np.float16))
    norms = ["output_norm.weight", *(f"blk.{i}.{n}_norm.weight" for i in range(N_LAYER) for n in ("attn", "ffn"))]
    for name in norms:
        writer.add_tensor(name, np.ones(N_EMBD, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
