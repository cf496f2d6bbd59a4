"""Rows of llama-bench, out and in: as the real tool prints them, and back without a loss."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from golden import FOLDER
from hypothesis import given
from hypothesis import strategies as st

from offloadtune import pipeline, store
from offloadtune.cli import rows as command
from offloadtune.errors import StoreError, UsageError
from offloadtune.export import render_rows
from offloadtune.logs import ReadRows, llama_bench, read_rows
from offloadtune.rows import FIELDS, BenchRow, FieldKind

REAL = FOLDER / "llama_bench"


def read(text: str, tmp_path: Path) -> ReadRows:
    path = tmp_path / "rows"
    path.write_bytes(text.encode())
    return read_rows(path)


# --- the real tool's own output ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text_format", ["json", "jsonl", "sql", "csv"])
def test_the_real_tools_output_comes_back_byte_for_byte(text_format: str) -> None:
    path = REAL / f"real.{text_format}"
    found = read_rows(path)
    assert (len(found.rows), found.n_broken) == (6, 0)
    assert render_rows(found.rows, text_format) == path.read_text(encoding="utf-8")


def test_a_row_holds_the_fields_of_the_real_tool_in_its_order_and_types() -> None:
    row = read_rows(REAL / "real.json").rows[0]
    assert list(row.fields) == list(FIELDS)
    types = {FieldKind.STRING: str, FieldKind.BOOL: bool, FieldKind.INT: int, FieldKind.FLOAT: float}
    assert {name: type(value) for name, value in row.fields.items()} == {n: types[k] for n, k in FIELDS.items()}


@pytest.mark.parametrize("text_format", ["sql", "csv"])
def test_the_forms_without_samples_give_values_of_the_same_types(text_format: str) -> None:
    json_row, row = read_rows(REAL / "real.json").rows[0], read_rows(REAL / f"real.{text_format}").rows[0]
    assert list(row.fields) == list(json_row.fields)
    assert [type(value) for value in row.fields.values()] == [type(value) for value in json_row.fields.values()]
    assert row.samples_ns == row.samples_ts == ()


def test_the_table_is_that_of_the_real_tool() -> None:
    """Its figures are of another run than the JSON's, so only those are set anew."""
    table = (REAL / "real.md").read_text(encoding="utf-8")
    rows = []
    for row, line in zip(read_rows(REAL / "real.json").rows, table.splitlines()[2:8], strict=True):
        average, deviation = map(float, line.split("|")[-2].split("±"))
        rows.append(dataclasses.replace(row, fields={**row.fields, "avg_ts": average, "stddev_ts": deviation}))
    assert render_rows(rows, "md") == table


def test_the_database_that_the_real_sql_makes_gives_the_same_rows(tmp_path: Path) -> None:
    sql = REAL / "real.sql"
    with sqlite3.connect(tmp_path / "it's.sqlite") as connection:
        connection.executescript(sql.read_text(encoding="utf-8"))
    connection.close()
    assert read_rows(tmp_path / "it's.sqlite").rows == read_rows(sql).rows


def test_a_database_without_the_table_or_that_computes_for_ever_is_no_file_of_rows(tmp_path: Path) -> None:
    for name, sql in {
        "other": "CREATE TABLE t (x)",
        "endless": "CREATE VIEW llama_bench AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) "
        "SELECT count(*) AS x FROM n",
    }.items():
        with sqlite3.connect(tmp_path / name) as connection:
            connection.execute(sql)
        connection.close()
        with pytest.raises(UsageError, match="it cannot be read as a database"):
            read_rows(tmp_path / name)


@pytest.mark.timeout(60)
def test_a_hostile_database_gives_bounded_rows_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, sql in {
        "view": "CREATE VIEW llama_bench AS SELECT 1 AS n_prompt, 0 AS n_gen, 1.0 AS avg_ts",
        "large": "CREATE TABLE llama_bench (n_prompt, n_gen, avg_ts REAL, x DEFAULT (zeroblob(99999)));"
        "INSERT INTO llama_bench (n_prompt, n_gen, avg_ts) VALUES (1, 0, 1)",
    }.items():
        with sqlite3.connect(tmp_path / name) as connection:
            connection.executescript(sql)
        connection.close()
        with pytest.raises(UsageError, match="it cannot be read as a database"):
            read_rows(tmp_path / name)
    with sqlite3.connect(tmp_path / "computed") as connection:
        connection.execute("CREATE TABLE llama_bench (n_prompt, n_gen, avg_ts REAL, x AS (zeroblob(999999999)))")
        connection.executemany("INSERT INTO llama_bench VALUES (1, 0, 1.0)", [()] * 9)
    connection.close()
    monkeypatch.setattr(llama_bench, "_MAX_SQLITE_ROWS", 8)
    found = read_rows(tmp_path / "computed")
    assert (len(found.rows), list(found.rows[0].fields)) == (8, ["n_prompt", "n_gen", "avg_ts"])
    assert found.first_broken == "nothing was read from line 9 on: more than 8 rows are not read"


