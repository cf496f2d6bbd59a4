"""What is said of two moments of a machine, and what is not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune import interference
from offloadtune.conditions import Conditions, DisturbanceKind, GpuConditions, GpuProcess
from offloadtune.interference import disturbances, is_too_busy, on_cards, standing
from offloadtune.units import GIB, MIB

NOTHING_KNOWN = Conditions(
    at_s=100.0,
    n_cpus=2,
    busy_cpu_s=None,
    stolen_cpu_s=None,
    ours_cpu_s=None,
    swapped_bytes=None,
    memory_stall_s=None,
    on_battery=None,
    power_profile=None,
    governor=None,
)
BEFORE = dataclasses.replace(
    NOTHING_KNOWN,
    busy_cpu_s=5000.0,
    stolen_cpu_s=3.0,
    ours_cpu_s=40.0,
    swapped_bytes=1 * GIB,
    memory_stall_s=2.0,
    on_battery=False,
    power_profile="balanced",
    governor="schedutil",
)
CARD = GpuConditions(
    index=0,
    name="NVIDIA RTX 4090",
    clock_mhz=2520,
    most_clock_mhz=3105,
    temperature_c=61,
    throttle_reasons=(),
    other_processes=(),
    others_bytes=600 * MIB,
    clock_is_free=True,
    ours_bytes=8 * GIB,
    hot_ns=7_000_000_000,
    pci_bus_id="00000000:01:00.0",
)


def later(window_s: float, *, ours: float = 0.0, others: float = 0.0, n_cpus: int = 2, **grown: Any) -> Conditions:
    """The moment after a window in which ours and others took so many CPUs."""
    return dataclasses.replace(
        BEFORE,
        at_s=BEFORE.at_s + window_s,
        n_cpus=n_cpus,
        ours_cpu_s=40.0 + ours * window_s,
        busy_cpu_s=5000.0 + (ours + others) * window_s,
        **{name: getattr(BEFORE, name) + value for name, value in grown.items()},
    )


def kinds(after: Conditions, before: Conditions = BEFORE) -> list[DisturbanceKind]:
    return [one.kind for one in disturbances(before, after)]


def words(after: Conditions, before: Conditions = BEFORE) -> list[str]:
    return [one.words for one in disturbances(before, after)]


@pytest.mark.parametrize("window_s", [0.3, 0.5, 1.0, 2.0, 60.0])
@pytest.mark.parametrize(
    ("n_cpus", "ours", "others", "is_disturbed"),
    [
        (2, 1.33, 0.67, True),  # a burner against two threads: it gets its share
        (2, 1.2, 0.72, True),  # the same while the engine rests a little between its steps
        (2, 1.0, 1.0, True),  # against one thread
        (2, 0.0, 1.0, True),
        (2, 2.0, 0.05, False),
        (1, 0.5, 0.5, True),
        (8, 7.3, 0.7, False),
        (8, 6.4, 1.6, True),
        (16, 15.0, 0.8, False),  # a desktop with a browser
        (16, 8.0, 1.0, False),
        (16, 8.0, 5.0, True),
        (32, 16.0, 1.5, False),
        (64, 8.0, 3.0, False),
        (64, 8.0, 30.0, True),  # somebody else's job on a shared server
    ],
)
def test_other_programs(*, n_cpus: int, ours: float, others: float, is_disturbed: bool, window_s: float) -> None:
    found = kinds(later(window_s, ours=ours, others=others, n_cpus=n_cpus))
    assert found == ([DisturbanceKind.CPU] if is_disturbed else [])


@pytest.mark.parametrize(("others", "is_disturbed"), [(1.0, False), (2.0, True), (3.9, True)])
def test_a_machine_is_full_when_its_cores_are(*, others: float, is_disturbed: bool) -> None:
    after = later(2.0, ours=8.0, others=others, n_cpus=16)  # a thread of the engine on each of 8 cores
    assert bool(kinds(dataclasses.replace(after, n_cores=8))) is is_disturbed
    assert kinds(after) == []


@given(window_s=st.floats(0.3, 100), ours=st.floats(1.0, 1.4), error_s=st.floats(-0.03, 0.03))
def test_a_burner_on_two_full_cpus_is_noticed_whatever_the_ticks(window_s: float, ours: float, error_s: float) -> None:
    after = later(window_s, ours=ours, others=2.0 - ours)
    assert kinds(dataclasses.replace(after, busy_cpu_s=(after.busy_cpu_s or 0) + error_s)) == [DisturbanceKind.CPU]


@given(window_s=st.floats(0.001, 100), n_cpus=st.integers(1, 256), share=st.floats(0, 1), error_ticks=st.floats(-3, 3))
def test_a_calm_machine_never_cries(window_s: float, n_cpus: int, share: float, error_ticks: float) -> None:
    after = later(window_s, ours=share * n_cpus, others=0.02 * n_cpus, n_cpus=n_cpus)
    error_s = error_ticks * interference.TICK_S
    assert kinds(dataclasses.replace(after, busy_cpu_s=(after.busy_cpu_s or 0) + error_s)) == []
    assert is_too_busy(BEFORE, after) is None


@given(st.floats(-1, 10), st.lists(st.none() | st.floats(0, 1e6), min_size=10, max_size=10), st.integers(1, 300))
def test_any_counters_are_survived(window_s: float, counters: list[float | None], n_cpus: int) -> None:
    names = ("busy_cpu_s", "ours_cpu_s", "stolen_cpu_s", "swapped_bytes", "memory_stall_s")
    halves: list[dict[str, Any]] = [dict(zip(names, counters[half::2], strict=True)) for half in (0, 1)]
    before, after = (
        dataclasses.replace(NOTHING_KNOWN, at_s=at_s, n_cpus=n_cpus, **values)
        for at_s, values in zip((0.0, window_s), halves, strict=True)
    )
    assert all(one.words.endswith(".") and "nan" not in one.words for one in disturbances(before, after))
    is_too_busy(before, after)


def test_the_sentence_has_the_figure() -> None:
    assert words(later(1.0, ours=1.2, others=0.8)) == ["Other programs took 0.8 of 2 CPUs."]
    assert words(later(1.0, ours=0.4, others=0.6, n_cpus=1)) == ["Other programs took 0.6 of 1 CPU."]


def test_what_is_not_known_disturbs_nobody() -> None:
    assert disturbances(NOTHING_KNOWN, dataclasses.replace(NOTHING_KNOWN, at_s=101.0)) == ()
    assert standing(NOTHING_KNOWN) == ()
    assert is_too_busy(NOTHING_KNOWN, dataclasses.replace(NOTHING_KNOWN, at_s=101.0)) is None


def test_a_counter_that_fell_tells_nothing() -> None:
    after = dataclasses.replace(later(1.0, ours=1.0, others=1.0), ours_cpu_s=12.0)  # a server of ours has ended
    assert kinds(after) == []
    assert is_too_busy(BEFORE, after) is None


def test_the_hypervisor() -> None:
    assert words(later(1.0, ours=1.76, stolen_cpu_s=0.24)) == ["The hypervisor took 12% of the CPU time."]
    assert kinds(later(1.0, ours=1.96, stolen_cpu_s=0.04)) == []
    assert kinds(later(0.3, ours=0.2, stolen_cpu_s=0.02)) == []  # two ticks


def test_memory() -> None:
    assert words(later(2.0, memory_stall_s=0.5)) == ["Programs waited for memory 25% of the time."]
    assert kinds(later(2.0, memory_stall_s=0.05)) == []
    assert words(later(2.0, swapped_bytes=120 * MIB)) == ["The system swapped 120 MiB."]
    assert kinds(later(0.1, swapped_bytes=MIB - 1)) == []
    assert kinds(later(60.0, swapped_bytes=20 * MIB)) == []  # a trickle


def test_what_passes_is_said_to_pass() -> None:
    found = disturbances(BEFORE, later(1.0, ours=1.0, others=1.0, swapped_bytes=GIB, memory_stall_s=1, stolen_cpu_s=1))
    assert {one.kind for one in found} == {"cpu", "swap", "memory", "stolen"}
    assert all(one.is_passing for one in found)


# --- what holds the clock down ---------------------------------------------------------------------------------------


def test_what_stands_is_said_by_standing_and_what_begins_by_disturbances() -> None:
    slow: dict[str, Any] = {
        "on_battery": True,
        "power_profile": "low-power",
        "governor": "powersave",
        "governed_by": "acpi-cpufreq",
    }
    stands = standing(dataclasses.replace(BEFORE, **slow))
    assert [one.kind for one in stands] == ["battery", "power_profile", "power_profile"]
    assert not any(one.is_passing for one in stands)
    unplugged = dataclasses.replace(later(1.0), **slow)
    assert disturbances(BEFORE, unplugged) == stands
    assert disturbances(dataclasses.replace(BEFORE, **slow), unplugged) == ()
    assert disturbances(dataclasses.replace(BEFORE, **slow), later(1.0)) == ()


@pytest.mark.parametrize(
    ("driver", "is_said"),
    [("intel_pstate", False), ("amd-pstate-epp", False), ("intel_cpufreq", True), ("acpi-cpufreq", True), (None, True)],
)
def test_powersave_is_usual_where_the_cpu_governs_itself(*, driver: str | None, is_said: bool) -> None:
    now = dataclasses.replace(BEFORE, governor="powersave", governed_by=driver)
    assert bool(standing(now)) is is_said


@pytest.mark.parametrize(
    ("total", "free", "is_said"), [(8, 0, True), (8, 1, False), (0, 0, False), (None, None, False)]
)
def test_swap_that_is_full(*, total: int | None, free: int | None, is_said: bool) -> None:
    assert bool(standing(dataclasses.replace(BEFORE, swap_total_bytes=total, swap_free_bytes=free))) is is_said


# --- cards -----------------------------------------------------------------------------------------------------------


def on_card(now: Conditions = BEFORE, **changes: Any) -> Conditions:
    return dataclasses.replace(now, gpus=(dataclasses.replace(CARD, **changes),))


@pytest.mark.parametrize(
    ("changes", "expected", "is_passing"),
    [
        ({}, None, False),
        ({"throttle_reasons": ("sw_power_cap",)}, None, False),  # usual under load
        (
            {"throttle_reasons": ("sw_power_cap", "hw_thermal_slowdown"), "temperature_c": 91},
            "GPU 0 (NVIDIA RTX 4090) is throttled at 91 °C: hw thermal slowdown.",
            True,
        ),
        ({"clock_mhz": 900}, "GPU 0 (NVIDIA RTX 4090) runs at 900 of 3105 MHz.", True),
        (
            {"clock_mhz": 900, "throttle_reasons": ("sw_power_cap",)},
            "GPU 0 (NVIDIA RTX 4090) runs at 900 of 3105 MHz: sw power cap.",
            False,
        ),
        ({"clock_mhz": 210, "clock_is_free": False}, None, False),  # idle, or held there by the user
        ({"clock_mhz": 210, "clock_is_free": None, "throttle_reasons": None}, None, False),
        ({"clock_mhz": None}, None, False),
        ({"clock_mhz": 900, "most_clock_mhz": None}, None, False),
    ],
)
def test_a_slow_card(*, changes: dict[str, object], expected: str | None, is_passing: bool) -> None:
    found = disturbances(on_card(), on_card(later(1.0), **changes))
    assert [(one.words, one.is_passing) for one in found] == ([(expected, is_passing)] if expected else [])


def test_a_card_without_load_is_not_called_slow() -> None:
    assert standing(on_card(clock_mhz=900)) == ()


def test_who_comes_to_a_card() -> None:
    browser, game = GpuProcess(pid=7, name="firefox", n_bytes=412 * MIB), GpuProcess(pid=8, name="game", n_bytes=GIB)
    before = on_card(other_processes=(browser,))
    assert kinds(on_card(later(1.0), other_processes=(browser,)), before) == []
    assert kinds(on_card(later(1.0), other_processes=()), before) == []
    assert words(on_card(later(1.0), other_processes=(browser, game)), before) == [
        "Another program came to GPU 0 (NVIDIA RTX 4090): game 1.00 GiB."
    ]
    more = dataclasses.replace(browser, n_bytes=900 * MIB)
    assert words(on_card(later(1.0), other_processes=(more,)), before) == [
        "Another program took more of GPU 0 (NVIDIA RTX 4090): firefox 900 MiB."
    ]
    window = GpuProcess(pid=9, name="terminal", n_bytes=None)  # Windows tells no bytes, of two dozen desktop programs
    assert kinds(on_card(later(1.0), other_processes=(browser, window)), before) == []
    assert kinds(on_card(later(1.0), other_processes=(browser, game)), on_card(other_processes=None)) == []


def test_who_came_to_a_card_disturbs_as_long_as_it_stays() -> None:
    game = GpuProcess(pid=8, name="game", n_bytes=GIB)
    first, playing = on_card(), on_card(later(1.0), other_processes=(game,))
    still = on_card(later(2.0), other_processes=(game,))
    came = ["Another program came to GPU 0 (NVIDIA RTX 4090): game 1.00 GiB."]
    assert [one.words for one in disturbances(playing, still, since=first)] == came
    assert disturbances(playing, still) == ()
    assert disturbances(playing, on_card(later(2.0)), since=first) == ()
    assert [one.words for one in disturbances(BEFORE, playing, since=BEFORE)] == []  # no card was seen before
    assert [one.words for one in disturbances(first, playing, since=BEFORE)] == came


def test_a_browser_that_grew_since_the_work_began_does_not_disturb_it_from_then_on() -> None:
    browser = GpuProcess(pid=7, name="firefox", n_bytes=412 * MIB)
    larger = dataclasses.replace(browser, n_bytes=512 * MIB)
    first, grown = on_card(other_processes=(browser,)), on_card(later(1.0), other_processes=(larger,))
    assert disturbances(first, grown, since=first) != ()
    assert disturbances(grown, on_card(later(2.0), other_processes=(larger,)), since=first) == ()


def test_memory_that_unseen_programs_took() -> None:
    """Not where the driver does not tell which memory is ours: what we loaded would be called theirs."""
    taken: dict[str, Any] = {"others_bytes": 2 * GIB}
    assert words(on_card(later(1.0), **taken), on_card()) == [
        "Other programs took 1.41 GiB more of GPU 0 (NVIDIA RTX 4090)."
    ]
    assert kinds(on_card(later(1.0), ours_bytes=None, **taken), on_card()) == []
    assert kinds(on_card(later(1.0), others_bytes=700 * MIB), on_card()) == []


def test_heat_between_the_two_moments() -> None:
    hot = on_card(later(2.0), hot_ns=7_500_000_000)
    assert words(hot, on_card()) == ["GPU 0 (NVIDIA RTX 4090) was throttled by heat 25% of the time."]
    assert kinds(on_card(later(2.0), hot_ns=7_050_000_000), on_card()) == []
    assert kinds(hot, on_card(hot_ns=None)) == []
    now = on_card(later(2.0), hot_ns=7_500_000_000, throttle_reasons=("hw_thermal_slowdown",))
    assert kinds(now, on_card()) == [DisturbanceKind.GPU_THROTTLE]  # once


def test_cards_that_are_not_used_disturb_nobody() -> None:
    hot = on_card(throttle_reasons=("hw_thermal_slowdown",))
    assert standing(on_cards(hot, None)) == standing(on_cards(hot, ["00000000:01:00.0"])) != ()
    assert standing(on_cards(hot, [])) == standing(on_cards(hot, ["00000000:02:00.0"])) == ()
    assert on_cards(on_card(pci_bus_id="0000:3B:00.0"), ["0000:3b:00.0"]).gpus
    assert not on_cards(on_card(pci_bus_id=None), ["0000:3b:00.0"]).gpus


def test_a_card_that_others_hold() -> None:
    assert standing(on_card()) == ()
    ollama, shell = (GpuProcess(pid=1, name="ollama", n_bytes=5 * GIB), GpuProcess(pid=2, name="gnome", n_bytes=None))
    (held,) = standing(on_card(others_bytes=6 * GIB, other_processes=(shell, ollama)))
    assert held.words == "Other programs hold 6.00 GiB of GPU 0 (NVIDIA RTX 4090): ollama 5.00 GiB, gnome."
    (unseen,) = standing(on_card(others_bytes=6 * GIB, other_processes=None))
    assert unseen.words == "Other programs hold 6.00 GiB of GPU 0 (NVIDIA RTX 4090)."
    assert standing(on_card(others_bytes=None, other_processes=(ollama,)))
    assert unseen.kind is held.kind is DisturbanceKind.GPU_PROCESS


# --- too busy --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_cpus", "ours", "others", "is_said"),
    [
        (2, 1.33, 0.67, True),
        (2, 0.0, 1.0, True),
        (2, 0.0, 0.5, False),
        (2, 1.7, 0.3, False),
        (16, 15.0, 1.0, False),
        (16, 10.0, 6.0, True),
        (16, 0.0, 6.0, False),
        (16, 0.0, 8.0, True),
    ],
)
def test_too_busy(*, n_cpus: int, ours: float, others: float, is_said: bool) -> None:
    found = is_too_busy(BEFORE, later(2.0, ours=ours, others=others, n_cpus=n_cpus))
    assert found == (
        f"The machine is too busy to measure: other programs took {others:.1f} of {n_cpus} CPUs." if is_said else None
    )


@given(st.floats(0, 2), st.floats(0, 2), st.floats(0.05, 30))
def test_a_machine_too_busy_is_disturbed(ours: float, others: float, window_s: float) -> None:
    after = later(window_s, ours=ours, others=others)
    assert is_too_busy(BEFORE, after) is None or DisturbanceKind.CPU in kinds(after)


def test_too_busy_by_the_hypervisor_and_by_memory() -> None:
    assert is_too_busy(BEFORE, later(2.0, ours=1.0, stolen_cpu_s=1.0)) == (
        "The machine is too busy to measure: the hypervisor took 33% of the CPU time."
    )
    assert is_too_busy(BEFORE, later(2.0, memory_stall_s=1.0)) == (
        "The machine is too short of memory to measure: programs waited for it 50% of the time."
    )
