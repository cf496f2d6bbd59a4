"""What a text shares with earlier ones: a server that keeps them need not read that again."""

from __future__ import annotations

from collections import deque

_N_KEPT = 64
_N_CHARS_KEPT = 8 << 20
_BLOCK = 4096


class EarlierTexts:
    """The last texts, the newest first; of very long ones fewer."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque(maxlen=_N_KEPT)
        self._n_chars = 0

    def shared_with(self, text: str) -> int:
        """Length of the longest beginning that `text` has in common with a kept one."""
        best = 0
        for earlier in self._texts:
            if len(earlier) > best < len(text) and earlier[best] == text[best]:
                best = max(best, common_length(text, earlier))
        return best

    def keep(self, text: str) -> None:
        if len(self._texts) == _N_KEPT:
            self._n_chars -= len(self._texts.pop())
        self._texts.appendleft(text)
        self._n_chars += len(text)
        while self._n_chars > _N_CHARS_KEPT and len(self._texts) > 1:
            self._n_chars -= len(self._texts.pop())


def common_length(one: str, other: str) -> int:
    """Length of the common beginning; blocks are compared whole, which is fast."""
    start = 0
    while start < len(one) and one[start : start + _BLOCK] == other[start : start + _BLOCK]:
        start += _BLOCK
    start = min(start, len(one), len(other))
    end = min(len(one), len(other), start + _BLOCK)
    while start < end and one[start] == other[start]:
        start += 1
    return start