# --- what others and older ones wrote ------------------------------------------------------------------------------


def real_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((REAL / "real.json").read_text(encoding="utf-8"))
    return rows


def test_fields_of_other_versions_are_taken_as_they_stand(tmp_path: Path) -> None:
    old = real_rows()[0]
    for name in ("n_ubatch", "load_mode", "lazy_mode", "n_cpu_moe", "fit_target"):
        del old[name]
    old |= {"use_mmap": True, "flash_attn": True, "cuda": False, "new_count": 3, "nested": {"a": [1]}}
    (row,) = read(json.dumps([old]), tmp_path).rows
    assert row.fields["use_mmap"] is True
    assert row.fields["flash_attn"] is True
    assert row.fields["new_count"] == 3
    assert row.extra == {"nested": {"a": [1]}}
    for text_format in ("json", "jsonl"):
        assert json.loads(render_rows([row], text_format).strip().strip("[]")) == old | {
            "samples_ts": [float(f"{x:g}") for x in old["samples_ts"]]
        }
    (again,) = read(render_rows([row], "sql"), tmp_path).rows
    assert again.fields == row.fields


def test_our_own_fields_stand_in_json_lines_only(tmp_path: Path) -> None:
    row = dataclasses.replace(read_rows(REAL / "real.jsonl").rows[0], extra={"offloadtune_ttft_s": 0.5})
    assert read(render_rows([row], "jsonl"), tmp_path).rows == (row,)
    for text_format in ("json", "sql", "csv", "md"):
        assert "offloadtune_" not in render_rows([row], text_format)


def test_a_run_that_was_stopped_gives_what_it_holds(tmp_path: Path) -> None:
    whole = (REAL / "real.json").read_text(encoding="utf-8")
    found = read(whole[: whole.rindex('"avg_ns"')], tmp_path)
    assert (len(found.rows), found.n_broken) == (5, 1)
    assert found.first_broken == f"line {whole[: whole.rindex('  {')].count(chr(10)) + 1}: it is no whole JSON object"


def test_broken_lines_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    lines = (REAL / "real.jsonl").read_text(encoding="utf-8").splitlines()
    text = "\n".join(["ggml_cuda_init: found 1 CUDA devices:", lines[0], lines[1][:200], '{"x": 1}', lines[2], "[]"])
    found = read(text, tmp_path)
    assert (len(found.rows), found.n_broken) == (2, 3)
    assert found.first_broken == "line 1: it is no JSON object"


def test_broken_lines_of_csv_and_sql_are_counted(tmp_path: Path) -> None:
    csv_lines = (REAL / "real.csv").read_text(encoding="utf-8").splitlines()
    found = read("\n".join(["noise", *csv_lines[:3], '"cut","sho', *csv_lines[:1]]), tmp_path)
    assert (len(found.rows), found.first_broken) == (2, "line 1: it stands before the names of the fields")
    sql = (REAL / "real.sql").read_text(encoding="utf-8").splitlines()
    found = read("\n".join([*sql[:-1], sql[-1][:-60]]), tmp_path)
    assert (len(found.rows), found.n_broken) == (5, 1)
    assert found.first_broken == f"line {len(sql)}: a text in it has no end"


def test_no_row_is_lost_behind_many_broken_lines(tmp_path: Path) -> None:
    line = (REAL / "real.jsonl").read_text(encoding="utf-8").splitlines()[0]
    found = read("noise\n" * 20_000 + '{"torn":\n' * 11_000 + line, tmp_path)
    assert (len(found.rows), found.n_broken) == (1, 31_000)


