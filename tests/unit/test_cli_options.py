"""Options' texts: what is understood, and the sentence for what is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offloadtune.cli import options
from offloadtune.errors import UsageError
from offloadtune.records import WORKLOADS, Goal, Limits, Settings, Workload
from offloadtune.units import format_split


def refusal(call: Callable[..., Any], *arguments: object) -> UsageError:
    with pytest.raises(UsageError) as caught:
        call(*arguments)
    assert caught.value.exit_code == 2
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return caught.value


# --- workloads -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_by_name(name: str) -> None:
    assert options.workload(name) is WORKLOADS[name]


def test_a_workload_by_numbers() -> None:
    assert options.workload("2048/256/128/3") == Workload(
        name="2048/256/128/3", n_prefix_cached=2048, n_prompt_new=256, n_gen=128, n_parallel=3
    )
    assert options.workload("0/1/1/1").n_ctx_needed == 3  # a visit decodes twice


@pytest.mark.parametrize(
    "text", ["1/2/3", "1/2/3/4/5", "", "/", "a/b/c/d", "1.5/2/3/1", "poem", "Chat", "x" * 5000, "0/16/4/1\0"]
)
def test_what_is_no_workload_is_refused(text: str) -> None:
    error = refusal(options.workload, text)
    assert str(error) == f"--workload {text!r} is not a workload."
    assert "chat, rag, code, long, four numbers like" in error.hint
    assert error.hint.startswith("use chat (or one of " if text == "Chat" else "use chat, rag")


@pytest.mark.parametrize("text", ["0/0/1/1", "0/1/0/1", "-1/1/1/1", "0/1/1/0"])
def test_numbers_that_make_no_turn_are_refused_with_the_reason(text: str) -> None:
    assert "needs at least 1 new prompt token" in str(refusal(options.workload, text))


def test_a_workload_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "essay.toml"
    path.write_text('name = "other"\nn_prefix_cached = 1\nn_prompt_new = 2\nn_gen = 3\n', encoding="utf-8")
    assert options.workload(str(path)) == Workload(name="essay", n_prefix_cached=1, n_prompt_new=2, n_gen=3)


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (b"n_prefix_cached = ", "Invalid value"),
        (b"n_prefix_cached = 1\nn_gen = 2\n", "n_prompt_new"),
        (b"n_prefix_cached = 1\nn_prompt_new = 2\nn_gen = 3\nn_words = 4\n", "n_words"),
        (b"n_prefix_cached = 1\nn_prompt_new = 0\nn_gen = 3\n", "at least 1 new prompt token"),
        (b'n_prefix_cached = 1\nn_prompt_new = "many"\nn_gen = 3\n', "many"),
        (b"n_prefix_cached = 1\nn_prompt_new = [2]\nn_gen = 3\n", "list"),
        (b"n_prefix_cached = 1\nn_prompt_new = 2\nn_gen = inf\n", "infinity"),
        (b"n_prefix_cached = 1\nn_prompt_new = 2\nn_gen = nan\n", "NaN"),
        (b"\xff\xfe", "utf-8"),
        (b"", "missing"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path, content: bytes, detail: str) -> None:
    path = tmp_path / "essay.toml"
    path.write_bytes(content)
    sentence = str(refusal(options.workload, str(path)))
    assert sentence.startswith(f"--workload {str(path)!r} is not a workload (")
    assert detail in sentence


@given(st.text())
@example("1/2/3/²")
def test_no_text_breaks_the_reading_of_workloads(text: str) -> None:
    try:
        found = options.workload(text)
    except UsageError:
        return
    assert found.n_prompt_new > 0


# --- settings ------------------------------------------------------------------------------------------------------


def test_settings_become_values_of_their_fields() -> None:
    fixed = options.fixed_settings(
        ["n_threads=4", "flash_attn_type=auto", "swa_full=False", "use_extra_bufts=true", "load_mode=mlock"]
    )
    assert fixed == {
        "n_threads": 4,
        "flash_attn_type": "auto",
        "swa_full": False,
        "use_extra_bufts": True,
        "load_mode": "mlock",
    }
    assert Settings(**fixed).n_threads == 4
    assert options.fixed_settings([]) == {}


def test_the_last_of_two_counts() -> None:
    assert options.fixed_settings(["n_threads=4", "n_threads=2"]) == {"n_threads": 2}


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        ("nonsense", "--set 'nonsense' names no setting.", "one of"),
        ("", "--set '' names no setting.", "one of"),
        ("=4", "--set '=4' names no setting.", "one of"),
        ("n_thread=4", "--set 'n_thread=4' names no setting.", "use n_threads (or one of"),
        ("n_threads", "--set 'n_threads' names no setting.", "use n_threads (or one of"),
        ("n_ctx=512", "--set 'n_ctx=512': n_ctx is not set there.", "use --n-ctx, where"),
        ("devices=CPU", "--set 'devices=CPU' names no setting.", "one of"),
        ("type_k=q8_0", "--set 'type_k=q8_0': type_k is not set there.", "changes the stored precision"),
        ("n_threads=four", "--set 'n_threads=four' needs a whole number.", "--set n_threads=4"),
        ("n_threads=", "--set 'n_threads=' needs a whole number.", "--set n_threads=4"),
        ("n_threads=-1", "--set 'n_threads=-1' needs a whole number.", "--set n_threads=4"),
        ("n_threads=1.5", "--set 'n_threads=1.5' needs a whole number.", "--set n_threads=4"),
        ("n_threads=²", "--set 'n_threads=²' needs a whole number.", "--set n_threads=4"),
        ("swa_full=maybe", "--set swa_full 'maybe' is not known.", "one of true, false"),
        ("flash_attn_type=on", "--set flash_attn_type 'on' is not known.", "auto, disabled, enabled"),
        ("flash_attn_type=enable", "--set flash_attn_type 'enable' is not known.", "use enabled (or"),
        ("load_mode=mmapp", "--set load_mode 'mmapp' is not known.", "use mmap (or"),
    ],
)
def test_what_is_no_setting_is_refused(text: str, sentence: str, hint: str) -> None:
    error = refusal(options.fixed_settings, ["n_ubatch=64", text])
    assert str(error) == sentence
    assert hint in error.hint


def test_only_what_a_user_may_fix_is_offered() -> None:
    offered = refusal(options.fixed_settings, ["zzz"]).hint
    for name in ("n_ctx", "devices", "type_k", "type_v", "n_seq_max"):
        assert f"{name}," not in offered
    for name in ("n_gpu_layers", "n_threads", "flash_attn_type", "use_extra_bufts"):
        assert name in offered


def test_every_offered_setting_can_be_fixed() -> None:
    names = refusal(options.fixed_settings, ["zzz"]).hint.removeprefix("use one of ").removesuffix(", as NAME=VALUE")
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}
    for name in names.split(", "):
        if name not in {"tensor_split", "op_offload_min_batch"}:  # left to the engine by leaving them out
            assert options.fixed_settings([f"{name}={defaults[name]}"]) == {name: defaults[name]}


def test_from_how_many_tokens_on_work_is_lent() -> None:
    assert options.fixed_settings(["op_offload_min_batch=64"]) == {"op_offload_min_batch": 64}
    assert "needs a whole number" in str(refusal(options.fixed_settings, ["op_offload_min_batch=-1"]))


@pytest.mark.parametrize(
    ("text", "shares"),
    [("3/1", (3, 1)), ("3,1", (3, 1)), (" 3 , 1 ", (3, 1)), ("0.5/1.", (0.5, 1)), ("7", (7,)), ("0/1/0", (0, 1, 0))],
)
def test_shares_of_devices(text: str, shares: tuple[float, ...]) -> None:
    assert options.fixed_settings([f"tensor_split={text}"]) == {"tensor_split": shares}
    assert options.split("--tensor-split", text) == shares


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *[(text, "is no split over devices; write it like 3/1 or 3,1") for text in ("", "3/", "3//1", "a", "-1/2")],
        *[(text, "is no split over devices; write it like 3/1 or 3,1") for text in ("nan/1", "inf", "1_0", "²", "3:1")],
        *[(text, "and not all 0") for text in ("0", "0/0", "1e300/1", "1e-30/0", "1e999")],
        ("1/" * 15 + "1", "1 to 15 shares"),
    ],
)
def test_what_is_no_split_is_refused(text: str, words: str) -> None:
    assert words in str(refusal(options.fixed_settings, [f"tensor_split={text}"]))


@given(st.lists(st.just(0.0) | st.floats(1e-9, 1e15), min_size=1, max_size=15).filter(any))
def test_shares_come_back_from_their_words(shares: list[float]) -> None:
    assert options.split("--tensor-split", format_split(shares)) == tuple(shares)
    assert options.split("--tensor-split", format_split(shares, ",")) == tuple(shares)


# --- choices and quantities ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("tturn", "use turn (or one of turn, ttft, decode, throughput, context)"),
        ("trougput", "use throughput (or one of turn, ttft, decode, throughput, context)"),
        ("zzz", "use one of turn, ttft, decode, throughput, context"),
    ],
)
def test_the_nearest_goal_is_named(text: str, hint: str) -> None:
    error = refusal(options.choice, "--goal", text, list(Goal))
    assert str(error) == f"--goal {text!r} is not known."
    assert error.hint == hint


def test_a_goal_that_is_known_is_taken() -> None:
    assert options.choice("--goal", "ttft", list(Goal)) == "ttft"


@pytest.mark.parametrize(
    ("text", "value"), [("90", 90.0), ("90s", 90.0), ("2m", 120.0), ("1.5h", 5400.0), ("1m30s", 90.0), ("250ms", 0.25)]
)
def test_lengths_of_time(text: str, value: float) -> None:
    assert options.seconds("--budget", text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"), [("24GiB", 24 << 30), ("8G", 8 << 30), ("500MB", 500_000_000), ("1048576", 1 << 20), ("0", 0)]
)
def test_amounts_of_memory(text: str, value: int) -> None:
    assert options.bytes_of("--vram-limit", text) == value


@pytest.mark.parametrize("text", ["banana", "", "-5s", "5 parsecs", "s", "1e3", "inf", "nan", "9" * 400])
@pytest.mark.parametrize(
    ("option", "parse", "form"), [("--budget", options.seconds, "90s"), ("--vram-limit", options.bytes_of, "24GiB")]
)
def test_what_is_no_quantity_is_refused(text: str, option: str, parse: Callable[[str, str], Any], form: str) -> None:
    error = refusal(parse, option, text)
    assert str(error).startswith(f"{option}: ")
    assert form in str(error)


# --- limits --------------------------------------------------------------------------------------------------------


def test_limits_are_read_in_any_unit() -> None:
    assert options.limits("2GiB", "500ms", 20.0) == Limits(host_bytes=2 << 30, ttft_p95_s=0.5, min_tok_per_s=20.0)
    assert options.limits(None, None, None) == Limits()


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ((None, "0s", None), "--max-ttft"),
        ((None, "soon", None), "--max-ttft"),
        ((None, None, 0.0), "--min-tok-per-s"),
        ((None, None, -1.0), "--min-tok-per-s"),
        ((None, None, float("nan")), "--min-tok-per-s"),
        ((None, None, float("inf")), "--min-tok-per-s"),
        (("much", None, None), "--ram-limit"),
    ],
)
def test_limits_that_nothing_keeps_are_refused(given: tuple[Any, Any, Any], option: str) -> None:
    assert str(refusal(options.limits, *given)).startswith(option)
