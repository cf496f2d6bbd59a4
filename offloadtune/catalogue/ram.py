"""Main memory as people write it: what it is, and the bytes a second that it can move at most.

    peak = transfers a second x width of the bus / 8

A channel of DDR is 64 bits wide, the width of a module (DDR5's two halves of 32 bits are counted together). A channel
of LPDDR is taken as 32 bits, so that the usual 128 bits of a laptop are four: makers call the same bus "dual", so one
or two channels of LPDDR are not guessed at. What was not said, and how it was filled in, is in `words`.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from dataclasses import dataclass

from offloadtune.errors import UnknownNameError
from offloadtune.units import format_count

_N_CHARACTERS_MAX = 100
_N_CHARACTERS_SHOWN = 40
_N_CHANNELS_MAX = 32
"""Two sockets of sixteen channels, the widest announced."""

_N_MODULES_MAX = 64
_N_BITS_MAX = 2048
_BANDWIDTHS = (0.5e9, 4e12)
"""What main memory can have: one slow channel, and more than the widest server sold."""

_MT_PER_S = {
    "ddr3": (800, 3200),
    "ddr4": (1600, 5600),
    "ddr5": (3200, 12800),
    "lpddr3": (800, 2133),
    "lpddr4": (1600, 4267),
    "lpddr4x": (1600, 4800),
    "lpddr5": (2133, 8533),
    "lpddr5x": (4266, 10700),
    "lpddr5t": (6400, 10700),
}
"""The slowest and the fastest that each kind was sold or overclocked to, with room to spare."""

_USUAL = (1066, 1333, 1600, 1866, 2133, 2400, 2666, 2933, 3200, 3600, 4000, 4266, 4800, 5200, 5600, 6000, 6400, 7200)
_USUAL_MT_PER_S = (800, *_USUAL, 7500, 8000, 8533, 8800, 9600, 12800)
_COMMON_MT_PER_S = {"ddr3": 1600, "ddr4": 3200, "ddr5": 5600, "lpddr4x": 4266, "lpddr5": 6400, "lpddr5x": 8533}
_WORDS = {"single": 1, "dual": 2, "triple": 3, "quad": 4, "hexa": 6, "octa": 8}
_BYTE_UNITS = {"mb": 1e6, "gb": 1e9, "tb": 1e12, "mib": 1024.0**2, "gib": 1024.0**3, "tib": 1024.0**4}
_TIMES = re.compile("[*\N{MULTIPLICATION SIGN}]")
_LIKE = "ddr5-5600x2, lpddr5x-8533 128-bit or 76.8 GB/s"

_TOKEN = re.compile(
    r"""
      (?P<nothing> [\s,;:_()@-]+ | \b(?:sd)?ram\b | \bmemory\b | \b(?:so\ ?|u|r|lr|cu|mr)?dimms?\b
                 | \b(?:lp)?camm2?\b | \becc\b | \bc(?:l\ ?)?[0-9]{2}(?:-[0-9]{2}){0,3}\b
                 | \b(?:xmp|expo|bus|wide|at|in|unified)\b )
    | (?P<bandwidth> (?P<amount>[0-9]+(?:\.[0-9]+)?) \s* (?P<unit>[mgt]i?b)/s(?:ec(?:ond)?)?\b )
    | (?P<modules> (?P<n_modules>[0-9]+) \s*x\s* (?: [0-9]+ \s* gi?b\b | (?=(?:lp)?ddr|pc[345]) )
                 | [0-9]+ \s* gi?b \s*x\s* (?P<n_modules_after>[0-9]+) )
    | (?P<capacity> [0-9]+ \s* (?:gi?b|ti?b)\b )
    | (?P<bits> (?:(?P<n_parts>[0-9]+) \s*x\s*)? (?P<n_bits>[0-9]+) [\s-]* bits?\b )
    | (?P<channels> x\s*(?P<n_times>[0-9]+)\b | (?P<n_channels>[0-9]+) [\s-]* ch(?:an(?:nels?)?)?\b
                  | (?P<word>single|dual|triple|quad|hexa|octa) (?:[\s-]* ch(?:an(?:nels?)?)?)?\b )
    | (?P<kind> lpddr(?:5[xt]|4x|[345]) (?![0-9]) | ddr[345] (?![0-9]) l? )
    | (?P<class> pc(?P<generation>[345]) l? [\s-]* (?P<class_rate>[0-9]+) [a-z]{0,2}\b )
    | (?P<rate> (?P<mt_per_s>[0-9]+) (?: \s* m(?:t/?s?|hz)\b | (?![0-9.a-wyz]) ) )
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RamText:
    """Main memory as it was written; None where the text says only a bandwidth.

    `kind` is "DDR5", "LPDDR5X" and so on, "" where unsaid; `bits` is the width of the whole bus; `words` says how the
    text was read. `bandwidth_bytes_per_s` is the theoretical peak, or what the text says.
    """

    kind: str
    mt_per_s: int | None
    n_channels: int | None
    bits: int | None
    bandwidth_bytes_per_s: float
    words: str


