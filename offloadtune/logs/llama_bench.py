"""What llama-bench printed, read back as rows: its JSON, JSON lines, SQL and CSV, and the SQLite file its SQL makes.

Fields of older and newer versions are taken as they stand; what is no row is counted and passed over, so that a run
which was stopped, or has the engine's messages in between, gives what it holds. Nothing of the file is executed: SQL is
taken apart here, and a database is opened to be read alone.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
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
_MAX_SQLITE_ROWS = 100_000
_MAX_CELL_BYTES = 1 << 16
_OLD_BOOLS = {"use_mmap", "f16_kv", "mul_mat_q", "cuda", "vulkan", "metal", "sycl", "rpc", "gpu_blas", "blas"}
_MAX_WASTED_CHARS = 1 << 33  # each broken object is looked at again from the file's beginning, to count its lines
_MAX_RECORD_LINES = 50
_MAX_LEVELS = 20
_NEEDED = ("n_prompt", "n_gen", "avg_ts")
_NO_NUMBER = re.compile(r'(?<=": )-?(?:nan|inf)\b')  # what C prints for 0/0, in what should be JSON
_QUOTED = r'"(?:[^"]++|"")*+"'
_INSERT = re.compile(
    rf"^[ \t]*INSERT INTO [\"`\[]?llama_bench[\"`\]]? *\(((?:[^()\"]++|{_QUOTED})*+)\) *VALUES *\(",
    re.IGNORECASE | re.MULTILINE,
)
_CREATE = re.compile(
    rf"^CREATE TABLE [\w ]{{0,99}}llama_bench *\(((?:[^;()\"]++|{_QUOTED})*+)\)\s*;", re.IGNORECASE | re.MULTILINE
)
_NAME = re.compile(rf"{_QUOTED}|[^\s,\"`\[\]]+")
_COLUMN = re.compile(rf"({_QUOTED}|\w+)\s+(TEXT|INTEGER|REAL)\b", re.IGNORECASE)
_SQL_VALUE = re.compile(r"\s*(?:'|([\w.+-]+))")
_SQL_END = re.compile(r"\s*([,)])")
_TABLE_HEAD = re.compile(r"^\|\s*model\s*\|.*\bt/s\b", re.MULTILINE)
_OPENING = re.compile(r"^[ \t]*\{", re.MULTILINE)
_NEXT = re.compile(r"[^\s,\[\]]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """Rows of a file in its order. `n_broken` pieces were no rows; `first_broken` tells where the first is, and why.

    It tells too from which line on nothing was read, where reading on would have taken for ever.
    """

    rows: tuple[BenchRow, ...]
    n_broken: int = 0
    first_broken: str = ""


class _NoRowError(ValueError):
    """Why something is no row, as a clause that holds none of its text."""


class _GaveUpError(_NoRowError):
    """Why nothing is read from here on."""


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
    return _of_csv if any(map(_is_csv_head, itertools.islice(_lines(text), 100))) else _of_json


def _collected(pieces: Pieces, label: str, *, is_table: bool = False) -> ReadRows:
    rows, n_broken, first_broken = [], 0, ""
    for line, piece in pieces:
        if isinstance(piece, _GaveUpError):
            first_broken = "; ".join(filter(None, [first_broken, f"nothing was read from line {line} on: {piece}"]))
            n_broken = n_broken or 1
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
    at, line, counted, n_wasted = 0, 1, 0, 0
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
            if isinstance(error, _NoRowError):
                yield line, error
            else:
                yield line, _NoRowError("it is no whole JSON object")
                n_wasted += error.pos if isinstance(error, json.JSONDecodeError) else len(text)
            at = _after_broken(text, at)
            if n_wasted > _MAX_WASTED_CHARS and at < len(text):
                yield line + 1, _GaveUpError("too much before it is broken")
                return


def _after_broken(text: str, at: int) -> int:
    """Where the next object may begin. A broken one is counted once, however many lines it has."""
    line_end = text.find("\n", at)
    if line_end < 0:
        return len(text)
    if text[at] != "{":
        return line_end + 1
    found = _OPENING.search(text, line_end)
    return found.end() - 1 if found else len(text)


def _lines(text: str) -> Iterator[str]:
    return iter(io.StringIO(text, newline=""))


def _is_csv_head(line: str) -> bool:
    """Whether a line names the fields that no row is without."""
    try:
        return all(name in line for name in _NEEDED) and set(_NEEDED) <= set(next(csv.reader([line])))
    except csv.Error:
        return False


def _of_csv(text: str) -> Pieces:
    """The records after the names. One that does not fit is one line: the next may be whole, whatever it left open."""
    lines = list(_lines(text))
    i = next(i for i, line in enumerate(lines) if _is_csv_head(line))
    for i_before in range(i):
        if lines[i_before].strip():
            yield i_before + 1, _NoRowError("it stands before the names of the fields")
    names = next(csv.reader([lines[i]]))
    while i < len(lines):
        reader = csv.reader(lines[i : i + _MAX_RECORD_LINES], strict=True)
        try:
            values = next(reader)
        except csv.Error:
            values = None
        n_lines = 1
        if values is None:
            yield i + 1, _NoRowError("it is no whole CSV")
        elif values and values != names and len(values) != len(names):
            yield i + 1, _NoRowError(f"it has {len(values)} fields where {len(names)} are named")
        else:
            n_lines = reader.line_num
            if values and values != names:  # a second run's names may be appended
                yield i + 1, {name: _of_text(name, value) for name, value in zip(names, values, strict=True)}
        i += n_lines


def _of_sql(text: str) -> Pieces:
    """The values of each INSERT, by the column types of the CREATE where they are fields that we do not know."""
    created = _CREATE.search(text)
    types = {_unquoted(name): kind for name, kind in _COLUMN.findall(created[1])} if created else {}
    inserts = list(_INSERT.finditer(text))
    line, counted = 1, 0
    for i, match in enumerate(inserts):
        line += text.count("\n", counted, match.start())
        counted = match.start()
        names = [_unquoted(name) for name in _NAME.findall(match[1])]
        end = inserts[i + 1].start() if i + 1 < len(inserts) else len(text)
        try:
            values = _sql_values(text, match.end(), end, len(names))
        except _NoRowError as error:
            yield line, error
        else:
            named = zip(names, values, strict=True)
            yield line, {name: _of_text(name, value, types.get(name)) for name, value in named}


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


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
    parts = []
    while (quote := text.find("'", at, end)) >= 0:
        parts.append(text[at:quote])
        is_doubled = text.startswith("''", quote)
        if not is_doubled and _SQL_END.match(text, quote + 1, end):
            return "'".join(parts), quote + 1
        at = quote + 1 + is_doubled
    raise _NoRowError("a text in it has no end")


def _of_sqlite(path: Path) -> Pieces:
    """The rows of the table, whatever else the database holds; one that computes, or computes without end, is left."""
    beats = iter(range(_MAX_SQLITE_BEATS))
    try:
        connection = sqlite3.connect(f"file:{urllib.parse.quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_CELL_BYTES)
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            connection.set_progress_handler(lambda: next(beats, None) is None, _N_SQLITE_STEPS)
            yield from _of_table(connection)
        finally:
            connection.close()
    except (sqlite3.Error, ValueError) as error:
        yield 1, _NoRowError(f"it cannot be read as a database ({''.join(c for c in str(error) if c.isprintable())})")


def _of_table(connection: sqlite3.Connection) -> Pieces:
    """What the table stores: no view, no virtual table, no column that is computed."""
    stored = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'llama_bench' AND sql LIKE 'CREATE TABLE%'"
    names = [row[1] for row in connection.execute("PRAGMA table_info(llama_bench)")]  # which leaves out computed ones
    if connection.execute(stored).fetchone() is None or not names:
        yield 1, _NoRowError("it cannot be read as a database (it has no table llama_bench)")
        return
    columns = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
    for i, values in enumerate(connection.execute(f"SELECT {columns} FROM llama_bench"), start=1):  # noqa: S608
        if i > _MAX_SQLITE_ROWS:
            yield i, _GaveUpError(f"more than {_MAX_SQLITE_ROWS} rows are not read")
            return
        yield i, {name: _of_column(name, value) for name, value in zip(names, values, strict=True)}


# --- a row ---------------------------------------------------------------------------------------------------------


def _row(value: dict[str, Any]) -> BenchRow:
    """The row that an object is. Raises _NoRowError."""
    samples_ns, samples_ts = (value.get(name, ()) for name in ("samples_ns", "samples_ts"))
    fields: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, one in value.items():
        if name in {"samples_ns", "samples_ts"}:
            continue
        _check_storable(name)
        _check_storable(one)
        is_plain = one is None or isinstance(one, str | int | float)
        (fields if is_plain and not name.startswith(OUR_PREFIX) else extra)[name] = one
    if not all(map(str.isprintable, fields)):
        raise _NoRowError("the name of a field in it is no plain text")
    _check(fields, samples_ns, samples_ts)
    return BenchRow(fields=fields, samples_ns=tuple(samples_ns), samples_ts=tuple(samples_ts), extra=extra)


def _check_storable(value: Any, n_levels: int = _MAX_LEVELS) -> None:
    """Half a character or deep nesting is JSON, but none that can be kept."""
    if isinstance(value, str) and not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise _NoRowError("it holds half a character")
    if isinstance(value, dict | list):
        if not n_levels:
            raise _NoRowError("it is nested too deep")
        for one in itertools.chain(value, value.values() if isinstance(value, dict) else ()):
            _check_storable(one, n_levels - 1)


def _check(fields: Mapping[str, Any], samples_ns: Any, samples_ts: Any) -> None:
    for name, kind in FIELDS.items():
        value, (types, word) = fields.get(name), _TYPES[kind]
        if value is not None and not isinstance(value, types):
            raise _NoRowError(f"its {name} is not a {word}")
    for name in _NEEDED:
        if fields.get(name) is None:
            raise _NoRowError(f"it has no {name}, which every row of llama-bench has")
    if min(fields["n_prompt"], fields["n_gen"], fields["avg_ts"]) < 0 or not math.isfinite(fields["avg_ts"]):
        raise _NoRowError("it counts what cannot be")
    for name, samples, number in (("samples_ns", samples_ns, int), ("samples_ts", samples_ts, (int, float))):
        if not isinstance(samples, list | tuple) or not all(isinstance(one, number) for one in samples):
            raise _NoRowError(f"its {name} are no list of numbers")


_TYPES: dict[FieldKind, tuple[Any, str]] = {
    FieldKind.STRING: (str, "text"),
    FieldKind.BOOL: (int, "yes or no"),
    FieldKind.INT: (int, "whole number"),
    FieldKind.FLOAT: (int | float, "number"),
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
