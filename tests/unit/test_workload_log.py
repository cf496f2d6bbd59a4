"""A workload from a log of real requests: every kind of line, every bad one, and what is made of them."""

from __future__ import annotations

import codecs
import dataclasses
import io
import json
import math
import subprocess
import sys
import tomllib
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import Ended, InProcess, check_refused
from golden import check_golden
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from offloadtune.cli import options
from offloadtune.errors import UsageError
from offloadtune.export import render_workload
from offloadtune.lengths import choose_workload, context_for, reasons_for, tally
from offloadtune.logs import lines, prefixes, read_log
from offloadtune.pipeline import gather_workload
from offloadtune.records import Workload
from offloadtune.report import workload_json, workload_view
from offloadtune.sweeps import Event
from offloadtune.workloads import (
    LoggedRequest,
    RequestKind,
    SkippedLine,
    WorkloadReport,
    WorkloadRequest,
    WorkloadRule,
)

SYSTEM = {"role": "system", "content": "s" * 393}  # with its role and line ends 401 characters
TIMINGS = {"cache_n": 236, "prompt_n": 1, "prompt_ms": 30.9, "predicted_n": 35, "predicted_ms": 661.0}
NATIVE = {
    "content": "an answer",
    "tokens_predicted": 35,
    "tokens_evaluated": 237,
    "tokens_cached": 271,
    "prompt": "x" * 900,
    "timings": TIMINGS,
}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> InProcess:
    return InProcess(monkeypatch, capsys)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def chat(user: str = "hello", **more: Any) -> dict[str, Any]:
    return {"messages": [SYSTEM, {"role": "user", "content": user}], **more}


def usage(n_prompt: Any, n_output: Any = 5, **more: Any) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": n_prompt, "completion_tokens": n_output, **more}}


def text_of(*values: Any) -> str:
    return "".join(f"{value if isinstance(value, str) else json.dumps(value)}\n" for value in values)


def read(path: Path, *values: Any) -> list[LoggedRequest | SkippedLine]:
    path.write_text(text_of(*values), encoding="utf-8")
    return list(read_log(path, 4.0))


def logged(path: Path, *values: Any) -> list[LoggedRequest]:
    found = read(path, *values)
    assert all(isinstance(one, LoggedRequest) for one in found), found
    return [one for one in found if isinstance(one, LoggedRequest)]


def skipped(path: Path, value: Any) -> str:
    (one,) = read(path, value)
    assert isinstance(one, SkippedLine), one
    return one.reason


def gather(path: Path, *values: Any, **more: Any) -> WorkloadReport:
    if values:
        path.write_text(text_of(*values), encoding="utf-8")
    told: list[Event] = []
    return gather_workload(WorkloadRequest(path=path, **more), told.append)


def numbers(one: LoggedRequest) -> tuple[int, int | None, int | None]:
    return one.n_prompt, one.n_shared, one.n_output


def screen(report: WorkloadReport) -> str:
    stream = io.StringIO()
    Console(file=stream, width=100, highlight=False, markup=False, emoji=False, color_system=None).print(
        workload_view(report), soft_wrap=True
    )
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


# --- kinds ---------------------------------------------------------------------------------------------------------


def test_counts_of_usage_are_taken_and_the_prefix_is_scaled_to_them(log: Path) -> None:
    one, other = logged(log, chat("a" * 393, **usage(200)), chat("b" * 393, **usage(200, 7)))
    assert numbers(one) == (200, 0, 5)
    assert numbers(other) == (200, 101, 7)  # 401 and "user" with its line end of 800 characters
    assert not other.is_estimated
    assert other.n_chars == 401 + 399


def test_without_counts_characters_are_counted(log: Path) -> None:
    (one,) = logged(log, {"prompt": "x" * 10, "choices": [{"text": "y" * 9}]})
    assert numbers(one) == (3, 0, 3)
    assert (one.is_estimated, one.is_output_estimated) == (True, True)


@pytest.mark.parametrize(
    "line",
    [
        {"request": chat(), "response": usage(90)},
        {"request": {"body": chat()}, "response": {"status_code": 200, "body": usage(90)}},
        {"body": chat(), "response": json.dumps(usage(90))},
        {"custom_id": "1", "body": json.dumps(chat()), "response": {"body": usage(90.0)}},
        chat(**usage(90)),
        "data: " + json.dumps(chat(**usage(90))),
        json.dumps(chat(**usage(90))) + ",",
        chat(usage={"input_tokens": 90, "output_tokens": 5}),
        {"input": chat()["messages"], **usage(90)},
    ],
)
def test_requests_and_answers_may_be_nested(line: Any, log: Path) -> None:
    (one,) = logged(log, line)
    assert numbers(one) == (90, 0, 5)
    assert one.kind is RequestKind.REQUEST
    assert one.n_chars