def find_ram(text: str) -> RamText:
    """The memory that `text` names: "ddr5-5600x2", "DDR4-3200 quad channel", "PC4-25600", "90 GiB/s".

    Raises UnknownNameError with the nearest text that can be read.
    """
    plain = _TIMES.sub("x", text).strip().lower()
    if not plain or len(plain) > _N_CHARACTERS_MAX:
        raise _refused(text, "is too long to name main memory" if plain else "names no main memory", "ddr5-5600x2")
    if not (plain.isascii() and plain.isprintable()):
        usual = unicodedata.normalize("NFKC", plain)  # digits of full width, say
        nearest = usual if usual != plain and _is_readable(usual) else "ddr5-5600x2"
        raise _refused(text, "has characters that no name of main memory has", nearest)
    said = _scan(text, plain)
    if "bandwidth" in said:
        return _of_bandwidth(text, said)
    return _of_parts(text, said)


def _is_readable(text: str) -> bool:
    try:
        find_ram(text)
    except UnknownNameError:
        return False
    return True


def _scan(text: str, plain: str) -> dict[str, str]:
    """What each part of `plain` says, by the names of the token's groups."""
    said: dict[str, str] = {}
    unread, at = "", 0
    while at < len(plain):
        match = _TOKEN.match(plain, at)
        if match is None:
            word = re.match(r"[a-z]+[0-9]*(?:[a-z](?![0-9]))?|[0-9.]+|.", plain[at:])
            unread, at = unread or (word[0] if word else plain[at]), at + (len(word[0]) if word else 1)
            continue
        at = match.end()
        found = {name: value for name, value in match.groupdict().items() if value is not None}
        if found.keys() & said.keys() - {"nothing"}:
            raise _refused(text, f"says {match[0].strip()!r} beside another of its kind", _nearest(said))
        said |= found
    if unread:
        raise _refused(text, f"says {unread!r}, which means nothing here", _nearest(said, unread))
    return said


def _of_bandwidth(text: str, said: dict[str, str]) -> RamText:
    """Memory of which the text says what it moves: nothing is reckoned, so nothing else may be said."""
    amount = f"{said['amount']} {said['unit'].upper().replace('I', 'i')}/s"
    bandwidth = float(said["amount"]) * _BYTE_UNITS[said["unit"]]
    low, high = _BANDWIDTHS
    if not low <= bandwidth <= high:
        raise _refused(text, f"says {amount}, which no main memory moves", "76.8 GB/s")
    if said.keys() & {"rate", "class", "channels", "modules", "bits"}:
        raise _refused(text, "says a bandwidth and what to reckon one from", amount)
    return RamText(
        kind=_kind(said).upper(),
        mt_per_s=None,
        n_channels=None,
        bits=None,
        bandwidth_bytes_per_s=bandwidth,
        words=f"{amount}, as said",
    )


def _of_parts(text: str, said: dict[str, str]) -> RamText:
    """Memory of a kind, a rate and a width."""
    kind, rate = _kind(said), _rate(said)
    if not kind:
        raise _refused(text, "says no kind of memory", _nearest(said))
    if rate is None:
        raise _refused(text, f"says no transfers a second of its {kind.upper()}", _nearest(said))
    if not _is_sold(kind, rate):
        raise _refused(text, f"says {rate} MT/s, which no {kind.upper()} was sold with", _nearest(said))
    bits, because = _width(text, kind, said)
    width = _channel_bits(kind)
    n_channels = bits // width if bits % width == 0 else None
    many = f"{format_count(n_channels, 'channel')} of {width} bits" if n_channels else f"{bits} bits"
    return RamText(
        kind=kind.upper(),
        mt_per_s=rate,
        n_channels=n_channels,
        bits=bits,
        bandwidth_bytes_per_s=rate * 1e6 * bits / 8,
        words=f"{kind.upper()}-{rate}, {many}{because}",
    )


def _kind(said: dict[str, str]) -> str:
    if "class" in said:
        return f"ddr{said['generation']}"
    return said.get("kind", "").removesuffix("l")


def _rate(said: dict[str, str]) -> int | None:
    """Million transfers a second. A class such as PC4-25600 counts megabytes, PC4-3200 on a label transfers."""
    if "class" not in said:
        return int(said["mt_per_s"]) if "rate" in said else None
    rate = int(said["class_rate"])
    if said["generation"] != "3" and rate <= _MT_PER_S[_kind(said)][1]:
        return rate
    return min(_USUAL_MT_PER_S, key=lambda usual: abs(usual - rate / 8)) if _is_rounded(rate) else rate // 8


def _is_rounded(class_rate: int) -> bool:
    """Whether a class stands for a usual rate: PC3-10600 is 1333 MT/s, which move 10664 MB."""
    return any(abs(8 * usual - class_rate) <= 0.01 * class_rate for usual in _USUAL_MT_PER_S)


def _channel_bits(kind: str) -> int:
    return 32 if kind.startswith("lp") else 64


