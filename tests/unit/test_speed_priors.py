"""What is believed of machines before any run: sane for every kind of rig, and wide where little is known."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloadtune.footprint import Grid
from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.records import GgufFacts
from offloadtune.speed.constants import CONSTANTS, WELL_KNOWN
from offloadtune.speed.priors import beliefs_of, peak_of, prior_of
from offloadtune.speed.terms import Floats, Work, amounts_of, terms_of
from offloadtune.speeds import DeviceRates, HostRates, Phase, Rig

CARD = DeviceRates(
    name="RTX 3090",
    family="ampere",
    read_bytes_per_s=936e9,
    flop_per_s=142e12,
    int8_op_per_s=285e12,
    link_bytes_per_s=31.5e9,
)
HOST = HostRates(peak_bytes_per_s=76.8e9, n_cores=8)
FAMILIES = sorted({family for constant in CONSTANTS.values() for family in constant.by_family})
rates = st.none() | st.floats(min_value=1e9, max_value=1e16)


@functools.cache
def facts_of(shape: str) -> GgufFacts:
    return facts_of_shape(shape, "Q4_K_M")


def rig(host: HostRates = HOST, **changes: object) -> Rig:
    return Rig(devices=(dataclasses.replace(CARD, **changes),), host=host)  # type: ignore[arg-type]


def amounts(phase: Phase, on: Rig, **changes: int) -> Floats:
    """Of one token, or of a prompt of 512, with all layers on the card unless `changes` say otherwise."""
    facts = facts_of("llama-3.1-8b")
    given = {"n_gpu_layers": facts.n_layer + 1, "n_ctx": 8192, "n_batch": 2048, "flash": True, **changes}
    work = Work.over(1, n_prompt=changes.get("n_ubatch", 512), depth=1024)
    return amounts_of(phase, facts, Grid.over(facts.n_layer, **given), work, on)


def seconds(phase: Phase, on: Rig, **changes: int) -> float:
    return float(prior_of(phase, on).seconds(amounts(phase, on, **changes))[0])


def spread(phase: Phase, on: Rig, **changes: int) -> float:
    return float(prior_of(phase, on).spread_frac(amounts(phase, on, **changes))[0])


# --- every rig -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_devices", range(4))
@pytest.mark.parametrize("phase", Phase)
def test_each_term_has_one_belief(phase: Phase, n_devices: int) -> None:
    of_rig = Rig(devices=(CARD,) * n_devices, host=HOST)
    terms = [belief.term for belief in beliefs_of(phase, of_rig, is_float=False)]
    assert sorted(terms, key=str) == sorted(terms_of(phase, n_devices), key=str)


@given(
    family=st.sampled_from(["", "of next year", *FAMILIES]),
    read=rates,
    flop=rates,
    int8=rates,
    link=rates,
    host=st.builds(HostRates, peak_bytes_per_s=rates, read_bytes_per_s=rates, n_cores=st.none() | st.integers(1, 256)),
    phase=st.sampled_from(Phase),
    is_float=st.booleans(),
)
def test_coefficients_are_positive_and_finite(  # noqa: PLR0917 - one argument a column
    family: str,
    read: float | None,
    flop: float | None,
    int8: float | None,
    link: float | None,
    host: HostRates,
    phase: Phase,
    *,
    is_float: bool,
) -> None:
    on = rig(host, family=family, read_bytes_per_s=read, flop_per_s=flop, int8_op_per_s=int8, link_bytes_per_s=link)
    law = prior_of(phase, on, is_float=is_float)
    assert np.isfinite(law.mean).all()
    assert (law.mean > 0).all()
    assert (np.diag(law.covariance) > 0).all()


@pytest.mark.parametrize("name", ["read", "compute", "reread_float", "host_read", "host_read_measured", "pageable"])
def test_no_share_is_more_than_the_peak(name: str) -> None:
    """Products of plain weights are left out: they overlap with the reading that is counted beside them."""
    constant = CONSTANTS[name]
    assert all(0 < value <= 1 for value in (constant.value, *constant.by_family.values()))


# --- what is known narrows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", Phase)
def test_a_card_that_nobody_knows_is_wider_than_one_of_an_unknown_family_and_that_than_a_known_one(
    phase: Phase,
) -> None:
    unknown = Rig(devices=(DeviceRates(name="something"),), host=HOST)
    assert spread(phase, unknown) > spread(phase, rig(family="of next year")) > spread(phase, rig())


def test_a_well_known_family_is_narrower_than_one_with_few_cards() -> None:
    assert {"ampere", "ada", "blackwell"} <= WELL_KNOWN
    assert spread(Phase.DECODE, rig()) < spread(Phase.DECODE, rig(family="rdna3"))


def test_measured_memory_is_narrower_than_promised_and_that_than_unknown() -> None:
    hosts = (HostRates(read_bytes_per_s=50e9), HOST, HostRates())
    widths = [spread(Phase.DECODE, rig(host), n_gpu_layers=0) for host in hosts]
    assert widths == sorted(widths)
    assert len(set(widths)) == len(widths)


# --- what is faster is faster --------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(gain=st.floats(min_value=1.01, max_value=10))
def test_a_faster_part_makes_what_uses_it_faster(gain: float) -> None:
    def faster(field: str) -> Rig:
        return rig(**{field: getattr(CARD, field) * gain})

    fast_host = rig(HostRates(peak_bytes_per_s=76.8e9 * gain))
    assert seconds(Phase.DECODE, faster("read_bytes_per_s")) < seconds(Phase.DECODE, rig())
    assert seconds(Phase.PREFILL, faster("int8_op_per_s")) < seconds(Phase.PREFILL, rig())
    assert seconds(Phase.DECODE, fast_host, n_gpu_layers=9) < seconds(Phase.DECODE, rig(), n_gpu_layers=9)
    narrow = rig(link_bytes_per_s=CARD.link_bytes_per_s / gain)  # type: ignore[operator]
    assert seconds(Phase.PREFILL, rig(), n_gpu_layers=9) < seconds(Phase.PREFILL, narrow, n_gpu_layers=9)


def test_layers_in_main_memory_are_slower() -> None:
    for phase in Phase:
        all_on_card, half, none = (seconds(phase, rig(), n_gpu_layers=n) for n in (33, 16, 0))
        assert all_on_card < half < none


def test_weights_in_pinned_memory_reach_the_card_faster_over_a_fast_link_alone() -> None:
    wide = prior_of(Phase.PREFILL, rig(link_bytes_per_s=63e9))
    usual = prior_of(Phase.PREFILL, rig(link_bytes_per_s=31.5e9))
    at = {term.name: i for i, term in enumerate(wide.terms)}
    assert wide.mean[at["link_pinned"]] == pytest.approx(usual.mean[at["link_pinned"]] / 2)
    assert wide.mean[at["link_pageable"]] > usual.mean[at["link_pageable"]] * 0.9


def test_vulkan_copies_weights_more_slowly() -> None:
    assert seconds(Phase.PREFILL, rig(name="Vulkan0"), n_gpu_layers=0) > seconds(Phase.PREFILL, rig(), n_gpu_layers=0)
    assert seconds(Phase.PREFILL, rig(name="Vulkan0")) == seconds(Phase.PREFILL, rig())


# --- which peak counts ---------------------------------------------------------------------------------------------


def test_the_peak_of_products() -> None:
    assert peak_of(CARD, is_float=False) == 142.5e12  # half of the 8-bit rate, which is what counts since Turing
    old = dataclasses.replace(CARD, family="pascal", flop_per_s=0.2e12, int8_op_per_s=47e12)
    assert peak_of(old, is_float=False) == 23.5e12
    assert peak_of(old, is_float=True) == 11.75e12  # single precision
    volta = dataclasses.replace(CARD, flop_per_s=113e12, int8_op_per_s=57e12)
    assert peak_of(volta, is_float=False) == 113e12
    assert peak_of(DeviceRates(name="something"), is_float=False) is None


# --- amounts that published speeds asked for -----------------------------------------------------------------------


def test_blocks_with_experts_start_more_kernels_than_plain_ones() -> None:
    plain, experts = facts_of_shape("qwen3-32b", "Q4_K_M"), facts_of_shape("qwen3-30b-a3b", "Q4_K_M")
    names = [term.name for term in terms_of(Phase.DECODE, 1)]
    found = {}
    for facts in (plain, experts):
        grid = Grid.over(facts.n_layer, n_gpu_layers=99, n_ctx=4096, flash=True)
        whole = amounts_of(Phase.DECODE, facts, grid, Work.over(1), rig())
        found[facts.n_layer] = float(whole[names.index("0.blocks"), 0])
    assert found[plain.n_layer] == plain.n_layer + 1
    assert found[experts.n_layer] == pytest.approx(1.8 * experts.n_layer + 1)


def test_a_longer_ubatch_asks_for_more_experts_but_not_for_all_at_once() -> None:
    facts = facts_of_shape("gpt-oss-120b", "MXFP4")
    names = [term.name for term in terms_of(Phase.PREFILL, 1)]
    sizes = np.array([32, 512, 8192])
    grid = Grid.over(facts.n_layer, n_gpu_layers=99, n_cpu_moe=36, n_ctx=8192, n_batch=8192, n_ubatch=sizes, flash=True)
    whole = amounts_of(Phase.PREFILL, facts, grid, Work.over(3, n_prompt=sizes), rig())
    copied = whole[names.index("link_pageable")] / sum(facts.expert_bytes)
    assert 0.1 < copied[0] < 0.4 < copied[1] < 0.85 < copied[2] <= 1.05


def test_what_passes_between_products_grows_with_the_prompt_and_not_with_ubatches() -> None:
    names = [term.name for term in terms_of(Phase.PREFILL, 1)]
    facts = facts_of_shape("llama-3.1-8b", "Q4_K_M")
    grid = Grid.over(facts.n_layer, n_gpu_layers=99, n_ctx=4096, n_ubatch=np.array([128, 512, 512]), flash=True)
    whole = amounts_of(Phase.PREFILL, facts, grid, Work.over(3, n_prompt=np.array([512, 512, 1024])), rig())
    passed = whole[names.index("0.activations")]
    assert passed[0] == pytest.approx(passed[1])
    assert passed[2] == pytest.approx(2 * passed[1])
    assert passed[1] == pytest.approx(
        512 * 32 * 640e3, rel=0.1
    )  # 640 kB a token and block of 4096 wide and 14336 inside