def test_a_list_of_messages_is_a_request(log: Path) -> None:
    (one,) = logged(log, chat()["messages"])
    assert (one.kind, one.n_prompt) == (RequestKind.REQUEST, math.ceil((401 + 11) / 4))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"timings": TIMINGS}, (237, 236, 35)),
        (TIMINGS, (237, 236, 35)),
        (NATIVE, (237, 236, 35)),
        ({**NATIVE, "timings": {"prompt_n": 37, "predicted_n": 35}}, (237, 200, 35)),
        ({"tokens_evaluated": 237, "tokens_predicted": 35, "tokens_cached": 271}, (237, None, 35)),
        ({**usage(237, 35), "timings": TIMINGS}, (237, 236, 35)),
        ({"__verbose": {}, **chat(), **usage(237, 35), "timings": TIMINGS}, (237, 236, 35)),
    ],
)
def test_timings_of_llama_server(line: Any, expected: tuple[int, int | None, int], log: Path) -> None:
    (one,) = logged(log, line)
    assert numbers(one) == expected
    assert (one.kind, one.is_estimated) == (RequestKind.TIMINGS, False)


def test_timings_without_the_cached_tokens_are_partial(log: Path) -> None:
    (one,) = logged(log, {"timings": {"prompt_n": 50, "predicted_n": 3}})
    assert numbers(one) == (50, None, 3)
    assert one.is_partial
    found = tally([one])
    assert found.fresh is not None
    assert found.shared is None
    assert any("at least that long" in reason for reason in reasons_for(found, WorkloadRule.MEDIAN, 4.0))


@pytest.mark.parametrize(
    ("line", "n_shared"),
    [
        (usage(100, prompt_tokens_details={"cached_tokens": 64}), 64),
        ({"usage": {"input_tokens": 100, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 64}}}, 64),
        ({"usage": {"input_tokens": 36, "output_tokens": 5, "cache_read_input_tokens": 64}}, 64),
        (usage(100, prompt_tokens_details=None), None),
    ],
)
def test_cached_tokens_of_usage(line: Any, n_shared: int | None, log: Path) -> None:
    (one,) = logged(log, line)
    assert numbers(one) == (100, n_shared, 5)


def test_plain_prompts(log: Path) -> None:
    found = logged(
        log, "Tell me of caches.", '"Tell me of prefixes."', "[INST] hi [/INST]", '"Why?" he asked', "日本語"
    )
    assert {one.kind for one in found} == {RequestKind.PROMPT}
    assert [one.n_prompt for one in found] == [5, 5, 5, 4, 1]
    assert [one.n_shared for one in found] == [0, 2, 0, 0, 0]
    assert all(one.n_output is None for one in found)


def test_tokens_instead_of_text_are_counted(log: Path) -> None:
    (one,) = logged(log, {"prompt": [1, 2, 3, 4]})
    assert (one.n_prompt, one.is_estimated, one.n_shared) == (4, False, None)


def test_tools_system_prompts_calls_and_media_belong_to_the_prompt(log: Path) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "x" * 40}]}
    image = {"type": "image_url", "image_url": {"url": "data:" + "A" * 9000}}
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f" * 40}}]}
    plain, tools, system, called, shown = logged(
        log,
        {"messages": [message]},
        {"messages": [message], "tools": [{"name": "t" * 40}]},
        {"messages": [message], "system": "s" * 40},
        {"messages": [call, message]},
        {"messages": [{**message, "content": [*message["content"], image]}]},
    )
    assert min(tools.n_prompt, system.n_prompt, called.n_prompt) >= plain.n_prompt + 10
    assert shown.n_prompt == plain.n_prompt
    assert (plain.has_media, shown.has_media) == (False, True)


def test_kinds_may_be_mixed_with_bom_crlf_and_blank_lines(log: Path) -> None:
    log.write_bytes(
        codecs.BOM_UTF8 + text_of(chat(**usage(9)), "", TIMINGS, "  ", "a prompt").replace("\n", "\r\n").encode()
    )
    found = [one for one in read_log(log, 4.0) if isinstance(one, LoggedRequest)]
    assert [one.kind for one in found] == [RequestKind.REQUEST, RequestKind.TIMINGS, RequestKind.PROMPT]


