"""How a coarser cache changes answers, by the real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from offloadtune.engine import Runner, TrialFailedError
from offloadtune.records import Settings, Target, Trial

BASE = Settings(n_ctx=4096, flash_attn_type="enabled", n_threads=1, n_threads_batch=1, n_outputs_max=1)


def trial(type_kv: str, **changes: object) -> Trial:
    settings = BASE.replace(type_k=type_kv, type_v=type_kv, **changes)
    return Trial(settings=settings, target=Target.LLAMA_SERVER, why="a test")


def test_fewer_bits_move_answers_more(smollm2_path: Path) -> None:
    with Runner(smollm2_path) as runner:
        same, fine, coarse = (runner.divergence(trial(one), 90, 8, timeout_s=120) for one in ("f16", "q8_0", "q4_0"))
    assert same.kl_nats == pytest.approx(0.0, abs=1e-9)
    assert same.n_same_top == same.n_tokens == 8
    assert 0 < fine.kl_nats < 0.05
    assert fine.kl_nats < coarse.kl_nats


def test_a_cache_that_the_engine_refuses_is_a_failed_trial(smollm2_path: Path) -> None:
    with Runner(smollm2_path) as runner, pytest.raises(TrialFailedError, match=r"flash_attn|flash attention|context"):
        runner.divergence(trial("q8_0", flash_attn_type="disabled"), 90, 8, timeout_s=120)
