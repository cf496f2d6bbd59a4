"""Rows as llama-bench prints them: its table, JSON, JSON lines, SQL and CSV, with its fields in its order.

Source: the printers of tools/llama-bench/llama-bench.cpp of llama.cpp 0.5. What differs is what would break what reads
it: quotes in SQL are doubled, line ends in the table left out, and a figure that has more digits than llama-bench
prints keeps them. Our own fields stand in JSON lines only.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offloadtune.rows import FIELDS, OUR_PREFIX, BenchRow, FieldKind

_SQL_TYPES = {
    FieldKind.STRING: "TEXT",
    FieldKind.BOOL: "INTEGER",
    FieldKind.INT: "INTEGER",
    FieldKind.FLOAT: "REAL",
}
_TABLE_WIDTHS = {
    "model": -30,
    "t/s": 20,
    "size": 10,
    "params": 10,
    "n_gpu_layers": 3,
    "n_threads": 7,
    "n_batch": 7,
    "n_ubatch": 8,
    "type_k": 6,
    "type_v": 6,
    "split_mode": 6,
    "load_mode": 10,
    "flash_attn": 3,
    "devices": -12,
    "test": 15,
    "no_op_offload": 4,
    "no_host": 4,
    "repack": 3,
}
"""Negative: flush left."""
_TABLE_NAMES = {
    "n_gpu_layers": "ngl",
    "split_mode": "sm",
    "n_threads": "threads",
    "no_kv_offload": "nkvo",
    "flash_attn": "fa",
    "load_mode": "lm",
    "embeddings": "embd",
    "no_op_offload": "nopo",
    "no_host": "noh",
    "repack": "rpk",
    "devices": "dev",
    "tensor_split": "ts",
    "tensor_buft_overrides": "ot",
    "fit_target": "fitt",
    "fit_min_ctx": "fitc",
}
_TABLE_DEFAULTS: dict[str, Any] = {
    "n_cpu_moe": 0,
    "cpu_mask": "0x0",
    "cpu_strict": False,
    "poll": 50,
    "n_batch": 2048,
    "n_ubatch": 512,
    "type_k": "f16",
    "type_v": "f16",
    "main_gpu": 0,
    "split_mode": "layer",
    "no_kv_offload": False,
    "flash_attn": -1,
    "devices": "auto",
    "tensor_split": "0.00",
    "tensor_buft_overrides": "none",
    "load_mode": "auto",
    "lazy_mode": "auto",
    "embeddings": False,
    "no_op_offload": 0,
    "no_host": False,
    "repack": True,
    "fit_target": 0,
    "fit_min_ctx": 0,
}
"""What llama-bench does unasked: a column appears in its table where a row differs. In the order of the columns."""
_ON_CPU = ("CPU", "BLAS", "ZenDNN")


def render_rows(rows: Sequence[BenchRow], text_format: str, n_threads: int | None = None) -> str:
    """`rows` as llama-bench prints them with `-o text_format`: md, json, jsonl, sql or csv.

    `n_threads` is what llama-bench takes unasked; the table of a card says threads only where a row has others.
    """
    if text_format == "md":
        return _table(rows, n_threads)
    return _FORMATS[text_format](rows)


# --- JSON ----------------------------------------------------------------------------------------------------------


def _json(rows: Sequence[BenchRow]) -> str:
    objects = []
    for row in rows:
        lines = [f'    "{_escaped(name)}": {text}' for name, text in _members(row, ours=False)]
        objects.append("  {\n" + ",\n".join(lines) + "\n  }")
    return "[\n" + ",\n".join(objects) + "\n]\n"


def _json_lines(rows: Sequence[BenchRow]) -> str:
    lines = []
    for row in rows:
        members = [f'"{_escaped(name)}": {text}' for name, text in _members(row, ours=True)]
        line = ", ".join(members).replace(' ], "samples_ts"', ' ],"samples_ts"')  # as llama-bench has it
        lines.append("{" + line + "}\n")
    return "".join(lines)


def _members(row: BenchRow, *, ours: bool) -> list[tuple[str, str]]:
    found = [(name, _json_text(value)) for name, value in row.fields.items()]
    if row.samples_ns or row.samples_ts:
        found += [("samples_ns", _list(row.samples_ns)), ("samples_ts", _list(row.samples_ts))]
    extras = [(name, value) for name, value in row.extra.items() if ours or not name.startswith(OUR_PREFIX)]
    return found + [(name, _json_text(value)) for name, value in extras]


def _list(values: Sequence[float]) -> str:
    return f"[ {', '.join(_sample(value) for value in values)} ]"


def _sample(value: float) -> str:
    """Six digits, as C++ prints a number that it was told nothing of."""
    short = format(value, "g")
    return str(value) if isinstance(value, int) else short if float(short) == value else repr(value)


def _json_text(value: Any) -> str:
    if isinstance(value, str):
        return f'"{_escaped(value)}"'
    if isinstance(value, float):
        return _decimal(value)
    return json.dumps(value)


def _escaped(text: str) -> str:
    """What JSON asks for, written as llama-bench writes it; and halves of characters, which UTF-8 does not have."""
    return "".join(
        f"\\{c}" if c in '"\\' else f"\\u{ord(c):04x}" if c < " " or "\ud800" <= c <= "\udfff" else c for c in text
    )


def _decimal(value: float) -> str:
    """Six places, as std::to_string does."""
    short = f"{value:.6f}"
    return short if float(short) == value else repr(value)


# --- SQL and CSV ---------------------------------------------------------------------------------------------------


def _sql(rows: Sequence[BenchRow]) -> str:
    names = _columns(rows)
    columns = ",\n".join(f"  {_sql_name(name)} {_sql_type(name, rows)}" for name in names)
    insert = f"INSERT INTO llama_bench ({', '.join(map(_sql_name, names))}) VALUES"
    lines = [f"{insert} ({', '.join(_sql_value(row.fields, name) for name in names)});\n" for row in rows]
    return f"CREATE TABLE IF NOT EXISTS llama_bench (\n{columns}\n);\n\n{''.join(lines)}"


def _sql_name(name: str) -> str:
    return name if name in FIELDS else '"' + name.replace('"', '""') + '"'


def _sql_type(name: str, rows: Sequence[BenchRow]) -> str:
    if name in FIELDS:
        return _SQL_TYPES[FIELDS[name]]
    values = [row.fields[name] for row in rows if row.fields.get(name) is not None]
    if values and all(isinstance(value, int) for value in values):
        return "INTEGER"
    return "REAL" if values and all(isinstance(value, float) for value in values) else "TEXT"


def _sql_value(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return "NULL" if value is None else "'" + _plain(value).replace("'", "''") + "'"


def _csv(rows: Sequence[BenchRow]) -> str:
    names, text = _columns(rows), io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(names)
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:
        writer.writerow([_plain(row.fields.get(name)) for name in names])
    return text.getvalue()


def _columns(rows: Sequence[BenchRow]) -> list[str]:
    """Every field that a row has; where nothing says otherwise, those of llama-bench."""
    names = dict.fromkeys(name for row in rows for name in row.fields)
    return list(names) or list(FIELDS)


def _plain(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return _decimal(value)
    return str(int(value)) if isinstance(value, bool) else str(value)


# --- the table -----------------------------------------------------------------------------------------------------


def _table(rows: Sequence[BenchRow], n_threads: int | None) -> str:
    columns = _table_columns(rows, n_threads)
    head = "".join(f" {_padded(_TABLE_NAMES.get(name, name), _width(name))} |" for name in columns)
    rule = "".join(f" {'-' * (abs(_width(name)) - 1)}{':' if _width(name) > 0 else '-'} |" for name in columns)
    lines = ["|" + "".join(f" {_padded(_cell(row, name), _width(name))} |" for name in columns) for row in rows]
    builds = dict.fromkeys(
        f"build: {_field(row, 'build_commit') or 'unknown'} ({_field(row, 'build_number') or 0})" for row in rows
    )
    return "\n".join([f"|{head}", f"|{rule}", *lines, "", *builds]) + "\n"


def _table_columns(rows: Sequence[BenchRow], n_threads: int | None) -> list[str]:
    on_cpu = {any(word in _field(row, "backends") for word in _ON_CPU) for row in rows}
    differing = [
        name
        for name, default in _TABLE_DEFAULTS.items()
        if any(row.fields.get(name, default) not in {default, None} for row in rows)
    ]
    threads = {row.fields.get("n_threads") for row in rows}
    columns = ["model", "size", "params", "backend"]
    if on_cpu != {True}:
        columns.append("n_gpu_layers")
    if "n_cpu_moe" in differing:
        columns.append("n_cpu_moe")
    if True in on_cpu or len(threads) > 1 or (n_threads is not None and threads != {n_threads}):
        columns.append("n_threads")
    return [*columns, *(name for name in differing if name != "n_cpu_moe"), "test", "t/s"]


def _width(name: str) -> int:
    if name in _TABLE_WIDTHS:
        return _TABLE_WIDTHS[name]
    width = max(len(name), 10)
    return -width if FIELDS.get(name, FieldKind.STRING) is FieldKind.STRING else width


def _padded(text: str, width: int) -> str:
    return text.ljust(-width) if width < 0 else text.rjust(width)


def _cell(row: BenchRow, name: str) -> str:
    return _CELLS[name](row) if name in _CELLS else _field(row, name)


def _field(row: BenchRow, name: str) -> str:
    """A field as one cell: what would end it or the line is left out."""
    return "".join(c for c in _plain(row.fields.get(name)) if c.isprintable() and c != "|")


def _size(row: BenchRow) -> str:
    n_bytes = row.fields.get("model_size")
    if n_bytes is None:
        return ""
    return f"{n_bytes / 1024**2:.2f} MiB" if n_bytes < 1024**3 else f"{n_bytes / 1024**3:.2f} GiB"


def _params(row: BenchRow) -> str:
    n_params = row.fields.get("model_n_params")
    if n_params is None:
        return ""
    return f"{n_params / 1e6:.2f} M" if n_params < 10**9 else f"{n_params / 1e9:.2f} B"


def _rate(row: BenchRow) -> str:
    average, deviation = row.fields.get("avg_ts"), row.fields.get("stddev_ts")
    return "" if average is None else f"{average:.2f} ± {deviation or 0.0:.2f}"


def _test(row: BenchRow) -> str:
    n_prompt, n_gen, n_depth = (row.fields.get(name) or 0 for name in ("n_prompt", "n_gen", "n_depth"))
    if n_prompt and not n_gen:
        name = f"pp{n_prompt}"
    elif n_gen and not n_prompt:
        name = f"tg{n_gen}"
    else:
        name = f"pp{n_prompt}+tg{n_gen}"
    return f"{name} @ d{n_depth}" if n_depth else name


_CELLS: dict[str, Callable[[BenchRow], str]] = {
    "model": lambda row: _field(row, "model_type") or _field(row, "model_filename"),
    "size": _size,
    "params": _params,
    "backend": lambda row: _field(row, "backends"),
    "test": _test,
    "t/s": _rate,
}
_FORMATS: dict[str, Callable[[Sequence[BenchRow]], str]] = {
    "json": _json,
    "jsonl": _json_lines,
    "sql": _sql,
    "csv": _csv,
}