# --- bad lines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"messages": [', "no JSON"),
        ('{"prompt": "\x1b[31m', "no JSON"),
        ("{", "piece of JSON"),
        ("]", "piece of JSON"),
        ('"prompt": "x",', "piece of JSON"),
        ("{}", "piece of JSON"),
        ("[1, 2]", "not of messages"),
        ('{"a":' * 100_000, "nested too deep"),
        ('{"prompt": ' + "[" * 100_000, "nested too deep"),
        ({"model": "x"}, "no prompt"),
        ({"prompt": ""}, "empty"),
        ('""', "empty"),
        ({"messages": []}, "empty"),
        ({"prompt": 5}, "no text and no list"),
        ({"prompt": ["a", "b"]}, "several prompts"),
        ({"prompt": ["a", {}]}, "mixes"),
        ({"usage": []}, "usage is no object"),
        ({"timings": "x"}, "timings is no object"),
        (usage(0), "empty"),
        (usage(10, prompt_tokens_details={"cached_tokens": 11}), "more tokens were cached"),
        ("data: [DONE]", "ends a stream"),
        ({"content": "a", "stop": False, "tokens_predicted": 3, "tokens_evaluated": 9}, "piece of a streamed answer"),
        ({"choices": [{"delta": {}, "finish_reason": None}], "timings": TIMINGS}, "piece of a streamed answer"),
        ("slot launch_slot_: id  0 | task 1 | processing task", "messages for people"),
        ("prompt eval time =      30.90 ms /    18 tokens", "messages for people"),
        ("a\0b", "no text"),
    ],
)
def test_a_broken_line_is_skipped_with_its_reason(line: Any, words: str, log: Path) -> None:
    assert words in skipped(log, line)


@pytest.mark.parametrize("count", [math.nan, math.inf, -1, 1.5, "9", True, 1 << 31, [], {}])
@pytest.mark.parametrize("key", ["prompt_tokens", "completion_tokens"])
def test_what_is_no_count_is_refused(count: Any, key: str, log: Path) -> None:
    assert skipped(log, chat(usage={"prompt_tokens": 5, "completion_tokens": 5, key: count})) == (
        f"its {key} is no count of tokens"
    )


def test_a_number_of_thousands_of_digits_is_no_json(log: Path) -> None:
    assert "no JSON" in skipped(log, '{"usage": {"prompt_tokens": ' + "9" * 5000 + "}}")


def test_null_counts_are_as_left_out(log: Path) -> None:
    (one,) = logged(log, {"prompt": "x" * 8, "usage": {"prompt_tokens": None}, "timings": None})
    assert numbers(one) == (2, 0, None)


def test_bytes_that_are_not_utf_8_and_lone_surrogates(log: Path) -> None:
    log.write_bytes(b"\xff\xfe-\n\xffprompt\n" + rb'{"prompt": "\ud800 abc"}' + b"\n")
    with pytest.raises(UsageError, match="UTF-16"):
        list(read_log(log, 4.0))
    log.write_bytes(b"\xffprompt\n" + rb'{"prompt": "\ud800 abc"}' + b"\n")
    first, second = read_log(log, 4.0)
    assert first == SkippedLine(number=1, reason="it is not UTF-8")
    assert isinstance(second, LoggedRequest)


def test_a_huge_line_is_skipped_in_bounded_memory(log: Path) -> None:
    with log.open("wb") as stream:
        for _ in range(6):
            stream.write(b"x" * lines.MAX_LINE_BYTES)
        stream.write(b"\na prompt\n")
    tracemalloc.start()
    first, second = read_log(log, 4.0)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert first == SkippedLine(number=1, reason="it is longer than 8 MiB")
    assert isinstance(second, LoggedRequest)
    assert peak_bytes < 3 * lines.MAX_LINE_BYTES


def test_a_line_of_just_the_largest_size_is_read(log: Path) -> None:
    log.write_bytes(b"x" * lines.MAX_LINE_BYTES + b"\n" + b"x" * lines.MAX_LINE_BYTES)
    assert [isinstance(one, LoggedRequest) for one in read_log(log, 4.0)] == [True, True]


# --- prefixes ------------------------------------------------------------------------------------------------------


@given(st.text("ab", max_size=30), st.text("ab", max_size=30), st.integers(0, 9000))
def test_the_common_beginning(one: str, other: str, n_before: int) -> None:
    one, other = "x" * n_before + one, "x" * n_before + other
    n = prefixes.common_length(one, other)
    assert one[:n] == other[:n]
    assert n == min(len(one), len(other)) or one[n] != other[n]


