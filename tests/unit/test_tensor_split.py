"""Which device each layer lies on by its tensor_split: as llama.cpp places it, in bytes and in speed."""

from __future__ import annotations

import bisect
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from offloadtune.errors import UsageError
from offloadtune.footprint import CUDA, Grid, grid_of, reckon
from offloadtune.footprint.grid import RPC
from offloadtune.footprint.weights import slices_of
from offloadtune.pipeline.rooms import check_split
from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.records import PLACEMENT_FIELDS, Settings
from offloadtune.speed import amounts_for, terms_of
from offloadtune.speeds import DeviceRates, HostRates, Phase, Rig

FACTS = facts_of_shape("llama-3-8b", "Q4_K_M")
N_LAYER = FACTS.n_layer
SHARE = st.just(0.0) | st.floats(1e-9, 1e15) | st.integers(1, 100).map(float)
SHARES = st.lists(SHARE, min_size=1, max_size=15).filter(any)


def placed_by_llama_cpp(shares: list[float], k: int) -> list[int]:
    """How many of k layers each device gets: load_tensors of llama-model.cpp, float by float."""
    sums, total = [], np.float32(0)
    for share in shares:
        total = np.float32(total + np.float32(share))
        sums.append(total)
    splits = [np.float32(one / total) for one in sums]
    places = [bisect.bisect_right(splits, np.float32(np.float32(j) / np.float32(k))) for j in range(k)]
    return [places.count(i) for i in range(len(shares))]


def layers_of(grid: Grid, shares: list[float], n_layer: int) -> NDArray[np.int64]:
    """Layers a device, shape (n_devices, n_settings)."""
    slices = slices_of(grid, n_layer, shares)
    assert (slices.begin[1:] == slices.end[:-1]).all()
    return slices.end - slices.begin


# --- the setting ---------------------------------------------------------------------------------------------------


def test_shares_are_floats_however_they_are_written() -> None:
    whole, plain = Settings(tensor_split=(3, 1)), Settings(tensor_split=(3.0, 1.0))
    assert whole.settings_id == plain.settings_id
    assert whole == plain == Settings(tensor_split=[3, 1])  # type: ignore[arg-type]  # as JSON has it
    assert all(type(share) is float for share in whole.tensor_split or ())
    assert hash(whole) == hash(plain)


@pytest.mark.parametrize(
    "shares", [(), (0,), (0, 0), (1, -1), (float("nan"), 1), (float("inf"),), (1e-30,), (1e30,), (1,) * 16]
)
def test_shares_that_mean_nothing_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="tensor_split"):
        Settings(tensor_split=shares)


def test_another_split_is_another_load() -> None:
    one, other = Settings(n_gpu_layers=9), Settings(n_gpu_layers=9, tensor_split=(1, 0))
    assert "tensor_split" in PLACEMENT_FIELDS
    assert one.placement != other.placement


@pytest.mark.parametrize(("n_shares", "n_devices", "words"), [(2, 1, "there is 1 device."), (3, 2, "are 2 devices.")])
def test_more_shares_than_devices_are_refused(n_shares: int, n_devices: int, words: str) -> None:
    check_split((1.0,) * n_devices, n_devices)
    check_split(None, 0)
    with pytest.raises(UsageError, match=words) as caught:
        check_split((1.0,) * n_shares, n_devices)
    assert caught.value.hint


# --- where layers lie ----------------------------------------------------------------------------------------------


@given(shares=SHARES, n_layer=st.integers(1, 130), k=st.integers(1, 131))
def test_layers_lie_where_llama_cpp_places_them(shares: list[float], n_layer: int, k: int) -> None:
    k = min(k, n_layer + 1)
    expected = placed_by_llama_cpp(shares, k)
    named = Grid.over(n_layer, n_gpu_layers=k, splits=np.array(shares))
    assert layers_of(named, [1.0] * len(shares), n_layer)[:, 0].tolist() == expected
    by_engine = Grid.over(n_layer, n_gpu_layers=k)
    assert layers_of(by_engine, shares, n_layer)[:, 0].tolist() == expected


@given(layers=st.lists(st.integers(0, 40), min_size=2, max_size=4).filter(any))
def test_a_split_of_whole_layers_is_taken_at_its_word(layers: list[int]) -> None:
    k = sum(layers)
    grid = Grid.over(k, n_gpu_layers=k, splits=np.array(layers))
    assert layers_of(grid, [1.0] * len(layers), k)[:, 0].tolist() == layers


def test_each_setting_has_its_own_split_or_that_of_the_engine() -> None:
    """Shares that are missing are 0, and those of devices that are not there do not count."""
    splits = [(3, 1), None, (0, 1), (1,), (0, 0, 1), (1, 1, 6)]
    grid = Grid.of([Settings(n_gpu_layers=24, tensor_split=one) for one in splits], N_LAYER)
    found = layers_of(grid, [1.0, 2.0], N_LAYER).T.tolist()
    assert found == [[18, 6], [8, 16], [0, 24], [24, 0], [8, 16], [12, 12]]


