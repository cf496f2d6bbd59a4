"""Which memory channel a slot is on, by its names, and how many channels that makes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from offloadtune.probe.dmi import Slot

BITS_OF_A_CHANNEL = 64

_PLACE = re.compile(r"(?<![a-z])(p|cpu|proc|socket|node|controller)[ _-]?(\d{1,2})(?![0-9a-z])", re.IGNORECASE)
_PROCESSORS = ("p", "cpu", "proc", "socket")
_CHANNEL = re.compile(r"(?<![a-z])ch(?:annel)?[ _-]*([a-l](?![a-z])|\d{1,2}(?!\d))", re.IGNORECASE)
_LETTERED_SLOT = re.compile(r"(?:dimm|ddr\d)[ _-]*([a-l])\d{0,2}(?![0-9a-z])", re.IGNORECASE)
_PLAIN_DDR = re.compile(r"DDR\d?")


def channel_of(locator: str | None, bank: str | None) -> str | None:
    """The channel with what it belongs to ("A", "CPU0 A", "Controller1 A"), None where the names do not tell.

    Names are the board maker's: "P0 CHANNEL A", "ChannelA-DIMM0", "P0_Node0_Channel0_Dimm0", "CPU1_DIMM_A1". A number
    after DIMM or BANK is a slot's, and so is Dell's bare "A1", whose letter stands for a processor. Intel's
    "Controller0-DIMM1" has one channel a controller.
    """
    texts = [text for text in (locator, bank) if text]
    places = [place for text in texts for place in _places(text)]
    for pattern in (_CHANNEL, _LETTERED_SLOT):
        for text in texts:
            match = pattern.search(_PLACE.sub(" ", text))
            if match:
                return " ".join([*(_places(text) or places), match[1].upper()])
    return next((place for place in places if place.startswith("Controller")), None)


def channels_of(slots: Sequence[Slot]) -> tuple[str | None, ...]:
    """The channel of each of a board's slots, without the first words that all of them share."""
    channels = [channel_of(slot.locator, slot.bank) for slot in slots]
    words = [channel.split(" ") for channel in channels if channel]
    n_shared = 0
    while words and all(len(one) > n_shared + 1 and one[n_shared] == words[0][n_shared] for one in words):
        n_shared += 1
    return tuple(" ".join(channel.split(" ")[n_shared:]) if channel else None for channel in channels)


def bus_bits(slots: Sequence[Slot], channels: Sequence[str | None]) -> int | str:
    """Bits that the modules in `slots` move at once, or a full sentence that says why that is not known."""
    filled = [(slot, channel) for slot, channel in zip(slots, channels, strict=True) if slot.n_bytes]
    widths = [_n_bits(slot) for slot, _ in filled]
    if None in widths:
        return "The firmware does not say how many bits wide the modules are."
    if len(filled) == 1:
        return widths[0] or 0
    if any(channel is None for _, channel in filled):
        return "The names of the slots do not tell which memory channels the modules are on."
    return sum(_by_channel(filled).values())


def most_bus_bits(slots: Sequence[Slot], channels: Sequence[str | None], n_slots: int | None) -> int | str:
    """The same with a module in every slot: an empty one would be as wide as the others.

    Firmware that describes an empty slot describes them all, even if it counts more: boards share their firmware.
    Intel's names for each of its controllers the four narrow channels that soldered chips may have: a module takes all
    of a controller.
    """
    if n_slots is None:
        return "The number of slots is not known."
    filled = [(slot, channel) for slot, channel in zip(slots, channels, strict=True) if slot.n_bytes]
    if len(filled) == len(slots):
        if n_slots > len(slots):
            return f"Only the filled ones of {n_slots} slots are described, so that channels may be missing."
        return bus_bits(slots, channels)
    if None in channels:
        return "The names of the slots do not tell which memory channels they are on."
    widths = set(_by_channel(filled).values())
    if len(widths) != 1 or 0 in widths:
        return "The modules are not all of one known width, so that of the empty slots is not known."
    n_bits = widths.pop()
    controllers = {place for channel in channels for place in _places(channel or "") if place.startswith("Controller")}
    takes_all = n_bits == BITS_OF_A_CHANNEL and len(controllers) > 1
    return n_bits * len(controllers if takes_all else set(channels))


def _places(text: str) -> list[str]:
    """What a channel may belong to: processors, their nodes, their memory controllers."""
    found = ((match[1].lower(), match[2]) for match in _PLACE.finditer(text))
    return [f"{'CPU' if word in _PROCESSORS else word.capitalize()}{number}" for word, number in found]


def _by_channel(filled: Sequence[tuple[Slot, str | None]]) -> Mapping[str | None, int]:
    widths: dict[str | None, int] = {}
    for slot, channel in filled:
        widths[channel] = max(widths.get(channel, 0), _n_bits(slot) or 0)
    return widths


def _n_bits(slot: Slot) -> int | None:
    """Of a DIMM always 64: for DDR5 some firmware gives one of its two halves. Soldered chips are narrower."""
    return BITS_OF_A_CHANNEL if _PLAIN_DDR.fullmatch(slot.kind or "") else slot.n_bits