@given(st.lists(st.text("ab", min_size=1, max_size=8), min_size=1, max_size=90))
def test_the_longest_beginning_of_the_last_64_is_found(texts: list[str]) -> None:
    earlier = prefixes.EarlierTexts()
    for text in texts[:-1]:
        earlier.keep(text)
    expected = max((prefixes.common_length(texts[-1], text) for text in texts[:-1][-64:]), default=0)
    assert earlier.shared_with(texts[-1]) == expected


def test_kept_texts_are_bounded_in_all() -> None:
    earlier = prefixes.EarlierTexts()
    for i in range(20):
        earlier.keep(f"{i:02d}" + "x" * (1 << 20))
    assert sum(map(len, earlier._texts)) <= prefixes._N_CHARS_KEPT
    assert earlier.shared_with("19xx") == 4
    assert earlier.shared_with("19") == 2


def test_of_the_same_prompt_again_one_token_is_still_read(log: Path) -> None:
    _, again = logged(log, {"prompt": "x" * 400}, {"prompt": "x" * 400})
    assert numbers(again) == (100, 99, None)


# --- distributions -------------------------------------------------------------------------------------------------


def request(n_prompt: int, n_shared: int | None = None, n_output: int | None = None) -> LoggedRequest:
    return LoggedRequest(kind=RequestKind.REQUEST, n_prompt=n_prompt, n_shared=n_shared, n_output=n_output)


@given(st.lists(st.integers(1, (1 << 31) - 1) | st.integers(1, 20_000), min_size=1, max_size=200))
def test_quantiles_are_those_of_the_sorted_lengths(values: list[int]) -> None:
    found = tally(request(value) for value in values).prompt
    assert found is not None
    ordered = sorted(values)
    assert (found.low, found.high, found.n_requests) == (ordered[0], ordered[-1], len(ordered))
    for shown, percent in ((found.p50, 50), (found.p95, 95)):
        exact = ordered[math.ceil(len(ordered) * percent / 100) - 1]
        assert exact * (1 - 1 / 8192) <= shown <= exact
        if exact < 16384:
            assert shown == exact
    assert found.low <= found.p50 <= found.p95 <= found.high


@given(st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 9000), st.none() | st.integers(0, 9000)), min_size=1))
def test_any_log_makes_a_workload(values: list[tuple[int, int, int | None]]) -> None:
    found = tally(request(n_prompt, min(n_shared, n_prompt), n_output) for n_prompt, n_shared, n_output in values)
    n_long = sum(n_prompt + (n_output or 0) > 8192 for n_prompt, _, n_output in values)
    assert (found.n_long, found.is_long) == (n_long, n_long / len(values) > 0.1)
    for rule in WorkloadRule:
        workload = choose_workload(found, rule, 2)
        assert options.workload(workload.name) == workload
        assert context_for(found, workload) >= workload.n_ctx_needed
        assert found.turn is not None
        assert context_for(found, workload) >= found.turn.high * 2


