"""The text of every turn, as text and as tokens of the file at hand."""

from __future__ import annotations

import ctypes
from importlib import resources
from typing import Any

from offloadtune.engine.worker import native
from offloadtune.engine.worker.refused import RefusedError

low = native.low


class Prompt:
    """The prompt text by the tokenizer of the loaded file `handle`; read again from its start when it is too short."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._text = b""
        self._tokens: Any = ()
        self._ends: list[int] = []

    def tokens(self, n_tokens: int) -> Any:
        """At least `n_tokens` tokens, as an array of llama_token. Raises RefusedError."""
        if self._tokens and len(self._tokens) >= n_tokens:
            return self._tokens
        once = resources.files(__package__).joinpath("prompt.txt").read_bytes()
        n_repeats = 1
        while True:
            self._text = once * n_repeats
            self._tokens = tokenize(self._handle, self._text)
            if len(self._tokens) >= n_tokens:
                break
            n_repeats = 1 + n_repeats * n_tokens // max(1, len(self._tokens))
        self._ends = self._token_ends()
        return self._tokens

    def text_of(self, n_tokens: int) -> bytes:
        """The text of the first `n_tokens` tokens, which were asked for before."""
        return self._text[: self._ends[n_tokens - 1]]

    def _token_ends(self) -> list[int]:
        """Byte offset in the text after each token, so that a prompt of n tokens can be cut as text."""
        vocab = low.llama_model_get_vocab(self._handle)
        piece = ctypes.create_string_buffer(512)
        ends, end = [], 0
        for token in self._tokens:
            length = low.llama_token_to_piece(vocab, token, piece, len(piece), 0, False)  # noqa: FBT003 - C signature
            end += max(0, length)
            ends.append(min(end, len(self._text)))
        return ends


def tokenize(handle: Any, text: bytes) -> Any:
    """`text` as an array of llama_token, the file's first token before it where it has one. Raises RefusedError."""
    vocab = low.llama_model_get_vocab(handle)
    tokens = (low.llama_token * (len(text) + 2))()
    n_tokens = low.llama_tokenize(vocab, text, len(text), tokens, len(tokens), True, False)  # noqa: FBT003 - C signature
    if n_tokens <= 0:
        raise RefusedError("tokenize", "the file's tokenizer cannot read plain text")
    return (low.llama_token * n_tokens).from_buffer(tokens)
