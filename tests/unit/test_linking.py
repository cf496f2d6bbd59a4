"""Links as they are seen while data moves, on machines written down file by file."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_machines import CUDA0_SPEED, PROFILE, RADEON, RTX4090, SOUND, changed

from offloadtune import doctor
from offloadtune.hardware import DeviceSpeed
from offloadtune.pipeline import linking
from offloadtune.pipeline.linking import with_link
from offloadtune.probe import Door
from offloadtune.probe.drm import Link
from offloadtune.probe.links import Links

HOSTS = Path(__file__).parents[1] / "hosts"
PATIENCE_S = 30.0
UNSEEN = dataclasses.replace(
    CUDA0_SPEED,
    to_pageable_bytes_per_s=5.1e9,
    from_pageable_bytes_per_s=4.9e9,
    to_pinned_bytes_per_s=6.2e9,
    from_pinned_bytes_per_s=6.1e9,
    pcie_generation=None,
    n_pcie_lanes=None,
)
SLOT = "sys/bus/pci/devices/0000:03:00.0"


def nvidia(folder: Path, generation: int, n_lanes: int) -> Door:
    device = {
        "nvmlDeviceGetPciInfo": {"busId": "00000000:01:00.0"},
        "nvmlDeviceGetCurrPcieLinkGeneration": generation,
        "nvmlDeviceGetCurrPcieLinkWidth": n_lanes,
    }
    beside = folder / "nvml.new"
    beside.write_text(json.dumps({"devices": [device, {"error": "GpuIsLost"}]}))
    beside.replace(folder / "nvml.json")  # never seen half-written
    return Door(folder)


def amd(folder: Path, speed: str, **files: str) -> Door:
    told = {"vendor": "0x1002", "device": "0x744c", "class": "0x030000", "current_link_speed": f"{speed} GT/s PCIe"}
    (folder / SLOT).mkdir(parents=True, exist_ok=True)
    for name, text in {**told, "current_link_width": "8", **files}.items():
        beside = folder / SLOT / f"{name}.new"
        beside.write_text(f"{text}\n")
        beside.replace(folder / SLOT / name)  # never seen half-written
    return Door(folder)


class Opened(Links):
    """Counts how often it was looked at."""

    n_looks = 0

    def now(self) -> dict[tuple[int, str], Link]:
        found = super().now()
        self.n_looks += 1
        return found

    def wait(self) -> None:
        """Until the links were looked at twice more, once from beginning to end."""
        enough, give_up_s = self.n_looks + 2, time.monotonic() + PATIENCE_S
        while self.n_looks < enough:
            assert time.monotonic() < give_up_s
            time.sleep(0.001)


def transfer(links: Opened, wake: Callable[[], object]) -> Callable[[], DeviceSpeed]:
    """The link wakes while data moves, and sleeps again before it is over."""

    def move() -> DeviceSpeed:
        links.wait()
        wake()
        links.wait()
        return UNSEEN

    return move


def test_a_link_is_seen_at_work_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, "_BEAT_S", 0.001)
    links = Opened(nvidia(tmp_path, 1, 4))

    def wake() -> None:
        nvidia(tmp_path, 4, 4)
        links.wait()
        nvidia(tmp_path, 1, 4)

    speed = with_link(transfer(links, wake), RTX4090, lambda: links)
    assert (speed.pcie_generation, speed.n_pcie_lanes) == (4, 4)
    assert dataclasses.replace(speed, pcie_generation=None, n_pcie_lanes=None) == UNSEEN
    (finding,) = doctor.examine(dataclasses.replace(SOUND, profile=changed(PROFILE, {"device_speeds": (speed,)})))
    assert finding.code == "pcie_narrow"
    assert "PCIe 4 x4 while data moved; at most it could be PCIe 4 x16" in finding.evidence


def test_another_makers_link_is_that_of_its_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, "_BEAT_S", 0.001)
    links = Opened(amd(tmp_path, "2.5"))
    speed = with_link(transfer(links, lambda: amd(tmp_path, "16.0")), RADEON, lambda: links)
    assert (speed.pcie_generation, speed.n_pcie_lanes) == (4, 8)


def test_what_is_not_told_is_not_known(tmp_path: Path) -> None:
    def fail() -> Links:
        pytest.fail("links were looked at")

    for card in (None, dataclasses.replace(RTX4090, pci_bus_id=None), dataclasses.replace(RTX4090, kind="integrated")):
        assert with_link(lambda: UNSEEN, card, fail) is UNSEEN
    assert with_link(lambda: UNSEEN, RTX4090, lambda: Links(Door(tmp_path))) is UNSEEN
    still = dataclasses.replace(
        UNSEEN,
        to_pageable_bytes_per_s=None,
        from_pageable_bytes_per_s=None,
        to_pinned_bytes_per_s=None,
        from_pinned_bytes_per_s=None,
    )
    links = Opened(nvidia(tmp_path, 3, 16))
    assert with_link(transfer(links, lambda: None), RTX4090, lambda: links).pcie_generation == 3
    assert with_link(lambda: still, RTX4090, lambda: Links(Door(tmp_path))) is still


def test_a_link_over_which_more_was_moved_than_it_carries_was_not_seen_at_work(tmp_path: Path) -> None:
    links = Opened(nvidia(tmp_path, 1, 16))
    assert with_link(transfer(links, lambda: None), RTX4090, lambda: links) is UNSEEN


def test_a_card_that_sleeps_at_first_is_seen_when_it_wakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, "_BEAT_S", 0.001)
    links = Opened(Door(tmp_path))
    speed = with_link(transfer(links, lambda: nvidia(tmp_path, 4, 16)), RTX4090, lambda: links)
    assert (speed.pcie_generation, speed.n_pcie_lanes) == (4, 16)


def test_a_card_outside_of_the_machine_is_left_out(tmp_path: Path) -> None:
    assert Links(amd(tmp_path, "2.5")).now() == {(0, "03:00.0"): Link(generation=1, n_lanes=8)}
    assert Links(amd(tmp_path, "2.5", removable="removable")).now() == {}


def test_the_links_of_recorded_machines() -> None:
    found = {name: Links(Door(HOSTS / name)).now() for name in ("desktop_two_rtx3090", "windows_desktop")}
    assert [(link.generation, link.n_lanes) for link in found["desktop_two_rtx3090"].values()] == [(1, 16), (1, 4)]
    assert found["windows_desktop"] == {}


def test_an_error_of_the_transfer_ends_the_watch(tmp_path: Path) -> None:
    links = Opened(nvidia(tmp_path, 1, 16))

    def fail() -> DeviceSpeed:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        with_link(fail, RTX4090, lambda: links)
    n_looks = links.n_looks
    time.sleep(3 * linking._BEAT_S)
    assert links.n_looks == n_looks