def test_the_order_of_requests_changes_nothing() -> None:
    values = [request(n, n // 2, n // 3) for n in range(1, 300)]
    assert tally(values) == tally(reversed(values))


@pytest.mark.parametrize(("n_long", "is_long"), [(9, False), (10, False), (11, True)])
def test_more_than_a_tenth_is_many(n_long: int, is_long: bool) -> None:  # noqa: FBT001 - a parameter
    found = tally([request(8192, 0, 1)] * n_long + [request(8192, 0, 0)] * (100 - n_long))
    assert (found.n_long, found.is_long) == (n_long, is_long)


def test_an_empty_log_has_no_distributions() -> None:
    found = tally([])
    assert (found.n_requests, found.prompt, found.is_long) == (0, None, False)


def test_the_context_has_room_for_an_output_that_is_not_known() -> None:
    for values, n_ctx in (([request(10_000)], 10_496), ([request(10_000), request(10, 0, 700)], 10_752)):
        found = tally(values)
        assert context_for(found, choose_workload(found, WorkloadRule.MEDIAN)) == n_ctx
    found = tally([request(10_000, 0, 20), request(10, 0, 700)])
    assert context_for(found, choose_workload(found, WorkloadRule.MEDIAN)) == 10_240


def test_what_no_request_says_is_said_to_be_unknown() -> None:
    found = tally([request(100), request(300), request(200)])
    assert choose_workload(found, WorkloadRule.MEDIAN) == Workload(
        name="0/200/256/1", n_prefix_cached=0, n_prompt_new=200, n_gen=256
    )
    reasons = " ".join(reasons_for(found, WorkloadRule.MEDIAN, 4.0))
    assert "No request says what of its prompt was shared" in reasons
    assert "No request says how long its output was" in reasons


# --- the report ----------------------------------------------------------------------------------------------------


def life() -> list[Any]:
    """Forty chats with counts, ten without, nine timings, two prompts, two broken lines."""
    counted = [chat("c" * (40 * i + 1), **usage(110 + 10 * i, 20 + 5 * i)) for i in range(40)]
    bare = [chat("b" * (80 * i + 1), choices=[{"message": {"content": "y" * (40 * i + 4)}}]) for i in range(10)]
    timings = [{"timings": {"cache_n": 512, "prompt_n": 9000 + i, "predicted_n": 100 + i}} for i in range(9)]
    return [*counted, '{"torn', *bare, *timings, "A plain prompt.", "Another one.", usage(-3)]


def test_the_screen(log: Path) -> None:
    check_golden("report/workload.txt", screen(gather(log, *life())))


def test_the_screen_of_prompts_alone(log: Path) -> None:
    report = gather(log, *(f"Prompt number {i}: {'x' * i}" for i in range(40)), rule=WorkloadRule.P95, n_parallel=4)
    report = dataclasses.replace(report, label="a\x1b[2J.txt", written_to=Path("my loads/a\x1b[2J.toml"))
    check_golden("report/workload_prompts.txt", screen(report))


def test_the_promised_keys(log: Path) -> None:
    value = workload_json(gather(log, *life()))
    assert json.loads(json.dumps(value, allow_nan=False)) == value
    assert value["n_requests"] == 61
    assert value["kinds"] == {"request": 50, "timings": 9, "prompt": 2}
    assert value["n_skipped_lines"] == 2
    assert value["first_skipped"] == {"number": 41, "reason": "it is no JSON, though it begins like it"}
    assert (value["n_long"], value["is_long"], value["long_tokens"]) == (9, True, 8192)
    assert set(value["tokens"]) == {"prompt", "shared_prefix", "new", "output", "prompt_and_output"}
    assert set(value["workload"]) == {"n_prefix_cached", "n_prompt_new", "n_gen", "n_parallel"}
    assert (value["n_prompts_estimated"], value["n_outputs_estimated"], value["written_to"]) == (12, 10, None)


def test_counts_seen_beside_texts_show_how_many_characters_a_token_has(log: Path) -> None:
    report = gather(log, {"prompt": "x" * 200, **usage(100)}, "a prompt of no count")
    assert any("try --chars-per-token 2.0" in reason for reason in report.reasons)
    report = gather(log, chars_per_token=2.0)
    assert not any("try --chars" in reason for reason in report.reasons)


@given(
    st.builds(
        Workload,
        name=st.just("life"),
        n_prefix_cached=st.integers(0, 1 << 31),
        n_prompt_new=st.integers(1, 1 << 31),
        n_gen=st.integers(1, 1 << 31),
        n_parallel=st.integers(1, 256),
    )
)
def test_the_file_holds_the_workload(workload: Workload) -> None:
    text = render_workload(workload, ["One sentence.", "Another."])
    assert Workload(name="life", **tomllib.loads(text)) == workload
    assert text.startswith("# One sentence.\n# Another.\nn_prefix_cached = ")


# --- the command ---------------------------------------------------------------------------------------------------


def run(command: InProcess, *arguments: str | Path) -> Ended:
    return command("workload", *arguments)


def test_the_file_written_is_taken_by_sweep(command: InProcess, log: Path, tmp_path: Path) -> None:
    log.write_text(text_of(*life()), encoding="utf-8")
    file = tmp_path / "life.toml"
    ended = run(command, log, "--output", file, "--n-parallel", "2", "--json")
    assert (ended.code, ended.err) == (0, f"Written to {file}.\n")
    told = json.loads(ended.out)
    assert options.workload(str(file)) == Workload(name="life", **told["workload"])
    assert told["workload"]["n_parallel"] == 2
    assert told["written_to"] == str(file)


def test_stdin(command: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    given_bytes = text_of(chat(**usage(77))).encode()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(given_bytes)))
    ended = run(command, "-")
    assert ended.code == 0
    assert ended.out.startswith("stdin: 1 request (")
    assert "offloadtune sweep FILE --workload 0/77/5/1 --n-ctx 256" in ended.out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n \r\n\n", "is empty"),
        (codecs.BOM_UTF8, "is empty"),
        (b"GGUF\x03\0\0\0", "is a GGUF model file"),
        (b"\x1f\x8b\x08\0", "is compressed"),
        (b"{\n{}\n", "the first is line 1: it is a piece of JSON"),
        (b'\n{"prompt": "\x1b]0;x\x07', "1 line skipped, the first is line 2: it is no JSON"),
        (b"\xff\xff\xff", "it is not UTF-8"),
    ],
)
def test_a_log_without_a_request_is_refused(content: bytes, words: str, command: InProcess, tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[2J\u202e.jsonl"
    path.write_bytes(content)
    file = tmp_path / "out.toml"
    ended = run(command, path, "--output", file)
    check_refused(ended, 2, words)
    assert ended.err.replace("\n", "").isprintable()
    assert not file.exists()


@pytest.mark.parametrize("name", ["", "missing.jsonl", "x" * 5000])
def test_what_cannot_be_read_is_refused(name: str, command: InProcess, tmp_path: Path) -> None:
    check_refused(run(command, tmp_path / name), 2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--chars-per-token", "0"),
        ("--chars-per-token", "nan"),
        ("--chars-per-token", "-1"),
        ("--chars-per-token", "inf"),
        ("--rule", "mean"),
    ],
)
def test_options_that_cannot_be_meant(arguments: tuple[str, str], command: InProcess, log: Path) -> None:
    log.write_text("a prompt\n", encoding="utf-8")
    check_refused(run(command, log, *arguments), 2, arguments[0])


def test_the_log_itself_a_model_and_a_folder_are_not_written_over(
    command: InProcess, log: Path, tmp_path: Path
) -> None:
    log.write_text("a prompt\n", encoding="utf-8")
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF" + bytes(100))
    check_refused(run(command, log, "--output", log), 2, "is the log itself")
    check_refused(run(command, log, "--output", model), 2, "GGUF")
    check_refused(run(command, log, "--output", tmp_path), 16)
    assert log.read_text(encoding="utf-8") == "a prompt\n"


@pytest.mark.skipif(sys.platform != "linux", reason="names stdin as a file")
def test_a_log_on_stdin_is_not_written_over(log: Path) -> None:
    log.write_text("a prompt\n", encoding="utf-8")
    with log.open("rb") as stream:
        done = subprocess.run(
            [sys.executable, "-m", "offloadtune", "workload", "-", "--output", log],
            stdin=stream,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    check_refused(Ended(done.returncode, done.stdout, done.stderr), 2, "is the log itself")
    assert log.read_text(encoding="utf-8") == "a prompt\n"


def test_the_end_of_a_streamed_answer_is_counted(log: Path) -> None:
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}], "timings": TIMINGS}
    (one,) = logged(log, "data: " + json.dumps(end))
    assert numbers(one) == (237, 236, 35)


