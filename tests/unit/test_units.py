"""Quantities as text: what is printed reads back, order is kept, and nonsense is one sentence."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from offloadtune import units

MANY_BYTES = st.integers(0, 1 << 46)
MANY_SECONDS = st.floats(1e-3, 1e6)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("24GiB", 24 << 30),
        ("8G", 8 << 30),
        ("8 g", 8 << 30),
        (" 1.5 MiB ", 3 << 19),
        ("500MB", 500_000_000),
        ("2tb", 2 * 10**12),
        ("512k", 512 << 10),
        ("7b", 7),
    ],
)
def test_bytes_are_read(text: str, n_bytes: int) -> None:
    assert units.parse_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1G", "1,5G", "8 GiB free", "1e9", ".5G", "3 parsecs", "9" * 400])
def test_what_is_no_amount_of_memory_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{text!r} is not an amount of memory")):
        units.parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("120s", 120), ("2m", 120), ("1.5h", 5400), ("250ms", 0.25), ("1m30s", 90), ("1h 2 min", 3720)],
)
def test_seconds_are_read(text: str, seconds: float) -> None:
    assert units.parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-5s", "5 days", "1 30", "90 s now", "1.2.3", "1:30", "9" * 400])
def test_what_is_no_length_of_time_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{text!r} is not a length of time")):
        units.parse_seconds(text)


@given(st.text())
@example("9" * 400 + "G")
@example("٣GiB")
@example("1.5\x00")
def test_no_text_raises_anything_but_value_error(text: str) -> None:
    for parse in (units.parse_bytes, units.parse_seconds):
        try:
            value = parse(text)
        except ValueError:
            continue
        assert value >= 0


@given(MANY_BYTES)
@example(1023 * 1024)
@example(999 * (1 << 20) + (1 << 19))
def test_bytes_printed_read_back_as_nearly_the_same(n_bytes: int) -> None:
    assert units.parse_bytes(units.format_bytes(n_bytes)) == pytest.approx(n_bytes, rel=0.0052, abs=0.5)


@given(MANY_SECONDS)
@example(0.9995)
@example(3599.6)
def test_seconds_printed_read_back_as_nearly_the_same(seconds: float) -> None:
    close = pytest.approx(seconds, rel=0.0052) if seconds < 3599.5 else pytest.approx(seconds, abs=60.5)
    assert units.parse_seconds(units.format_seconds(seconds)) == close


@given(MANY_BYTES, MANY_BYTES)
def test_the_larger_amount_never_prints_as_the_smaller(one: int, other: int) -> None:
    assume(one < other)
    less, more = (units.parse_bytes(units.format_bytes(n_bytes)) for n_bytes in (one, other))
    assert less <= more


@given(MANY_SECONDS, MANY_SECONDS)
def test_the_longer_time_never_prints_as_the_shorter(one: float, other: float) -> None:
    assume(one < other)
    less, more = (units.parse_seconds(units.format_seconds(seconds)) for seconds in (one, other))
    assert less <= more + 1e-9


@given(MANY_BYTES)
def test_bytes_print_three_digits_and_a_unit(n_bytes: int) -> None:
    assert re.fullmatch(r"(\d{1,3} B|(\d\.\d\d|\d\d\.\d|\d{3}) (Ki|Mi|Gi|Ti)B)", units.format_bytes(n_bytes))


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (812 << 10, "812 KiB"),
        (1_023_590, "0.98 MiB"),
        (3 << 29, "1.50 GiB"),
        (10_482_614, "10.0 MiB"),  # 9.997
        (104_836_628, "100 MiB"),  # 99.98
        (24 << 30, "24.0 GiB"),
        (3 << 40, "3.00 TiB"),
        (-(3 << 29), "-1.50 GiB"),
    ],
)
def test_bytes_are_printed(n_bytes: int, text: str) -> None:
    assert units.format_bytes(n_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 µs"),
        (850e-6, "850 µs"),
        (999.7e-6, "1.00 ms"),
        (0.0123, "12.3 ms"),
        (0.9996, "1.00 s"),
        (4.2, "4.20 s"),
        (99.96, "1 min 40 s"),
        (125, "2 min 05 s"),
        (3599.7, "1 h 00 min"),
        (3725, "1 h 02 min"),
        (-4.2, "-4.20 s"),
    ],
)
def test_seconds_are_printed(seconds: float, text: str) -> None:
    assert units.format_seconds(seconds) == text


def test_rates_ratios_and_counts_are_printed() -> None:
    assert units.format_tok_per_s(143.2) == "143 tok/s"
    assert units.format_tok_per_s(7.214) == "7.21 tok/s"
    assert units.format_bytes_per_s(51.2e9) == "51.2 GB/s"
    assert units.format_ratio(1.519) == "1.52x"
    assert units.format_count(1, "trial") == "1 trial"
    assert units.format_count(0, "trial") == "0 trials"
