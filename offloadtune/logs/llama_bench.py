"""What llama-bench printed, read back as rows: its JSON, JSON lines, SQL and CSV, and the SQLite file its SQL makes.

Fields of older and newer versions are taken as they stand; what is no row is counted and passed over, so that a run
which was stopped, or has the engine's messages in between, gives what it holds. Nothing of the file is executed: SQL is
taken apart here, and a database is opened to be read alone.
"""

from __future__ import annotations

import codecs
import csv
import json
import math
import re
import sqlite3
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offloadtune.errors import UsageError
from offloadtune.rows import FIELDS, OUR_PREFIX, BenchRow, FieldKind

MAX_FILE_BYTES = 64 << 20
_HINT = "name what llama-bench printed with -o json, jsonl, sql or csv, or the SQLite file made of its SQL"
_SQLITE_MAGIC = b"SQLite format 3\0"
_N_SQLITE_STEPS = 1000
_MAX_SQLITE_BEATS = 200_000
_OLD_BOOLS = {"use_mmap", "f16_kv", "mul_mat_q", "cuda", "vulkan", "metal", "sycl", "rpc", "gpu_blas", "blas"}
_MAX_BROKEN = 10_000  # a file of nothing else would take for ever, and is none
_NO_NUMBER = re.compile(r'(?<=": )-?(?:nan|inf)\b')  # what C prints for 0/0, in what should be JSON
_CSV_HEAD = re.compile(r'^"?\w+"?(?:,"?\w+"?){3,}\s*$')
_INSERT = re.compile(
    r"^\s*INSERT INTO [\"`\[]?llama_bench[\"`\]]? *\(([^()]*)\) *VALUES *\(", re.IGNORECASE | re.MULTILINE
)
_CREATE = re.compile(r"^CREATE TABLE [\w ]{0,99}llama_bench *\(([^;]{0,9999})\)\s*;", re.IGNORECASE | re.MULTILINE)
_COLUMN = re.compile(r'"?(\w+)"?\s+(TEXT|INTEGER|REAL)\b', re.IGNORECASE)
_SQL_VALUE = re.compile(r"\s*(?:'|([\w.+-]+))")
_SQL_END = re.compile(r"\s*([,)])")
_TABLE_HEAD = re.compile(r"^\|\s*model\s*\|.*\bt/s\b", re.MULTILINE)
_OPENING = re.compile(r"^\s*\{", re.MULTILINE)
_NEXT = re.compile(r"[^\s,\[\]]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """Rows of a file in its order. `n_broken` pieces were no rows; `first_broken` tells where the first is, and why."""

    rows: tuple[BenchRow, ...]
    n_broken: int = 0
    first_broken: str = ""


class _NoRowError(ValueError):
    """Why something is no row, as a clause that holds none of its text."""


Piece = dict[str, Any] | _NoRowError
Pieces = Iterator[tuple[int, Piece]]
"""What stands at each line: the fields of a row, or why there is none."""


def read_rows(path: Path) -> ReadRows:
    """The rows in a file. Raises UsageError where it cannot be read, or holds none."""
    content, label = _content(path), repr(str(path))
    if content.startswith(_SQLITE_MAGIC):
        return _collected(_of_sqlite(path), label)
    if b"\0" in content[: 1 << 16]:
        raise UsageError(f"{label} is no text, nor a database of llama-bench's rows.", hint=_HINT)
    text = content.removeprefix(codecs.BOM_UTF8).decode(errors="replace")
    return _collected(_reader(text)(text), label, is_table=_TABLE_HEAD.search(text) is not None)


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it cannot be read"
        raise UsageError(f"{str(path)!r}: {reason}.", hint=_HINT) from None
    if len(content) > MAX_FILE_BYTES:
        message = f"{str(path)!r} is larger than the {MAX_FILE_BYTES >> 20} MiB that are read of a file of rows."
        raise UsageError(message, hint="split it, or leave out what is not needed")
    return content


def _reader(text: str) -> Callable[[str], Pieces]:
    if _INSERT.search(text):
        return _of_sql
    return _of_csv if any(_CSV_HEAD.match(line) for line in text.splitlines()[:100]) else _of_json


def _collected(pieces: Pieces, label: str, *, is_table: bool = False) -> ReadRows:
    rows, n_broken, first_broken = [], 0, ""
    for line, piece in pieces:
        if n_broken == _MAX_BROKEN:
            break
        try:
            if isinstance(piece, _NoRowError):
                raise piece
            rows.append(_row(piece))
        except _NoRowError as error:
            n_broken += 1
            first_broken = first_broken or f"line {line}: {error}"
    if rows:
        return ReadRows(rows=tuple(rows), n_broken=n_broken, first_broken=first_broken)
    if is_table:
        message = f"{label} is llama-bench's table for people, which leaves out most of a row."
        raise UsageError(message, hint="run llama-bench with -o jsonl")
    if not n_broken:
        raise UsageError(f"{label} is empty.", hint=_HINT)
    raise UsageError(f"{label} holds no row of llama-bench; the first that is none is {first_broken}.", hint=_HINT)


# --- the forms -----------------------------------------------------------------------------------------------------


def _of_json(text: str) -> Pieces:
    """Objects wherever one begins a line or follows another, be they a list's or a line's own."""
    text = _NO_NUMBER.sub("null", text)
    decoder = json.JSONDecoder(parse_int=_parsed_int, parse_constant=lambda _: None)
    at, line, counted = 0, 1, 0
    while found := _NEXT.search(text, at):
        at = found.start()
        line += text.count("\n", counted, at)
        counted = at
        try:
            if text[at] != "{":
                raise _NoRowError("it is no JSON object")
            value, at = decoder.raw_decode(text, at)
            yield line, value
        except (ValueError, RecursionError) as error:
            yield line, error if isinstance(error, _NoRowError) else _NoRowError("it is no whole JSON object")
            at = _after_broken(text, at)


def _after_broken(text: str, at: int) -> int:
    """Where the next object may begin. A broken one is counted once, however many lines it has."""
    line_end = text.find("\n", at)
    if line_end < 0:
        return len(text)
    if text[at] != "{":
        return line_end + 1
    found = _OPENING.search(text, line_end)
    return found.end() - 1 if found else len(text)


def _of_csv(text: str) -> Pieces:
    lines = text.splitlines(keepends=True)
    i_head = next(i for i, line in enumerate(lines) if _CSV_HEAD.match(line))
    for i in range(i_head):
        if lines[i].strip():
            yield i + 1, _NoRowError("it stands before the names of the fields")
    reader = csv.reader(lines[i_head:])
    names, line = next(reader), i_head + 2
    while True:
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield line, _NoRowError("it is no CSV")
            continue
        if values == names or not values:  # a second run's, appended
            pass
        elif len(values) == len(names):
            yield line, {name: _of_text(name, value) for name, value in zip(names, values, strict=True)}
        else:
            yield line, _NoRowError(f"it has {len(values)} fields where {len(names)} are named")
        line = i_head + reader.line_num + 1


def _of_sql(text: str) -> Pieces:
    """The values of each INSERT, by the column types of the CREATE where they are fields that we do not know."""
    created = _CREATE.search(text)
    types = dict(_COLUMN.findall(created[1])) if created else {}
    inserts = list(_INSERT.finditer(text))
    line, counted = 1, 0
    for i, match in enumerate(inserts):
        line += text.count("\n", counted, match.start())
        counted = match.start()
        names = [name.strip().strip('"`[]') for name in match[1].split(",")]
        end = inserts[i + 1].start() if i + 1 < len(inserts) else len(text)
        try:
            values = _sql_values(text, match.end(), end, len(names))
        except _NoRowError as error:
            yield line, error
        else:
            yield (
                line,
                {name: _of_text(name, value, types.get(name)) for name, value in zip(names, values, strict=True)},
            )


def _sql_values(text: str, at: int, end: int, n_values: int) -> list[str | None]:
    """`n_values` values from `at` on, to the bracket that ends them."""
    values: list[str | None] = []
    while len(values) < n_values:
        match = _SQL_VALUE.match(text, at, end)
        if match is None:
            raise _NoRowError("its values are no SQL")
        value: str | None
        if match[1] is None:
            value, at = _sql_text(text, match.end(), end)
        else:
            value, at = None if match[1].upper() == "NULL" else match[1], match.end()
        values.append(value)
        follows = _SQL_END.match(text, at, end)
        if follows is None or (follows[1] == ")") != (len(values) == n_values):
            raise _NoRowError(f"it does not have the {n_values} values that it names")
        at = follows.end()
    return values


def _sql_text(text: str, at: int, end: int) -> tuple[str, int]:
    """The text from `at` on to the quote that ends it, and the place behind.

    llama-bench does not double a quote that stands in a value, so one that nothing tells to be the end is the value's.
    """
    value = ""
    while (quote := text.find("'", at, end)) >= 0:
        value += text[at:quote]
        if text.startswith("''", quote):
            value, at = value + "'", quote + 2
        elif _SQL_END.match(text, quote + 1, end):
            return value, quote + 1
        else:
            value, at = value + "'", quote + 1
    raise _NoRowError("a text in it has no end")


def _of_sqlite(path: Path) -> Pieces:
    """The rows of the table, whatever else the database holds; one that computes without end is left."""
    beats = iter(range(_MAX_SQLITE_BEATS))
    try:
        connection = sqlite3.connect(f"file:{urllib.parse.quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            connection.set_progress_handler(lambda: next(beats, None) is None, _N_SQLITE_STEPS)
            cursor = connection.execute("SELECT * FROM llama_bench")
            names = [column[0] for column in cursor.description]
            for i, values in enumerate(cursor, start=1):
                yield i, {name: _of_column(name, value) for name, value in zip(names, values, strict=True)}
        finally:
            connection.close()
    except (sqlite3.Error, ValueError) as error:
        yield 1, _NoRowError(f"it cannot be read as a database ({''.join(c for c in str(error) if c.isprintable())})")


# --- a row ---------------------------------------------------------------------------------------------------------


def _row(value: dict[str, Any]) -> BenchRow:
    """The row that an object is. Raises _NoRowError."""
    samples_ns, samples_ts = (value.get(name, ()) for name in ("samples_ns", "samples_ts"))
    fields: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, one in value.items():
        if name in {"samples_ns", "samples_ts"}:
            continue
        is_plain = one is None or isinstance(one, str | int | float)
        (fields if is_plain and not name.startswith(OUR_PREFIX) else extra)[name] = one
    _check(fields)
    _check_samples(samples_ns, samples_ts)
    return BenchRow(fields=fields, samples_ns=tuple(samples_ns), samples_ts=tuple(samples_ts), extra=extra)


def _check(fields: Mapping[str, Any]) -> None:
    for name, kind in FIELDS.items():
        value = fields.get(name)
        if value is not None and not isinstance(value, _TYPES[kind]):
            raise _NoRowError(f"its {name} is not a {_KIND_WORDS[kind]}")
    for name in ("n_prompt", "n_gen", "avg_ts"):
        if fields.get(name) is None:
            raise _NoRowError(f"it has no {name}, which every row of llama-bench has")
    if min(fields["n_prompt"], fields["n_gen"], fields["avg_ts"]) < 0 or not math.isfinite(fields["avg_ts"]):
        raise _NoRowError("it counts what cannot be")


def _check_samples(samples_ns: Any, samples_ts: Any) -> None:
    for name, samples, kind in (("samples_ns", samples_ns, int), ("samples_ts", samples_ts, (int, float))):
        if not isinstance(samples, list | tuple) or not all(isinstance(one, kind) for one in samples):
            raise _NoRowError(f"its {name} are no list of numbers")


_TYPES: dict[FieldKind, Any] = {
    FieldKind.STRING: str,
    FieldKind.BOOL: int,
    FieldKind.INT: int,
    FieldKind.FLOAT: int | float,
}
_KIND_WORDS = {
    FieldKind.STRING: "text",
    FieldKind.BOOL: "yes or no",
    FieldKind.INT: "whole number",
    FieldKind.FLOAT: "number",
}


def _of_text(name: str, value: str | None, sql_type: str | None = None) -> Any:
    """A value of SQL or CSV, where everything is text, as JSON has it; None where it is no such value, or none."""
    kind = FIELDS.get(name) or _KINDS_OF_SQL.get((sql_type or "").upper(), FieldKind.STRING)
    if name in _OLD_BOOLS and name not in FIELDS:
        kind = FieldKind.BOOL
    if kind is FieldKind.STRING or value is None:
        return value
    if kind is FieldKind.BOOL and value in {"0", "1", "false", "true"}:
        return value in {"1", "true"}
    try:
        return _parsed_float(value) if kind is FieldKind.FLOAT else _parsed_int(value)
    except ValueError:
        return value or None  # an empty cell is that of a row without this field


def _of_column(name: str, value: Any) -> Any:
    """A value of SQLite, which keeps numbers as numbers."""
    if isinstance(value, str):
        return _of_text(name, value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if (FIELDS.get(name) is FieldKind.BOOL or name in _OLD_BOOLS) and value in {0, 1}:
        return bool(value)
    return value


def _parsed_int(digits: str) -> int:
    """As many digits as 64 bits have. Raises ValueError."""
    number = int(digits) if len(digits) <= 20 else 1 << 64
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(digits)
    return number


def _parsed_float(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


_KINDS_OF_SQL = {"INTEGER": FieldKind.INT, "REAL": FieldKind.FLOAT}
