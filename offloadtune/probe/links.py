"""What the link of each card's slot does at this moment, to be asked again and again while data moves over it."""

from __future__ import annotations

from offloadtune.probe import drm
from offloadtune.probe.drm import Link
from offloadtune.probe.host import THIS_MACHINE, Door
from offloadtune.probe.nvidia import answer

Place = tuple[int, str]
"""A PCI address to compare by: NVML writes the domain with eight digits, Linux with four."""


def place(address: str | None) -> Place | None:
    domain, _, rest = (address or "").lower().partition(":")
    number = drm.hexadecimal(domain)
    return None if number is None else (number, rest)


class Links:
    """The links of the machine that `door` opens on. Which cards there are is asked once.

    A card outside of the machine is left out: links such as Thunderbolt's tell the same whatever they move.
    """

    def __init__(self, door: Door = THIS_MACHINE) -> None:
        self._door = door
        cards = drm.pci_cards(door)
        self._outside = {place(card.address) for card in cards if drm.is_outside(door, card)}
        self._cards = tuple(card for card in cards if card.vendor_id != drm.NVIDIA)

    def now(self) -> dict[Place, Link]:
        """Where a link is told, what it does now."""
        linked = [(place(card.address), drm.card_links(self._door, card)[0]) for card in self._cards]
        found = {at: link for at, link in (*linked, *self._nvidia()) if at and link}
        return {at: link for at, link in found.items() if at not in self._outside}

    def _nvidia(self) -> list[tuple[Place | None, Link | None]]:
        devices = self._door.nvml_links().get("devices")
        answers = [one for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
        told = [[answer(one, what) for what in ("pci_bus_id", "pcie_generation", "n_pcie_lanes")] for one in answers]
        return [
            (place(address), Link(generation=generation, n_lanes=n_lanes) if generation and n_lanes else None)
            for address, generation, n_lanes in told
        ]
