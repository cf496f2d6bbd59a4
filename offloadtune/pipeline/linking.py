"""Linking: what the link of a card does while data moves over it; at rest it sleeps at a lower generation."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from offloadtune.doctor.classes import MOST_OF_LINK, pcie_class
from offloadtune.hardware import DeviceSpeed, GpuHardware
from offloadtune.probe.links import Links, place

_BEAT_S = 0.03
_MOVED = ("to_pageable_bytes_per_s", "from_pageable_bytes_per_s", "to_pinned_bytes_per_s", "from_pinned_bytes_per_s")


def with_link(
    transfer: Callable[[], DeviceSpeed], card: GpuHardware | None, open_links: Callable[[], Links] = Links
) -> DeviceSpeed:
    """What `transfer` measures of `card`, with the most its link was seen to do meanwhile.

    None of a link without an address, of one that nobody tells of, where nothing moved, and where more was moved than
    the link could carry: then it was not seen at work.
    """
    at = place(card.pci_bus_id) if card is not None and card.kind == "discrete" else None
    if at is None:
        return transfer()
    with _Watch(open_links()) as watch:
        speed = transfer()
    seen = watch.most.get(at)
    fastest = max((getattr(speed, figure) or 0.0 for figure in _MOVED), default=0.0)
    if seen is None or not 0 < fastest <= MOST_OF_LINK * pcie_class(*seen)[1][1]:
        return speed
    return dataclasses.replace(speed, pcie_generation=seen[0], n_pcie_lanes=seen[1])


class _Watch:
    """Looks at all links until the block is left. `most` are the highest generation and the most lanes seen."""

    def __init__(self, links: Links) -> None:
        self.most: dict[tuple[int, str], tuple[int, int]] = {}
        self._links = links
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="links", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            for at, link in self._links.now().items():  # a card that still sleeps is not in it
                generation, n_lanes = self.most.get(at, (0, 0))
                self.most[at] = (max(generation, link.generation), max(n_lanes, link.n_lanes))
            if self._is_over.wait(_BEAT_S):
                return