def test_where_reading_ends_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = (REAL / "real.jsonl").read_text(encoding="utf-8").splitlines()[0]
    monkeypatch.setattr(llama_bench, "_MAX_WASTED_CHARS", 5000)
    found = read(f"{line}\n" + '{"torn":\n' * 100 + line, tmp_path)
    assert (len(found.rows), found.n_broken) == (1, 2)
    assert found.first_broken.startswith("line 2: it is no whole JSON object; nothing was read from line 4 on: ")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "flood",
    [
        "\n" * 300_000,
        "{" + "\n" * 300_000,
        "INSERT INTO llama_bench (a) VALUES ('" + "''" * 2_000_000,
        "INSERT INTO llama_bench (a) VALUES ('x')\n" + "CREATE TABLE llama_bench (\n" * 20_000,
        'INSERT INTO llama_bench ("a""\n' * 20_000,
        "n_prompt,n_gen,avg_ts\n" + 'x"y,"z\n' * 20_000,
    ],
    ids=["blank lines", "blank lines in an object", "quotes", "tables", "names", "open quotes"],
)
def test_a_flood_is_read_in_one_go(flood: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        read(flood, tmp_path)


@pytest.mark.parametrize("i_cut", range(3))
def test_a_torn_line_of_csv_loses_itself_alone(tmp_path: Path, i_cut: int) -> None:
    head, *lines = (REAL / "real.csv").read_text(encoding="utf-8").splitlines()
    cut = [lines[0][:4], lines[0][:60], lines[0][:-3]][i_cut]
    found = read("\n".join([head, lines[1], cut, *lines[2:4]]), tmp_path)
    assert (len(found.rows), found.n_broken) == (3, 1)
    assert found.first_broken.startswith("line 3: ")


@pytest.mark.parametrize("text_format", ["sql", "csv"])
@pytest.mark.parametrize("name", ["select", "N_prompt", "a-b", 'a "b", (c); d', "", "it's"])
def test_fields_of_any_name_come_back(name: str, text_format: str, tmp_path: Path) -> None:
    (row, *_) = read(json.dumps([real_rows()[0] | {name: "x, (y)", "count": 3}]), tmp_path).rows
    (again,) = read(render_rows([row], text_format), tmp_path).rows
    assert again.fields[name] == "x, (y)"
    assert list(again.fields) == list(row.fields)
    if text_format == "sql" and name not in {"", "N_prompt"}:
        with sqlite3.connect(":memory:") as connection:
            connection.executescript(render_rows([row], "sql"))
        connection.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_filename": "\udc80"}, "it holds half a character"),
        ({"\udc80": 1}, "it holds half a character"),
        ({"a\nb": 1}, "the name of a field in it is no plain text"),
        ({"deep": json.loads("[" * 300 + "]" * 300)}, "it is nested too deep"),
    ],
)
def test_what_cannot_be_kept_is_a_broken_line(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    found = read("\n".join(json.dumps(row) for row in (real_rows()[0], real_rows()[1] | changes)), tmp_path)
    assert (len(found.rows), found.first_broken) == (1, f"line 2: {words}")
    store.keep_imported(tmp_path, found.rows)


def test_a_cpu_row_hides_no_column_of_the_others() -> None:
    row = read_rows(REAL / "real.json").rows[0]
    card = dataclasses.replace(row, fields={**row.fields, "backends": "CUDA", "n_gpu_layers": 20})
    head = render_rows([row, card], "md").splitlines()[0]
    assert "| ngl |" in head
    assert "| threads |" in head


def test_not_a_number_is_none_and_quotes_need_not_be_doubled(tmp_path: Path) -> None:
    text = (REAL / "real.jsonl").read_text(encoding="utf-8").splitlines()[0]
    text = text.replace(text[text.index('"stddev_ts": ') + 13 : text.index(', "samples_ns"')], "-nan")
    assert read(text, tmp_path).rows[0].fields["stddev_ts"] is None
    sql = (REAL / "real.sql").read_text(encoding="utf-8").replace("gguf_models/", "o'brien's, it/")
    assert read(sql, tmp_path).rows[0].fields["model_filename"].startswith("o'brien's, it/Smol")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("hello\n", "line 1: it is no JSON object"),
        ('{"a": 1}', "line 1: it has no n_prompt"),
        ('{"n_prompt": "many", "n_gen": 0, "avg_ts": 1}', "its n_prompt is not a whole number"),
        ('{"n_prompt": 1, "n_gen": 0, "avg_ts": -1}', "it counts what cannot be"),
        ('{"n_prompt": 1, "n_gen": 0, "avg_ts": 1, "samples_ns": 3}', "its samples_ns are no list of numbers"),
        ('{"n_prompt": 1' + "0" * 30 + "}", "it is no whole JSON object"),
        ('{"a":' * 100_000, "it is no whole JSON object"),
        ("\0\0", "is no text"),
        ("| model | size |   t/s |\n|--|--|--|\n", "table for people"),
    ],
)
def test_what_is_no_file_of_rows_is_said(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read(text, tmp_path)
    assert words in str(caught.value)
    assert caught.value.hint


def test_missing_and_huge_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_rows(tmp_path / "none")
    with pytest.raises(UsageError, match="Is a directory"):
        read_rows(tmp_path)
    with (tmp_path / "huge").open("wb") as stream:
        stream.truncate(65 << 20)
    with pytest.raises(UsageError, match="is larger than the 64 MiB"):
        read_rows(tmp_path / "huge")


# --- what is kept --------------------------------------------------------------------------------------------------


def test_a_torn_line_loses_itself_alone(tmp_path: Path) -> None:
    rows = read_rows(REAL / "real.jsonl").rows
    path = store.append_rows(tmp_path, rows[:2])
    with path.open("rb+") as stream:
        stream.truncate(path.stat().st_size - 9)
    assert store.read_stored_rows(tmp_path).own == rows[:1]
    store.append_rows(tmp_path, rows[2:3])
    assert store.read_stored_rows(tmp_path).own == (rows[0], rows[2])


def test_an_edited_line_is_an_error(tmp_path: Path) -> None:
    path = store.append_rows(tmp_path, read_rows(REAL / "real.jsonl").rows)
    path.write_bytes(b'{"a": 1}\n' + path.read_bytes())
    with pytest.raises(StoreError, match="no row: line 1"):
        store.read_stored_rows(tmp_path)


def test_imported_rows_are_told_apart_by_machine_and_never_mixed_with_own(tmp_path: Path) -> None:
    rows = read_rows(REAL / "real.jsonl").rows
    other = tuple(dataclasses.replace(row, fields={**row.fields, "gpu_info": "RTX"}) for row in rows)
    store.append_rows(tmp_path, rows[:1])
    path, was_known = store.keep_imported(tmp_path, [*rows, *other])
    assert (path.parent, was_known) == (tmp_path / "imports", False)
    assert store.keep_imported(tmp_path, [*rows, *other]) == (path, True)
    stored = store.read_stored_rows(tmp_path)
    assert stored.own == rows[:1]
    assert stored.imported == {"AMD EPYC": rows, "AMD EPYC, RTX": other}


def test_tables_tell_machines_and_imported_rows_apart(tmp_path: Path, home: Path) -> None:
    rows = read_rows(REAL / "real.jsonl").rows
    store.append_rows(home, rows[:1])
    other = dataclasses.replace(rows[1], fields={**rows[1].fields, "gpu_info": "RTX\x1b"})
    (tmp_path / "theirs").write_text(render_rows([rows[1], other], "jsonl"), encoding="utf-8")
    pipeline.import_rows(tmp_path / "theirs")
    lines = pipeline.stored_rows("md").splitlines()
    titles = [line for line in lines if line.endswith(":") and not line.startswith("|")]
    assert titles == ["AMD EPYC, measured here:", "AMD EPYC, imported:", "AMD EPYC, RTX, imported:"]
    marks = [json.loads(line).get("offloadtune_imported") for line in pipeline.stored_rows("jsonl").splitlines()]
    assert marks == [None, True, True]


# --- options of the command ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["512"], (512,)),
        (["512,1024", "7"], (512, 1024, 7)),
        (["0-4096+1024"], (0, 1024, 2048, 3072, 4096)),
        (["256-4096*2"], (256, 512, 1024, 2048, 4096)),
        (["1-4"], (1, 2, 3, 4)),
        ([], ()),
    ],
)
def test_lists_and_ranges_are_those_of_llama_bench(texts: list[str], values: tuple[int, ...]) -> None:
    assert command.numbers("-p", texts) == values


