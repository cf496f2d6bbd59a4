"""Stand-ins: files of the shape and the types of a real model, whose weights are random.

An engine reads them and takes as long as for the real file; what it writes with them means nothing. From the bits up:

    blocks      a type -> blocks of random weights that every kernel accepts
    encoding    key-values and tensors -> the bytes of a header
    vocabulary  a size -> a tokenizer made up
    sources     a description, or a real file's header -> `Parts`
    shorter     parts -> the same with fewer blocks; how many may stay
    writing     parts -> a file, whole or not at all
"""

from offloadtune.gguf.standin.shorter import kept_blocks, layer_counts, shorter
from offloadtune.gguf.standin.sources import Parts, described_parts, file_parts, marked, vocabulary_of
from offloadtune.gguf.standin.vocabulary import made_up
from offloadtune.gguf.standin.writing import write

__all__ = [
    "Parts",
    "described_parts",
    "file_parts",
    "kept_blocks",
    "layer_counts",
    "made_up",
    "marked",
    "shorter",
    "vocabulary_of",
    "write",
]
