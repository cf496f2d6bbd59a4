"""Main memory as people write it: what is read, what is refused, and what a refusal offers."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offloadtune.catalogue import RamText, find_ram
from offloadtune.errors import UnknownNameError

RATES = {
    "ddr3": (800, 1333, 1600, 1866, 2133),
    "ddr4": (2133, 2400, 2666, 3200, 3600, 4000),
    "ddr5": (4800, 5200, 5600, 6000, 6400, 8000),
}
LP_RATES = {"lpddr4x": (3733, 4266), "lpddr5": (5500, 6400), "lpddr5x": (7500, 8000, 8533, 9600)}


def measures(memory: RamText) -> tuple[str, int | None, int | None, int | None, float]:
    return memory.kind, memory.mt_per_s, memory.n_channels, memory.bits, memory.bandwidth_bytes_per_s


def offered(error: UnknownNameError) -> str:
    """The first text that the hint offers."""
    match = re.match(r"Write (.+?)(?:,| or )", error.hint)
    assert match
    return match[1]


@pytest.mark.parametrize(
    ("text", "read", "gb_per_s"),
    [
        ("ddr5-5600x2", ("DDR5", 5600, 2, 128), 89.6),
        ("DDR5-5600 x2", ("DDR5", 5600, 2, 128), 89.6),
        ("ddr4-3200 dual", ("DDR4", 3200, 2, 128), 51.2),
        ("DDR4-3200 quad channel", ("DDR4", 3200, 4, 256), 102.4),
        ("DDR4-3200", ("DDR4", 3200, 2, 128), 51.2),
        ("ddr3l-1600 single-channel", ("DDR3", 1600, 1, 64), 12.8),
        ("2x32GB DDR5-6000", ("DDR5", 6000, 2, 128), 96.0),
        ("2x16 GB DDR4-3200 CL16-18-18-38", ("DDR4", 3200, 2, 128), 51.2),
        ("ddr5-5600*2", ("DDR5", 5600, 2, 128), 89.6),
        ("89.6 GB/sec", ("", None, None, None), 89.6),
        ("4x16GB DDR4-3600 CL18", ("DDR4", 3600, 2, 128), 57.6),
        ("1x16 GB DDR4-2666", ("DDR4", 2666, 1, 64), 21.328),
        ("2x DDR4-2666", ("DDR4", 2666, 2, 128), 42.656),
        ("8x64GB DDR5-4800 8-channel ECC RDIMM", ("DDR5", 4800, 8, 512), 307.2),
        ("64GB DDR5-5600 dual-channel", ("DDR5", 5600, 2, 128), 89.6),
        ("ddr5 12ch 4800", ("DDR5", 4800, 12, 768), 460.8),
        ("DDR5 6400 MT/s, x2", ("DDR5", 6400, 2, 128), 102.4),
        ("DDR5 6000MHz (dual channel)", ("DDR5", 6000, 2, 128), 96.0),
        ("DDR5-5600 4x32-bit", ("DDR5", 5600, 2, 128), 89.6),
        ("DDR5-5600 x4 32-bit", ("DDR5", 5600, 2, 128), 89.6),
        ("PC3-10600", ("DDR3", 1333, 2, 128), 21.328),
        ("PC4-25600", ("DDR4", 3200, 2, 128), 51.2),
        ("PC4-3200AA", ("DDR4", 3200, 2, 128), 51.2),
        ("PC5-44800 x4", ("DDR5", 5600, 4, 256), 179.2),
        ("lpddr5x-8533 128-bit", ("LPDDR5X", 8533, 4, 128), 136.528),
        ("LPDDR5X-8000 256-bit", ("LPDDR5X", 8000, 8, 256), 256.0),
        ("lpddr5-6400x4", ("LPDDR5", 6400, 4, 128), 102.4),
        ("lpddr5-5500 4 x 32-bit", ("LPDDR5", 5500, 4, 128), 88.0),
        ("lpddr4x-4267", ("LPDDR4X", 4267, 4, 128), 68.272),
        ("LPDDR5-6400 80-bit", ("LPDDR5", 6400, None, 80), 64.0),
        ("76.8 GB/s", ("", None, None, None), 76.8),
        ("76.8GB/s", ("", None, None, None), 76.8),
        ("90 GiB/s", ("", None, None, None), 96.63676416),
        ("DDR5 dimm 90 GB/s", ("DDR5", None, None, None), 90.0),
    ],
)
def test_memory_is_read_as_people_write_it(
    text: str, read: tuple[str, int | None, int | None, int | None], gb_per_s: float
) -> None:
    found = find_ram(text)
    assert measures(found)[:-1] == read
    assert found.bandwidth_bytes_per_s == pytest.approx(gb_per_s * 1e9)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ddr4-3200", "DDR4-3200, 2 channels of 64 bits (unsaid: as most desktops and laptops have)"),
        ("ddr4-3200x1", "DDR4-3200, 1 channel of 64 bits"),
        (
            "4x16GB DDR4-3200",
            (
                "DDR4-3200, 2 channels of 64 bits "
                "(4 modules read as 2 channels, as on a desktop; write the channels where there are more)"
            ),
        ),
        ("lpddr5-6400x4", "LPDDR5-6400, 4 channels of 32 bits"),
        ("lpddr5-6400 80-bit", "LPDDR5-6400, 80 bits"),
        ("90gib/s", "90 GiB/s, as said"),
    ],
)
def test_the_words_say_how_the_text_was_read(text: str, words: str) -> None:
    assert find_ram(text).words == words


@pytest.mark.parametrize(
    ("text", "because", "nearest"),
    [
        ("", "names no main memory", "ddr5-5600x2"),
        ("   ", "names no main memory", "ddr5-5600x2"),
        ("fast", "says 'fast', which means nothing here", "ddr5-5600x2"),
        ("dr5-5600", "says 'dr5'", "ddr5-5600x2"),
        ("dd4-3200 quad", "says 'dd4'", "ddr4-3200x4"),
        ("ddr2-800", "says 'ddr2'", "ddr3-800x2"),
        ("lpddr5x", "says no transfers a second of its LPDDR5X", "lpddr5x-8533 128-bit"),
        ("lpdr5x-8533", "says 'lpdr5x'", "lpddr5x-8533 128-bit"),
        ("ddr5", "says no transfers a second of its DDR5", "ddr5-5600x2"),
        ("3200 dual", "says no kind of memory", "ddr4-3200x2"),
        ("ddr5-2666", "says 2666 MT/s", "ddr4-2666x2"),
        ("6000x4", "says no kind of memory", "ddr5-6000x4"),
        ("ddr5-56000x2", "says 56000 MT/s, which no DDR5 was sold with", "ddr5-5600x2"),
        ("ddr4-6000 x4", "says 6000 MT/s, which no DDR4 was sold with", "ddr5-6000x4"),
        ("ddr5-5600x0", "says 0 channels", "ddr5-5600x1"),
        ("ddr5-5600x99", "says 99 channels", "ddr5-5600x32"),
        ("0x32GB ddr5-5600", "says 0 modules", "ddr5-5600x2"),
        ("ddr5-5600 17-bit", "says 17 bits", "ddr5-5600x2"),
        ("ddr5-5600 x4 128-bit", "says 128 bits and 4 channels", "ddr5-5600x4"),
        ("ddr5-5600-6000", "says '6000' beside another of its kind", "ddr5-5600x2"),
        ("lpddr5-6400x2", "may mean a bus of 64 bits or of 128", "lpddr5-6400 128-bit"),
        ("lpddr5x-7500 dual channel", "may mean a bus of 64 bits or of 128", "lpddr5x-7500 128-bit"),
        ("0 GB/s", "says 0 GB/s, which no main memory moves", "76.8 GB/s"),
        ("ddr5-5600x2 80 GB/s", "says a bandwidth and what to reckon one from", "80 GB/s"),
        ("PC4-99999999", "says 12499999 MT/s", "ddr4-3200x2"),
        ("ddr5-\N{FULLWIDTH DIGIT FIVE}600x4", "has characters that no name of main memory has", "ddr5-5600x4"),
        ("ddr5-\N{ARABIC-INDIC DIGIT FIVE}600", "has characters that no name of main memory has", "ddr5-5600x2"),
        ("ddr5\x1b[31m-5600", "has characters that no name of main memory has", "ddr5-5600x2"),
        ("9" * 5000, "is too long to name main memory", "ddr5-5600x2"),
    ],
)
def test_a_refusal_says_why_and_offers_the_nearest(text: str, because: str, nearest: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_ram(text)
    sentence = str(caught.value)
    assert because in sentence
    assert sentence.isprintable()
    assert len(sentence) < 200
    assert offered(caught.value) == nearest
    assert caught.value.exit_code == 2


def test_the_sign_of_multiplication_is_an_x() -> None:
    assert find_ram("ddr5-5600 \N{MULTIPLICATION SIGN}2") == find_ram("ddr5-5600x2")


# --- properties ----------------------------------------------------------------------------------------------------

LIKE_MEMORY = st.lists(
    st.sampled_from(
        [*"0123456789x-. /,", "lp", "ddr", "DDR5", "pc4", "5600", "64", "GB", "gib/s", "bit", "ch", "dual", "\x00", "é"]
    ),
    max_size=14,
).map("".join)


@given(st.text() | LIKE_MEMORY)
@example("LPDDR3L")
@example("ddr3l 0 GB/s x2")
def test_nothing_but_a_refusal_is_raised_and_what_it_offers_is_accepted(text: str) -> None:
    try:
        found = find_ram(text)
    except UnknownNameError as error:
        assert find_ram(offered(error)).bandwidth_bytes_per_s > 0  # noqa: PT017
        assert str(error).isprintable()  # noqa: PT017
    else:
        assert 0.5e9 <= found.bandwidth_bytes_per_s <= 4e12


WORD = {1: "single", 2: "dual", 3: "triple", 4: "quad", 6: "hexa", 8: "octa"}


@given(st.sampled_from([(kind, rate) for kind, rates in RATES.items() for rate in rates]), st.sampled_from([*WORD]))
def test_the_spellings_of_one_memory_agree(memory: tuple[str, int], n_channels: int) -> None:
    kind, rate = memory
    spellings = [
        f"{kind}-{rate}x{n_channels}",
        f"{kind.upper()} {rate} MT/s x {n_channels}",
        f"{n_channels}ch {kind} {rate}MHz",
        f"{WORD[n_channels]}-channel {kind}-{rate} SDRAM",
        f"{kind}-{rate} {WORD[n_channels]}",
        f"{kind}-{rate}, {64 * n_channels}-bit",
        f"{kind}-{rate} ({n_channels} x 64 bits)",
        f"pc{kind[-1]}-{8 * rate} x{n_channels}",
    ]
    assert len({measures(find_ram(text)) for text in spellings}) == 1
    assert measures(find_ram(spellings[0]))[1:4] == (rate, n_channels, 64 * n_channels)


@given(st.sampled_from([(kind, rate) for kind, rates in LP_RATES.items() for rate in rates]), st.integers(3, 32))
def test_a_channel_of_lpddr_is_32_bits(memory: tuple[str, int], n_channels: int) -> None:
    kind, rate = memory
    spellings = [
        f"{kind}-{rate}x{n_channels}",
        f"{kind} {rate} {32 * n_channels}-bit",
        f"{n_channels}x32bit {kind}-{rate}",
    ]
    assert {measures(find_ram(text))[2:4] for text in spellings} == {(n_channels, 32 * n_channels)}


@given(st.integers(1, 32), st.integers(3200, 12800))
def test_bandwidth_grows_with_channels_and_with_the_rate(n_channels: int, mt_per_s: int) -> None:
    one = find_ram("ddr5-4000x1").bandwidth_bytes_per_s
    found = find_ram(f"ddr5-{mt_per_s}x{n_channels}").bandwidth_bytes_per_s
    assert found == pytest.approx(one * n_channels * mt_per_s / 4000, rel=1e-12)