@pytest.mark.parametrize("text", ["", "x", "-1", "1,", "4-1", "0-8*2", "1-4+0", "0-99999", "1" * 60, "9999999999"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="-p "):
        command.numbers("-p", [text])


def test_layers_may_be_all_of_them() -> None:
    assert command.numbers("-ngl", ["-1", "0-2"], least=-1) == (-1, 0, 1, 2)


def test_pairs_and_switches() -> None:
    assert command.pair("-pg", "512, 128") == (512, 128)
    assert command.switches("--repack", ["0,1"]) == (False, True)
    assert command.flash_attentions("-fa", ["1,off,auto"]) == ("on", "off", "auto")
    for call in (
        lambda: command.pair("-pg", "512"),
        lambda: command.pair("-pg", f"{'9' * 5000},1"),
        lambda: command.switches("--repack", ["2"]),
        lambda: command.flash_attentions("-fa", ["maybe"]),
        lambda: command.run(Path("none.gguf"), ["-o", "xml"], ()),
        lambda: command.run(Path("none.gguf"), ["--no-such-option"], ()),
        lambda: command.run(Path("none.gguf"), ["-p"], ()),
    ):
        with pytest.raises(UsageError):
            call()


# --- round trips ---------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
VALUES: dict[FieldKind, st.SearchStrategy[Any]] = {
    FieldKind.STRING: TEXTS,
    FieldKind.BOOL: st.booleans(),
    FieldKind.INT: st.integers(0, (1 << 64) - 1),
    FieldKind.FLOAT: st.floats(0, 1e12, allow_nan=False),
}
FIELDS_OF_A_ROW = st.fixed_dictionaries({name: VALUES[kind] for name, kind in FIELDS.items()})
ROWS = st.builds(
    lambda fields, samples, ours: BenchRow(
        fields=fields, samples_ns=tuple(ns for ns, _ in samples), samples_ts=tuple(ts for _, ts in samples), extra=ours
    ),
    FIELDS_OF_A_ROW,
    st.lists(st.tuples(st.integers(1, 1 << 62), st.floats(1e-9, 1e12)), max_size=4),
    st.dictionaries(st.text(max_size=5).map(lambda name: f"offloadtune_{name}"), TEXTS | st.integers(0, 9), max_size=2),
)


@given(rows=st.lists(ROWS, min_size=1, max_size=3))
def test_json_lines_keep_everything(rows: list[BenchRow], tmp_path_factory: pytest.TempPathFactory) -> None:
    assert list(read(render_rows(rows, "jsonl"), tmp_path_factory.getbasetemp()).rows) == rows


@given(rows=st.lists(ROWS, min_size=1, max_size=3))
def test_json_keeps_all_but_ours(rows: list[BenchRow], tmp_path_factory: pytest.TempPathFactory) -> None:
    found = read(render_rows(rows, "json"), tmp_path_factory.getbasetemp()).rows
    assert list(found) == [dataclasses.replace(row, extra={}) for row in rows]


@pytest.mark.parametrize("text_format", ["sql", "csv"])
@given(rows=st.lists(ROWS, min_size=1, max_size=3))
def test_sql_and_csv_keep_the_fields(
    text_format: str, rows: list[BenchRow], tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = read(render_rows(rows, text_format), tmp_path_factory.getbasetemp()).rows
    assert [row.fields for row in found] == [row.fields for row in rows]


@given(rows=st.lists(ROWS, min_size=1, max_size=3))
def test_sqlite_takes_our_sql(rows: list[BenchRow]) -> None:
    with sqlite3.connect(":memory:") as connection:
        connection.executescript(render_rows(rows, "sql"))
        found = connection.execute("SELECT model_filename FROM llama_bench").fetchall()
    connection.close()
    assert [name for (name,) in found] == [row.fields["model_filename"] for row in rows]


@given(rows=st.lists(ROWS, min_size=1, max_size=3))
def test_nothing_a_terminal_obeys_is_in_the_table(rows: list[BenchRow]) -> None:
    assert all(c == "\n" or c.isprintable() for c in render_rows(rows, "md"))


@given(text=st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: raw.decode(errors="replace")))
def test_any_text_is_rows_or_a_sentence(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any rows"
    for head in ("", "{", "a,b,c,d\n", "INSERT INTO llama_bench (a, b) VALUES ('"):
        path.write_bytes((head + text).encode(errors="replace"))
        with pytest.raises(UsageError):
            read_rows(path)
