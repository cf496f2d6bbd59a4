"""What a line's objects say in words: the prompt as one text, and the output.

A message counts with the name of its role and two line ends, which stand for what a chat template puts around it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offloadtune.logs.lines import LineError


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt, as a text or as a number of tokens."""

    text: str | None = None
    n_tokens: int | None = None
    has_media: bool = False


def prompt_of(objects: Sequence[dict[str, Any]]) -> Prompt | None:
    """The prompt of a request, None where `objects` hold none. Raises LineError where it cannot be read."""
    before = ""
    for one in objects:
        before += _before(one)
        for key in ("messages", "prompt", "input"):
            value = one.get(key)
            if value is None:
                continue
            if isinstance(value, str):
                return Prompt(text=before + value)
            if isinstance(value, list):
                return _of_list(value, key, before)
            raise LineError(f"its {key} is no text and no list")
    return None


def output_of(objects: Sequence[dict[str, Any]]) -> str | None:
    """The text that was written, None where `objects` hold none."""
    for one in objects:
        choices = one.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            message = choices[0].get("message")
            if isinstance(message, dict):
                return _content(message)[0]
            if isinstance(choices[0].get("text"), str):
                return str(choices[0]["text"])
        for key in ("completion", "response", "output", "output_text", "content"):
            if isinstance(one.get(key), str):
                return str(one[key])
    return None


def is_piece(objects: Sequence[dict[str, Any]]) -> bool:
    """Whether this is a part of an answer that was streamed, not its end: its counts are those so far."""
    for one in objects:
        choices = one.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        if isinstance(first, dict) and "finish_reason" in first and first["finish_reason"] is None:
            return True
    return any(one.get("stop") is False for one in objects)


def is_messages(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and "role" in one for one in value)


def _of_list(items: list[Any], key: str, before: str) -> Prompt:
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        return Prompt(n_tokens=len(items))
    if all(isinstance(item, str) for item in items):
        if len(items) == 1:
            return Prompt(text=before + items[0])
        raise LineError("it holds several prompts")
    if not all(isinstance(item, dict) for item in items):
        raise LineError(f"its {key} mixes what does not go together")
    told = [_message(item) for item in items]
    return Prompt(text=before + "".join(text for text, _ in told), has_media=any(has_media for _, has_media in told))


def _before(one: dict[str, Any]) -> str:
    """What stands before the messages: tools, and a system prompt apart from them."""
    texts = [_json(one["tools"])] if isinstance(one.get("tools"), list) and one["tools"] else []
    system = next((one[key] for key in ("system", "instructions") if isinstance(one.get(key), str | list)), "")
    return "".join(f"{text}\n" for text in (*texts, _text_of(system)[0]) if text)


def _message(message: dict[str, Any]) -> tuple[str, bool]:
    role = message.get("role")
    text, has_media = _content(message)
    return f"{role if isinstance(role, str) else ''}\n{text}\n", has_media


def _content(message: dict[str, Any]) -> tuple[str, bool]:
    text, has_media = _text_of(message.get("content"))
    reasoning, calls = message.get("reasoning_content"), message.get("tool_calls")
    told = (reasoning if isinstance(reasoning, str) else "", text, _json(calls) if isinstance(calls, list) else "")
    return "".join(told), has_media


def _text_of(content: object) -> tuple[str, bool]:
    """The text of a message's content, and whether it holds more than text."""
    if isinstance(content, str):
        return content, False
    if not isinstance(content, list):
        return "", False
    parts = [one.get("text") if isinstance(one, dict) else one for one in content]
    return "".join(part for part in parts if isinstance(part, str)), any(not isinstance(part, str) for part in parts)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