def test_the_split_goes_with_its_setting_through_slices_and_grids() -> None:
    settings = [Settings(n_gpu_layers=24, tensor_split=(i % 25, 25 - i % 25)) for i in range(50)]
    whole = Grid.of(settings, N_LAYER)
    part = layers_of(whole[30:40], [1.0, 1.0], N_LAYER)
    assert part[0].tolist() == layers_of(whole, [1.0, 1.0], N_LAYER)[0, 30:40].tolist()
    many = Grid.over(N_LAYER, n_gpu_layers=np.full(50_000, 24), splits=np.resize([[1, 0], [0, 1]], (50_000, 2)))
    weights = reckon(FACTS, many, (CUDA, CUDA)).weights_bytes
    assert ((weights[0] == 0) == (np.arange(50_000) % 2 == 1)).all()
    ladder = grid_of(FACTS, settings[10], n_gpu_layers=np.arange(25))
    assert layers_of(ladder, [1.0, 1.0], N_LAYER).sum(axis=0).tolist() == list(range(25))
    assert layers_of(ladder, [1.0, 1.0], N_LAYER)[0, 24] == 24 * 10 // 25 + 1


# --- bytes ---------------------------------------------------------------------------------------------------------


def compute(shares: tuple[float, ...], **settings: Any) -> list[int]:
    asked = {"n_gpu_layers": N_LAYER + 1, "n_ctx": 8192, "flash_attn_type": "enabled", "n_outputs_max": 1, **settings}
    one = Settings(**asked, tensor_split=shares)
    found: list[int] = reckon(FACTS, Grid.of((one,), N_LAYER), (RPC,) * len(shares)).compute_bytes[:, 0].tolist()
    return found


@given(layers=st.lists(st.integers(0, 12), min_size=2, max_size=4).filter(any), is_all=st.booleans())
def test_a_device_without_a_layer_holds_nothing(layers: list[int], *, is_all: bool) -> None:
    k = N_LAYER + 1 if is_all else sum(layers)
    one = Settings(n_gpu_layers=k, flash_attn_type="enabled", tensor_split=tuple(layers))
    found = reckon(FACTS, Grid.of((one,), N_LAYER), (RPC,) * len(layers))
    assert ((found.device_bytes[:, 0] == 0) == (np.array(layers) == 0)).all()


def test_what_keeps_only_the_output_copies_its_rows_and_no_hidden_states() -> None:
    for n_outputs in (1, 64):
        row = 4 * (FACTS.n_vocab + FACTS.n_embd)
        copies = 4 * 4 * FACTS.n_embd
        assert compute((N_LAYER, 1), n_outputs_max=n_outputs)[1] == n_outputs * (row + copies)


def test_logits_lie_beside_the_masks_that_pipelining_keeps() -> None:
    mask = 2 * 512 * 8192
    alone = compute((1.0,), n_outputs_max=0)[0]
    together = compute((1.0, 2.0), n_outputs_max=0)[1]
    assert together - alone > 4 * mask


def test_the_mask_makes_room_for_a_single_block_where_nothing_keeps_it() -> None:
    mask = 2 * 512 * 8192
    some = {"n_gpu_layers": 20}
    one, two = compute((1, 19), **some)[0], compute((2, 18), **some)[0]
    assert two - one > 0.5 * mask
    pipelined = compute((2, 31))[0] - compute((1, 32))[0]
    assert pipelined < 0.5 * mask


# --- speed ---------------------------------------------------------------------------------------------------------

TWO = Rig(devices=(DeviceRates(name="CUDA0"), DeviceRates(name="CUDA1")), host=HostRates(), shares=(2.0, 1.0))


@pytest.mark.parametrize("phase", list(Phase))
def test_work_is_where_the_layers_are(phase: Phase) -> None:
    names = [term.name for term in terms_of(phase, 2)]
    splits = [None, (2, 1), (1, 2), (33, 0), (0, 33)]
    settings = [Settings(n_gpu_layers=33, n_ctx=4096, flash_attn_type="enabled", tensor_split=one) for one in splits]
    found = amounts_for(phase, FACTS, settings, TWO, n_prompt=512, depth=0)
    amounts = {name: row.tolist() for name, row in zip(names, found, strict=True)}
    first, second = amounts["0.weights"], amounts["1.weights"]
    assert first[0] == first[1] > first[2] > first[4] == 0
    assert second[3] == 0
    assert first[3] == pytest.approx(second[4])
    assert np.ptp(np.add(first, second)) == pytest.approx(0, abs=1)
    if phase is Phase.DECODE:
        assert amounts["handovers"] == [1, 1, 1, 0, 0]


def test_blocks_on_either_device_are_those_of_the_footprint() -> None:
    names = [term.name for term in terms_of(Phase.DECODE, 2)]
    for a, k in itertools.product((0, 1, 7, 20), (20, 32, 33)):
        one = Settings(n_gpu_layers=k, flash_attn_type="enabled", tensor_split=(a, k - a) if a < k else (1, 0))
        steps = dict(zip(names, amounts_for(Phase.DECODE, FACTS, (one,), TWO, n_prompt=1, depth=0)[:, 0], strict=True))
        layers = layers_of(Grid.of((one,), N_LAYER), [2.0, 1.0], N_LAYER)[:, 0].tolist()
        assert [steps["0.blocks"], steps["1.blocks"]] == layers  # the output counts as one
