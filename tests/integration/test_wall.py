"""At the wall of a card whose memory is counted to the byte: what is said to fit runs, what is said not to does not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import MIB, CardMaker

from offloadtune.engine import Runner, VisitPlan
from offloadtune.footprint import HOST, Grid, reckon
from offloadtune.gguf import read_gguf
from offloadtune.pipeline.calibrating import Calibrations
from offloadtune.pipeline.devices import DeviceMemory
from offloadtune.plans import Tier
from offloadtune.probe import probe_host
from offloadtune.records import GgufFacts, Machine, Outcome, Settings, Target, Trial, Workload

CARD_BYTES, DRIVER_BYTES = 96 * MIB, 7 * MIB
NEAR_FRAC = 0.06
N_CANDIDATES = 20_000
SLOW = (pytest.mark.slow, pytest.mark.timeout(1800))
PLAN = VisitPlan(workload=Workload(name="tiny", n_prefix_cached=0, n_prompt_new=8, n_gen=2), n_steps=1, n_visits=1)


@pytest.mark.parametrize(
    ("n_fitting", "n_others", "n_ctx_most"), [(6, 6, 512), pytest.param(200, 60, 1024, marks=SLOW)], ids=["few", "many"]
)
def test_what_is_said_to_fit_runs_and_what_is_said_not_to_does_not(
    make_card: CardMaker, smollm2_path: Path, n_fitting: int, n_others: int, n_ctx_most: int
) -> None:
    """Of 200 settings at the wall that should fit none may fail, and 5 % of the others at most may run."""
    facts = read_gguf(smollm2_path)
    card = make_card(2, CARD_BYTES, driver_bytes=DRIVER_BYTES)
    with Runner(smollm2_path, [card.endpoint]) as runner:
        runtime_bytes = calibrated(runner, facts)
        assert runtime_bytes == DRIVER_BYTES
        fitting: list[Settings] = []
        others: list[Settings] = []
        for settings in settings_near(facts, CARD_BYTES - DRIVER_BYTES, n_ctx_most):
            if len(fitting) == n_fitting and len(others) == n_others:
                break
            (forecast,) = runner.forecast((settings,), timeout_s=60)
            assert forecast.tier is Tier.ENGINE, forecast.refusal
            used = sum(row.total_bytes for row in forecast.memory if not row.is_host)
            into, most = (fitting, n_fitting) if used + runtime_bytes <= CARD_BYTES else (others, n_others)
            into += [settings] * (len(into) < most)
        assert (len(fitting), len(others)) == (n_fitting, n_others)
        failed = [settings for settings in by_load(fitting) if not runs(runner, settings)]
        ran = [settings for settings in by_load(others) if runs(runner, settings)]
    rate = f"so fewer than {3 / n_fitting:.1%} do (95 % sure)" if not failed else "too many"
    print(f"{len(failed)} of {n_fitting} said to fit failed, {rate}; {len(ran)} of {n_others} said not to fit ran")
    assert not failed
    assert len(ran) <= 0.05 * n_others


def by_load(settings: Sequence[Settings]) -> list[Settings]:
    """In an order that shares loads."""
    return sorted(settings, key=lambda one: one.n_gpu_layers)


def calibrated(runner: Runner, facts: GgufFacts) -> int:
    """What one trial far from the wall teaches of the driver's share."""
    engine, devices = runner.describe()
    machine = Machine(host=probe_host(measure=False), devices=devices)
    memory = DeviceMemory(facts, machine, engine)
    trial = Trial(settings=Settings(n_gpu_layers=4, n_outputs_max=1), target=Target.LLAMA_SERVER, why="calibration")
    result = runner.run(trial, PLAN, timeout_s=60)
    assert result.outcome is Outcome.OK, result.reason
    memory.learn(result)
    (device,) = machine.offload_devices
    runtime_bytes = Calibrations(engine).of(device).runtime_bytes
    assert runtime_bytes is not None
    assert dict(memory.predicted(trial.settings))[device.name] >= runtime_bytes
    return runtime_bytes


def runs(runner: Runner, settings: Settings) -> bool:
    """Whether they load, and fill their context to its last cell."""
    result = runner.run(Trial(settings=settings, target=Target.LLAMA_SERVER, why="wall"), PLAN, timeout_s=120)
    assert result.outcome in {Outcome.OK, Outcome.OUT_OF_MEMORY_DEVICE}, result.reason
    return result.outcome is Outcome.OK


def settings_near(facts: GgufFacts, wall_bytes: int, n_ctx_most: int) -> Sequence[Settings]:
    """Random settings whose arithmetic comes within some per cent of the wall, no two alike."""
    chance = random.Random(wall_bytes)
    types = [("f16", "f16"), ("q8_0", "q8_0"), ("q4_0", "f16"), ("f32", "f32")]
    candidates = []
    for _ in range(N_CANDIDATES):
        flash = chance.random() < 0.7
        type_k, type_v = chance.choice(types if flash else [types[0], types[2], types[3]])
        n_batch = chance.choice((64, 128, 256, 512))
        candidates.append(
            Settings(
                n_gpu_layers=chance.randint(2, facts.n_layer + 1),
                n_ctx=256 * chance.randint(1, n_ctx_most // 256),
                n_batch=n_batch,
                n_ubatch=chance.choice((n_batch, n_batch // 2)),
                n_outputs_max=chance.choice((0, 1, 48)),
                type_k=type_k,
                type_v=type_v,
                flash_attn_type="enabled" if flash else "disabled",
                n_threads=2,
                n_threads_batch=2,
            )
        )
    used = reckon(facts, Grid.of(candidates, facts.n_layer), (HOST,)).device_bytes[0]
    near = np.flatnonzero(np.abs(used / wall_bytes - 1) < NEAR_FRAC)
    return list(dict.fromkeys(candidates[i] for i in near.tolist()))