def test_nothing_of_a_log_is_printed(command: InProcess, log: Path) -> None:
    hostile = "\x1b[31mSECRET\u202e\x07"
    log.write_text(
        text_of(hostile, {"prompt": hostile, hostile: 1}, '{"' + hostile, chat(hostile), usage(hostile)), "utf-8"
    )
    for more in ((), ("--json",)):
        ended = run(command, log, *more)
        assert ended.code == 0
        assert "SECRET" not in ended.out + ended.err
        assert ended.out.replace("\n", "").isprintable()


@given(st.lists(st.binary(max_size=60) | st.text(max_size=60).map(str.encode), max_size=8))
def test_no_bytes_end_it_otherwise(parts: list[bytes]) -> None:
    stream = io.BytesIO(b"\n".join(parts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", SimpleNamespace(buffer=stream))
        try:
            found = tally(read_log(Path("-"), 4.0))
        except UsageError:
            return
    assert found.n_requests + found.n_skipped <= b"\n".join(parts).count(b"\n") + 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "messages",
                        "prompt",
                        "usage",
                        "timings",
                        "prompt_tokens",
                        "prompt_n",
                        "cache_n",
                        "role",
                        "content",
                        "choices",
                        "message",
                        "request",
                        "response",
                        "body",
                        "tools",
                        "system",
                        "input",
                        "text",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_no_json_ends_it_otherwise(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(json.dumps(value).encode())))
        found = tally(read_log(Path("-"), 4.0))
    assert found.n_requests + found.n_skipped <= 1
