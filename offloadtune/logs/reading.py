"""A log, line by line: JSON objects, lists of messages, JSON texts and plain prompts may be mixed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offloadtune.logs.counts import counts_of
from offloadtune.logs.lines import LineError, lines_of
from offloadtune.logs.prefixes import EarlierTexts
from offloadtune.logs.texts import Prompt, is_messages, is_piece, output_of, prompt_of
from offloadtune.workloads import LoggedRequest, RequestKind, SkippedLine

_NESTS = ("request", "response", "body")
_DEPTH = 3
_SPANNING = re.compile(r'[\[\]{},\s]+\Z|"[^"]*"\s*:')
_SERVERS_WORDS = re.compile(r"(?:[\d.]+ [DIWE] )?(?:(?:slot|srv|que|res) +\w+: |\s*(?:prompt eval|eval|total) time = )")


def read_log(path: Path, chars_per_token: float) -> Iterator[LoggedRequest | SkippedLine]:
    """What each line that is not blank says. Raises UsageError where the file cannot be read, or is no log."""
    earlier = EarlierTexts()
    for number, line in enumerate(lines_of(path), start=1):
        try:
            if isinstance(line, LineError):
                raise line
            if line:
                yield _request(line, earlier, chars_per_token)
        except LineError as error:
            yield SkippedLine(number=number, reason=str(error))


def _request(line: str, earlier: EarlierTexts, chars_per_token: float) -> LoggedRequest:
    value = _value(line)
    if isinstance(value, str):
        return _logged(RequestKind.PROMPT, [], Prompt(text=value), earlier, chars_per_token)
    objects = _objects({"messages": value} if isinstance(value, list) else value)
    prompt = prompt_of(objects)
    if prompt is None and is_piece(objects):
        raise LineError("it is a piece of a streamed answer, whose end is counted")
    return _logged(RequestKind.REQUEST, objects, prompt, earlier, chars_per_token)


def _logged(
    kind: RequestKind, objects: list[dict[str, Any]], prompt: Prompt | None, earlier: EarlierTexts, per_token: float
) -> LoggedRequest:
    prompt = prompt or Prompt()
    counts, text = counts_of(objects), prompt.text or ""
    n_given = prompt.n_tokens if counts.n_prompt is None else counts.n_prompt
    is_estimated = n_given is None and bool(text)
    is_partial = n_given is None and not text and counts.n_read is not None
    n_prompt = _n_tokens(len(text), per_token) if is_estimated else counts.n_read if is_partial else n_given
    if not n_prompt:
        raise LineError("its prompt is empty" if n_prompt == 0 or prompt.text is not None else "it holds no prompt")
    n_shared = counts.n_shared
    if text:
        n_same = earlier.shared_with(text)
        earlier.keep(text)
        if n_shared is None:  # the last token is always read
            n_shared = min(n_prompt * n_same // len(text), n_prompt - 1)
    n_output, written = counts.n_output, None
    if n_output is None and (written := output_of(objects)) is not None:
        n_output = _n_tokens(len(written), per_token)
    return LoggedRequest(
        kind=RequestKind.TIMINGS if counts.has_timings else kind,
        n_prompt=n_prompt,
        n_shared=n_shared,
        n_output=n_output,
        n_chars=len(text) or None,
        is_estimated=is_estimated,
        is_output_estimated=written is not None,
        is_partial=is_partial,
        has_media=prompt.has_media,
    )


def _n_tokens(n_chars: int, chars_per_token: float) -> int:
    return math.ceil(n_chars / chars_per_token)


def _value(line: str) -> str | list[Any] | dict[str, Any]:
    """What a line holds: a prompt, messages or an object. Raises LineError."""
    if line.startswith("data:"):  # as a server streams it
        line = line.removeprefix("data:").strip()
        if line == "[DONE]":
            raise LineError("it ends a stream")
    is_object = line.startswith("{") and not _SPANNING.match(line)
    value = _parsed(line) if line.startswith(("{", "[", '"')) else None
    if (
        isinstance(value, str)
        or (isinstance(value, dict) and value)
        or (isinstance(value, list) and is_messages(value))
    ):
        return value
    if isinstance(value, list) and value:
        raise LineError("it is a JSON list, but not of messages")
    if _SPANNING.match(line):
        raise LineError("it is a piece of JSON that spans lines, and one line is to hold a request")
    if is_object:
        raise LineError("it is no JSON, though it begins like it")
    if _SERVERS_WORDS.match(line):
        raise LineError("it is of a server's messages for people, which are not read; its JSON answers are")
    if "\0" in line:
        raise LineError("it holds bytes that are no text")
    return line


def _parsed(text: str) -> Any:
    """The JSON value of `text`, None where it is none; a comma after it is that of a list written in lines."""
    try:
        return json.loads(text.removesuffix(","))
    except RecursionError:
        raise LineError("it is nested too deep") from None
    except ValueError:
        return None


def _objects(value: dict[str, Any], depth: int = 0) -> list[dict[str, Any]]:
    """`value` and the objects nested in it as request, response or body; such an object may be a text of JSON."""
    found = [value]
    for name in _NESTS if depth < _DEPTH else ():
        nested = value.get(name)
        if isinstance(nested, str) and nested.lstrip().startswith("{"):
            nested = _parsed(nested)
        if isinstance(nested, dict):
            found += _objects(nested, depth + 1)
    return found
