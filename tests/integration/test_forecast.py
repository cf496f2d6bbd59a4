"""What the engine foretells is what it then takes, on the real llama.cpp in real child processes."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import MIB, ROOT, CardMaker
from mamba_file import STATE_BYTES, write_mamba_file
from moe_file import N_EMBD, N_EXPERT, N_FF, write_moe_file
from pydantic import TypeAdapter

from offloadtune.engine import Runner, VisitPlan, WorkerProcess
from offloadtune.errors import EngineError
from offloadtune.plans import Forecast, RefusedTensors, Tier
from offloadtune.records import MemoryUse, Outcome, Settings, Target, Trial, TrialResult, Workload

pytestmark = pytest.mark.engine

PLAIN = Settings(n_ctx=512, load_mode="none", use_extra_bufts=False)
PLAN = VisitPlan(workload=Workload(name="tiny", n_prefix_cached=0, n_prompt_new=8, n_gen=2), n_steps=1, n_visits=1)
CONTEXTS = [
    {"flash_attn_type": flash_attn, "type_k": kept_as, "type_v": kept_as, "n_seq_max": n_seq, "kv_unified": is_shared}
    for flash_attn, kept_as in (("disabled", "f16"), ("enabled", "f16"), ("enabled", "q8_0"))
    for n_seq, is_shared in ((1, False), (4, False), (4, True))
]
_MEMORY = TypeAdapter(tuple[MemoryUse, ...])


def forecast(runner: Runner, contexts: Sequence[Settings], timeout_s: float = 60) -> tuple[Forecast, ...]:
    return runner.forecast(contexts, timeout_s=timeout_s)


def run(runner: Runner, settings: Settings) -> TrialResult:
    result = runner.run(Trial(settings=settings, target=Target.LLAMA_SERVER, why="test"), PLAN, timeout_s=60)
    assert result.outcome is Outcome.OK, result.reason
    return result


def taken(path: Path, contexts: Sequence[Settings], endpoints: Sequence[str] = ()) -> list[dict[str, Any]]:
    """What the worker says of contexts of one placement that it really opens, `memory` by device; nothing is read."""
    worker = WorkerProcess(endpoints)
    found = []
    try:
        loaded = worker.ask("load", timeout_s=60, path=str(path), settings=dataclasses.asdict(contexts[0]))["handle"]
        for settings in contexts:
            opened = worker.ask("open", timeout_s=60, loaded=loaded, settings=dataclasses.asdict(settings))
            worker.ask("close", timeout_s=60, handle=opened["handle"])
            asked = dataclasses.asdict(settings)
            effective = tuple((name, value) for name, value in opened["effective"].items() if asked[name] != value)
            memory = by_device(_MEMORY.validate_python(opened["memory"]))
            found.append({"memory": memory, "effective": effective})
    finally:
        worker.leave()
    return found


def by_device(memory: Iterable[MemoryUse]) -> dict[str, tuple[int, int, int]]:
    """Weights, cache and compute buffers of each device that holds anything."""
    found: dict[str, Counter[str]] = {}
    for row in memory:
        device = found.setdefault(row.device, Counter())
        device.update(weights=row.weights_bytes, cache=row.kv_cache_bytes, compute=row.compute_bytes)
    return {name: (n["weights"], n["cache"], n["compute"]) for name, n in found.items() if any(n.values())}


@pytest.mark.parametrize("name", ["smollm2_path", "gemma3_path"])
def test_what_is_foretold_is_what_is_taken(name: str, request: pytest.FixtureRequest, make_card: CardMaker) -> None:
    path, card = request.getfixturevalue(name), make_card(1, 2000 * MIB)
    placements = [
        [PLAIN.replace(n_gpu_layers=n_gpu_layers, **context) for context in CONTEXTS] for n_gpu_layers in (0, 1, 10, 99)
    ]
    with Runner(path, [card.endpoint]) as runner:
        foretold = [forecast(runner, contexts) for contexts in placements]
    for contexts, forecasts in zip(placements, foretold, strict=True):
        assert [found.settings for found in forecasts] == contexts
        assert {found.tier for found in forecasts} == {Tier.ENGINE}
        assert not any(found.refusal or found.refused for found in forecasts)
        told = [{"memory": by_device(found.memory), "effective": found.effective} for found in forecasts]
        assert told == taken(path, contexts, [card.endpoint])


def test_figures_known_from_elsewhere(smollm2_path: Path, make_card: CardMaker) -> None:
    """Weights by placement (card, host), and the cache by type, as counted by hand from the file."""
    golden = {
        0: (0, 96_576_768),
        1: (30_083_328, 96_574_464),
        2: (32_299_776, 94_358_016),
        10: (50_031_360, 76_626_432),
        30: (94_360_320, 32_297_472),
        31: (96_576_768, 30_081_024),
    }
    card = make_card(1, 400 * MIB)
    with Runner(smollm2_path, [card.endpoint]) as runner:
        for n_gpu_layers, (on_card, on_host) in golden.items():
            settings = PLAIN.replace(n_gpu_layers=n_gpu_layers, n_ctx=4096, flash_attn_type="auto")
            f16, q8_0 = forecast(runner, [settings, settings.replace(type_k="q8_0", type_v="q8_0")])
            weights = {name: figures[0] for name, figures in by_device(f16.memory).items()}
            assert (weights.pop("host"), sum(weights.values())) == (on_host, on_card)
            assert sum(row.kv_cache_bytes for row in f16.memory) == 94_371_840
            assert sum(row.kv_cache_bytes for row in q8_0.memory) == 50_135_040
            assert f16.layer_devices.count("host") == 31 - n_gpu_layers
            assert f16.flash_attn_type == q8_0.flash_attn_type == "enabled"
            assert (f16.output_bytes, q8_0.output_bytes) == (49_152 * 4, 49_152 * 4)
            assert f16.n_splits is not None
            assert (f16.n_splits == (1, 1)) == (n_gpu_layers == 0)


def test_a_refused_context_among_good_ones(smollm2_path: Path) -> None:
    contexts = [
        PLAIN,
        PLAIN.replace(type_v="q8_0", flash_attn_type="disabled"),
        PLAIN.replace(type_v="q8_0", flash_attn_type="auto"),
        PLAIN.replace(n_seq_max=4, n_ctx=1000),
    ]
    with Runner(smollm2_path) as runner:
        good, refused, forced, four = forecast(runner, contexts)
    assert refused.refusal.endswith("quantized V cache requires flash_attn to be enabled")
    assert refused.is_foretold
    assert (refused.memory, good.refusal, forced.refusal) == ((), "", "")
    assert dict(forced.effective) == {"flash_attn_type": "enabled"}
    assert dict(four.effective) == {"n_ctx": 1024}
    assert four.output_bytes == 4 * 4 * 49_152


def test_what_the_engine_cannot_foretell_is_said(smollm2_path: Path, make_card: CardMaker) -> None:
    card = make_card(1, 400 * MIB)
    settings = PLAIN.replace(n_gpu_layers=31, offload_kqv=False, flash_attn_type="disabled")
    with Runner(smollm2_path, [card.endpoint]) as runner:
        off, on = forecast(runner, [settings, settings.replace(flash_attn_type="auto")])
        (on_host,) = forecast(runner, [settings.replace(devices=())])
    (real,) = taken(smollm2_path, [on.settings], [card.endpoint])
    assert off.refusal.startswith("cannot be foretold")
    assert (off.is_foretold, off.memory) == (False, ())
    assert by_device(on.memory) == real["memory"]
    assert set(by_device(on_host.memory)) == {"host"}


def test_experts_kept_in_main_memory(smollm2_path: Path, tmp_path: Path, make_card: CardMaker) -> None:
    """They are where they were asked to be; a worker that forgets so takes them for tensors that the card refuses."""
    path, card = tmp_path / "moe.gguf", make_card(1, 600 * MIB)
    write_moe_file(path, smollm2_path)
    settings = PLAIN.replace(n_gpu_layers=5, n_cpu_moe=2)
    with Runner(path, [card.endpoint]) as runner:
        (foretold,) = forecast(runner, [settings])
        (without,) = forecast(runner, [settings.replace(n_cpu_moe=0)])
    assert foretold.refused == without.refused == ()
    assert by_device(foretold.memory) == taken(path, [settings], [card.endpoint])[0]["memory"]
    n_moved = by_device(foretold.memory)["host"][0] - by_device(without.memory)["host"][0]
    assert n_moved == 2 * 3 * N_EXPERT * N_EMBD * N_FF * 2
    with Runner(path, [card.endpoint], command=foreign("forgets")) as runner:
        (found,) = forecast(runner, [settings])[0].refused
    expected = RefusedTensors(
        example="blk.0.ffn_gate_exps.weight", type_name="f16", n_tensors=6, refused_by=found.refused_by, kept_in="CPU"
    )
    assert found == expected
    assert found.refused_by.startswith("RPC0")


def test_recurrent_states(smollm2_path: Path, tmp_path: Path, make_card: CardMaker) -> None:
    """They depend on the sequences alone; they are really there in a forecast, so the log knows them too."""
    path, card = tmp_path / "mamba.gguf", make_card(1, 400 * MIB)
    write_mamba_file(path, smollm2_path)
    contexts = [PLAIN.replace(n_gpu_layers=3, n_seq_max=n_seq, flash_attn_type="auto") for n_seq in (1, 4)]
    with Runner(path, [card.endpoint]) as runner:
        foretold = forecast(runner, contexts)
    told = [by_device(found.memory) for found in foretold]
    assert told == [found["memory"] for found in taken(path, contexts, [card.endpoint])]
    assert [sum(row.kv_cache_bytes for row in found.memory) for found in foretold] == [STATE_BYTES, 4 * STATE_BYTES]
    with Runner(path, [card.endpoint], command=foreign("unreadable")) as runner:
        _, by_log = forecast(runner, contexts)
    assert by_log.kv_cache_bytes is None
    for device, (_, cache_bytes, _) in by_device(by_log.memory).items():
        assert abs(cache_bytes - told[1][device][1]) < 0.01 * MIB


def test_the_host_as_it_is_by_default(gemma3_path: Path) -> None:
    """With extra buffers and mmap the host's weights are told as without mmap: a mapped file is counted whole.

    What is repacked is then in memory once, and mapped once more.
    """
    settings = Settings(n_ctx=512, flash_attn_type="auto")
    with Runner(gemma3_path) as runner:
        mapped, loaded = (forecast(runner, [settings.replace(load_mode=mode)])[0] for mode in ("mmap", "none"))
    assert mapped.memory == loaded.memory
    (real,), (real_mapped,) = (taken(gemma3_path, [found.settings]) for found in (loaded, mapped))
    assert by_device(loaded.memory) == real["memory"]
    (weights, *others), (weights_mapped, *others_mapped) = real["memory"]["host"], real_mapped["memory"]["host"]
    assert others == others_mapped
    assert weights_mapped >= weights


def test_the_loaded_placement_is_left_alone(smollm2_path: Path, make_card: CardMaker) -> None:
    card = make_card(1, 400 * MIB)
    settings = PLAIN.replace(n_gpu_layers=10, n_ctx=256)
    with Runner(smollm2_path, [card.endpoint]) as runner:
        first = run(runner, settings)
        foretold = forecast(runner, [settings.replace(n_gpu_layers=31)])
        second = run(runner, settings)
        assert runner.n_model_loads == 1
    assert foretold[0].tier is Tier.ENGINE
    assert first.memory == second.memory
    assert first.load_ns == second.load_ns


def test_forecasts_leave_no_memory_behind(gemma3_path: Path) -> None:
    """Each takes some forty MiB, most of it the vocabulary, and gives them back."""
    with Runner(gemma3_path) as runner:
        sizes = []
        for _ in range(8):
            forecast(runner, [PLAIN])
            sizes.append(psutil.Process(pid_of(runner)).memory_info().rss)
    assert sizes[-1] - sizes[2] < 60 * MIB  # the allocator has what it wants after the first few


def test_what_a_refused_forecast_said_explains_no_later_death(smollm2_path: Path) -> None:
    """Both ways a refusal and a death tell what happened: each by the lines of its own request."""
    with Runner(smollm2_path) as runner:
        refused, _ = forecast(runner, [PLAIN.replace(type_v="q8_0"), PLAIN])
        assert "flash_attn" in refused.refusal
        pid = pid_of(runner)
        os.kill(pid, signal.SIGSTOP)
        for delay_s, one in ((0.5, signal.SIGSEGV), (0.6, signal.SIGCONT)):
            threading.Timer(delay_s, os.kill, (pid, one)).start()
        died = runner.run(Trial(settings=PLAIN, target=Target.LLAMA_SERVER, why="test"), PLAN, timeout_s=60)
    assert died.outcome is Outcome.CRASHED, died.reason  # not "unsupported"
    assert "SIGSEGV" in died.reason


def pid_of(runner: Runner) -> int:
    assert runner._worker is not None
    return runner._worker.pid


def test_a_file_that_is_not_there(tmp_path: Path, smollm2_path: Path) -> None:
    with (
        Runner(tmp_path / "nothing.gguf") as runner,
        pytest.raises(EngineError, match=r"nothing\.gguf.*No such file") as raised,
    ):
        forecast(runner, [PLAIN])
    assert raised.value.hint
    with Runner(smollm2_path) as runner:
        with pytest.raises(EngineError, match="no device named CUDA7"):
            forecast(runner, [PLAIN.replace(devices=("CUDA7",))])
        assert forecast(runner, [PLAIN])[0].tier is Tier.ENGINE
        assert forecast(runner, []) == ()
        with pytest.raises(ValueError, match="one placement"):
            forecast(runner, [PLAIN, PLAIN.replace(n_gpu_layers=1)])


def test_a_death_is_an_error_and_the_next_forecast_lives(smollm2_path: Path) -> None:
    deadly = PLAIN.replace(n_ctx=768)
    with Runner(smollm2_path, command=foreign("SIGKILL")) as runner:
        assert runner.try_tiny(PLAIN, timeout_s=60)[0] is Outcome.OK
        with pytest.raises(EngineError, match="Memory cannot be foretold"):
            forecast(runner, [PLAIN, deadly])
        with pytest.raises(EngineError, match="no answer in the time allowed"):
            forecast(runner, [PLAIN], timeout_s=0.01)
        assert forecast(runner, [PLAIN])[0].tier is Tier.ENGINE
        assert runner.try_tiny(PLAIN, timeout_s=60)[0] is Outcome.OK


def test_an_abort_is_told_in_its_own_words(smollm2_path: Path) -> None:
    with (
        Runner(smollm2_path, command=foreign("maps")) as runner,
        pytest.raises(EngineError, match=r"SIGABRT while asked.*no_alloc"),
    ):
        forecast(runner, [PLAIN])


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("unreadable", "gemma3_path"),
        ("wrong_weights", "smollm2_path"),
        ("wrong_compute", "smollm2_path"),
        ("segfault", "smollm2_path"),
    ],
)
def test_without_the_exact_breakdown_the_log_speaks(
    how: str, name: str, request: pytest.FixtureRequest, make_card: CardMaker
) -> None:
    path, card = request.getfixturevalue(name), make_card(1, 1000 * MIB)
    settings = PLAIN.replace(n_gpu_layers=10, flash_attn_type="auto")
    with Runner(path, [card.endpoint]) as runner:
        (exact,) = forecast(runner, [settings])
    with Runner(path, [card.endpoint], command=foreign(how)) as runner:
        (told,) = forecast(runner, [settings])
    assert (exact.tier, told.tier) == (Tier.ENGINE, Tier.LOG)
    for device, (_, _, compute_bytes) in by_device(exact.memory).items():
        weights, cache, told_bytes = by_device(told.memory)[device]
        assert (weights, cache) == (0, 0)
        assert abs(told_bytes - compute_bytes) < 0.01 * MIB
    assert told.kv_cache_bytes == pytest.approx(sum(row.kv_cache_bytes for row in exact.memory), abs=0.02 * MIB)
    same = ("n_splits", "flash_attn_type", "effective", "output_bytes", "layer_devices", "refused")
    assert [getattr(told, name) for name in same] == [getattr(exact, name) for name in same]


def foreign(how: str) -> tuple[str, ...]:
    return (sys.executable, str(ROOT / "tests/foreign_worker.py"), how)
