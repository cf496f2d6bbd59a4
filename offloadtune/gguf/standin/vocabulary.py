"""A small vocabulary of byte pairs, padded to any size: an engine reads text with it, in shorter tokens than usual."""

from __future__ import annotations

from offloadtune.errors import UsageError
from offloadtune.gguf.standin.encoding import encoded, number_array, string_array

_NORMAL, _CONTROL, _UNUSED, _I32 = 1, 3, 5, 5
_SPECIAL = ("<unk>", "<s>", "</s>", "<|endoftext|>")
"""llama.cpp looks these up by name in files that are called Phi-3."""

_WORDS = (
    "the and of to in it was that he she you her his as had with for at on not be but all said they this is so "
    "very what little one out up if or there then no when them like went which were have would could about "
    "into know down time do er re en an es ed te ti st ar nd ng al le ve ly ion ing ent tha nth int ere tio "
    "ter est ers ati hat ate eth hes ver oft ith fth sth oth res ont self thing ought ight ever some think "
    "head again look back came"
)


def made_up(n_vocab: int) -> dict[str, bytes]:
    """The key-values of a tokenizer with `n_vocab` tokens. Raises UsageError where they are too few for all bytes."""
    tokens, merges = _tokens()
    if len(tokens) > n_vocab:
        sentence = f"A vocabulary of {n_vocab} tokens is too small for the built-in one, which has {len(tokens)}."
        raise UsageError(sentence, hint="Take the vocabulary of a real file with --vocab-from.")
    types = [_CONTROL] * len(_SPECIAL) + [_NORMAL] * (len(tokens) - len(_SPECIAL))
    n_more = n_vocab - len(tokens)
    return {
        "tokenizer.ggml.model": encoded("gpt2"),
        "tokenizer.ggml.pre": encoded("gpt-2"),
        "tokenizer.ggml.tokens": string_array([*tokens, *unused_tokens(n_more)]),
        "tokenizer.ggml.token_type": number_array(_I32, types + [_UNUSED] * n_more),
        "tokenizer.ggml.merges": string_array(merges),
        "tokenizer.ggml.unknown_token_id": encoded(_SPECIAL.index("<unk>")),
        "tokenizer.ggml.bos_token_id": encoded(_SPECIAL.index("<s>")),
        "tokenizer.ggml.eos_token_id": encoded(_SPECIAL.index("</s>")),
    }


def unused_tokens(n_tokens: int) -> list[str]:
    """Names that no text leads to, each once."""
    return [f"<|stand-in {i}|>" for i in range(n_tokens)]


def _tokens() -> tuple[list[str], list[str]]:
    """Special tokens, one for each byte, and common pieces of words with the merges that lead to them."""
    tokens = dict.fromkeys((*_SPECIAL, *_byte_letters()))
    merges: dict[str, None] = {}
    space = _byte_letters()[ord(" ")]
    for word in _WORDS.split():
        for piece in (word, space + word):
            for end in range(1, len(piece)):
                left, right = piece[:end], piece[end]
                merges[f"{left} {right}"] = None
                tokens[left + right] = None
    return list(tokens), list(merges)


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in such vocabularies: itself where it can be seen, else one above U+0100."""
    seen = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters, n_unseen = [], 0
    for byte in range(256):
        letters.append(chr(byte if byte in seen else 0x100 + n_unseen))
        n_unseen += byte not in seen
    return letters
