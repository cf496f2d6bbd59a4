"""Settings in words: what some have otherwise than others, and nothing that makes no difference."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune.records import Settings
from offloadtune.search.words import differences, what_is_new

BASE = Settings(n_gpu_layers=20, n_ctx=4096, flash_attn_type="enabled", n_threads=4, n_threads_batch=4)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ()),
        ({"n_gpu_layers": 8}, ("12 layers fewer",)),
        ({"n_gpu_layers": 21}, ("1 layer more",)),
        ({"n_gpu_layers": -1}, ("all layers on the device",)),
        ({"n_gpu_layers": 0, "devices": ()}, ("the CPU alone",)),
        ({"n_gpu_layers": 0, "devices": (), "op_offload": False}, ("the CPU alone",)),
        ({"devices": ("CUDA1",)}, ("20 layers on CUDA1",)),
        ({"n_ctx": 8192}, ("n_ctx 8192",)),
        ({"n_ubatch": 1024, "n_batch": 1024}, ("n_ubatch 1024",)),
        ({"n_batch": 1024}, ("n_batch=1024",)),
        ({"n_threads": 1, "n_threads_batch": 8}, ("1 thread for decoding", "8 threads for prompts")),
        ({"flash_attn_type": "disabled", "op_offload": False}, ("flash attention disabled", "op offload off")),
        ({"n_cpu_moe": 3}, ("the experts of 3 blocks in main memory",)),
        ({"n_cpu_ffn": 2}, ("the feed-forward weights of 2 blocks in main memory",)),
        ({"tensor_split": (3, 1)}, ("split 3,1",)),
        ({"type_k": "q8_0", "load_mode": "none"}, ("K of q8_0", "load_mode=none")),
    ],
)
def test_what_is_otherwise_is_said_in_a_few_words(changed: dict[str, object], words: tuple[str, ...]) -> None:
    assert differences(BASE.replace(**changed), BASE) == words


def test_experts_are_told_beside_those_away_already_and_devices_beside_none() -> None:
    away = BASE.replace(n_cpu_moe=3)
    assert differences(away.replace(n_cpu_moe=4), away) == ("the experts of 1 more block in main memory",)
    assert differences(away.replace(n_cpu_moe=1), away) == ("the experts of 2 fewer blocks in main memory",)
    assert differences(BASE, away) == ("all experts with their layers",)
    alone = BASE.replace(devices=(), n_gpu_layers=0)
    assert differences(BASE, alone) == ("20 layers on the device",)
    assert differences(BASE.replace(n_gpu_layers=1), alone) == ("1 layer on the device",)


@given(st.sampled_from([field.name for field in dataclasses.fields(Settings)]), st.integers(1, 9))
def test_no_setting_is_passed_over(name: str, n: int) -> None:
    """Those too that nobody has words for yet."""
    before = getattr(BASE, name)
    value = {"devices": (f"CUDA{n}",), "tensor_split": (1.0, float(n))}.get(
        name, f"x{n}" if isinstance(before, str) else n + 4096
    )
    if isinstance(before, bool):
        value = not before
    assert len(differences(BASE.replace(**{name: value}), BASE)) == 1


def test_what_a_search_tries_is_told_by_what_it_is() -> None:
    new = BASE.replace(n_gpu_layers=8, n_ubatch=64, n_batch=512)
    assert what_is_new(new, BASE, 29) == "8 of 29 layers on the device, n_ubatch 64"
    assert what_is_new(BASE.replace(devices=(), n_gpu_layers=0), BASE, 29) == "the CPU alone"
    assert what_is_new(BASE.replace(n_batch=2048), BASE, 29) == "the best so far with other small settings"