def _width(text: str, kind: str, said: dict[str, str]) -> tuple[int, str]:
    """The width of the whole bus in bits, and a remark where it was not said outright."""
    width, n_channels = _channel_bits(kind), _n_channels(said)
    if "bits" in said:
        return _said_bits(text, said, n_channels, width), ""
    if n_channels is not None:
        if not 1 <= n_channels <= _N_CHANNELS_MAX:
            raise _refused(text, f"says {format_count(n_channels, 'channel')}, which no machine has", _nearest(said))
        if width == 32 and n_channels <= 2:
            nearest = f"{kind}-{_rate(said)} 128-bit"
            raise _refused(text, f"may mean a bus of {32 * n_channels} bits or of {64 * n_channels}", nearest)
        return n_channels * width, ""
    if "modules" in said:
        return _of_modules(text, said, width)
    return 128, " (unsaid: as most desktops and laptops have)"


def _n_channels(said: dict[str, str]) -> int | None:
    if "channels" not in said:
        return None
    return _WORDS[said["word"]] if "word" in said else int(said.get("n_times") or said["n_channels"])


def _said_bits(text: str, said: dict[str, str], n_channels: int | None, width: int) -> int:
    """Bits that the text says: of the whole bus, or of each channel where the channels are said too."""
    bits = int(said["n_bits"]) * int(said.get("n_parts", 1))
    if n_channels is not None and bits <= 64 and n_channels * width != bits:
        bits *= n_channels
    elif n_channels is not None and n_channels * width != bits:
        raise _refused(text, f"says {bits} bits and {format_count(n_channels, 'channel')}", _nearest(said))
    if not 16 <= bits <= _N_BITS_MAX or bits % 16:
        raise _refused(text, f"says {format_count(bits, 'bit')}, which no bus has", _nearest(said))
    return bits


def _of_modules(text: str, said: dict[str, str], width: int) -> tuple[int, str]:
    """The width that so many modules have on a desktop board, where two and two share a channel."""
    n_modules = int(said.get("n_modules") or said["n_modules_after"])
    if not 1 <= n_modules <= _N_MODULES_MAX:
        raise _refused(text, f"says {format_count(n_modules, 'module')}, which no machine has", _nearest(said))
    if width == 32:  # soldered, or one module of 128 bits
        return 128, " (modules do not say: as most laptops have)"
    read = f"{format_count(n_modules, 'module')} read as {format_count(min(n_modules, 2), 'channel')}"
    more = "; write the channels where there are more" if n_modules > 2 else ""
    return 64 * min(n_modules, 2), f" ({read}, as on a desktop{more})"


def _nearest(said: dict[str, str], unread: str = "") -> str:
    """The correct text that comes nearest to what was said."""
    rate = _rate(said)
    near = difflib.get_close_matches(unread, _MT_PER_S, n=4) if unread else []
    near.sort(key=lambda kind: rate is not None and not _is_sold(kind, rate))
    kind = _kind(said) or (near[0] if near else "")
    if not near and rate is not None and not (kind and _is_sold(kind, rate)):
        kind = _kind_with(rate, kind)
    kind = kind or "ddr5"
    if rate is None or not _is_sold(kind, rate):
        rate = _nearest_rate(kind, str(rate or ""))
    if kind.startswith("lp"):
        return f"{kind}-{rate} 128-bit"
    n_channels = _n_channels(said)
    return f"{kind}-{rate}x{2 if n_channels is None else min(max(n_channels, 1), _N_CHANNELS_MAX)}"


def _kind_with(mt_per_s: int, kind: str) -> str:
    """The kind, soldered or not as `kind` is, that has this rate most usually; `kind` itself where none has it."""
    start = "lp" if kind.startswith("lp") else "d"
    sold = [one for one in reversed(_MT_PER_S) if one.startswith(start) and _is_sold(one, mt_per_s)]
    return min(sold, key=lambda one: abs(_COMMON_MT_PER_S.get(one, 0) - mt_per_s), default=kind)


def _nearest_rate(kind: str, written: str) -> int:
    """A rate of the kind: the one with a digit too many, the one that looks most alike, or a common one."""
    usual = [str(one) for one in _USUAL_MT_PER_S if _is_sold(kind, one)]
    near = [one for one in usual if written.startswith(one)] or difflib.get_close_matches(written, usual, n=1)
    return int(near[0]) if near else _COMMON_MT_PER_S.get(kind, int(usual[-1]))


def _is_sold(kind: str, mt_per_s: int) -> bool:
    low, high = _MT_PER_S[kind]
    return low <= mt_per_s <= high


def _refused(text: str, because: str, nearest: str) -> UnknownNameError:
    shown = text if len(text) <= _N_CHARACTERS_SHOWN else f"{text[:_N_CHARACTERS_SHOWN]}..."
    like = _LIKE if _LIKE.startswith(nearest) else f"{nearest}, or like {_LIKE}"
    return UnknownNameError(f"{shown!a} {because}.", hint=f"Write {like}.")
