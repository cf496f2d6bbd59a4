"""GGUF files: what their header says, without reading a weight; and stand-ins for files that are not here.

Hands of floor 1: opens files read-only, writes new ones only, and decides nothing. From the bytes up:

    tables     names and sizes of ggml types, names of quantisations
    opening    path -> mapped header, or why it cannot be one
    cursor     mapped header -> numbers and strings, never past the end
    header     one file -> `Header`: key-values and tensor table, checked
    shards     any shard -> the headers of all of them
    identity   headers -> `gguf_id`; files -> SHA-256
    attention  heads and sliding windows, per block, as llama.cpp reads them
    projector  headers -> the weights of what accompanies a model
    facts      headers -> `GgufFacts`
    standin    a model's shape -> a file with random weights; the only part that writes, loaded when it is needed
"""

from offloadtune.gguf.facts import facts_of_parts, read_gguf
from offloadtune.gguf.identity import identify, sha256_of
from offloadtune.gguf.projector import projector_bytes

__all__ = ["facts_of_parts", "identify", "projector_bytes", "read_gguf", "sha256_of"]
