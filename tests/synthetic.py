"""A made-up engine and made-up files: nothing here is measured, nothing here describes a real machine.

For tests of the judgement only: a pure function from settings to a result, with a memory wall and a speed law that a
test can know exactly, so that "the best" and "the most that fits" have one right answer.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from offloadtune.footprint import estimate_footprint
from offloadtune.records import (
    Evidence,
    GgufFacts,
    Goal,
    Outcome,
    Settings,
    Target,
    TensorFacts,
    Trial,
    TrialResult,
    Visit,
    Workload,
)
from offloadtune.search import Space, next_trial

MIB = 1 << 20
WORKLOAD = Workload(name="made up", n_prefix_cached=0, n_prompt_new=512, n_gen=64)
N_CTX = 1024
_N_TRIALS_MAX = 200


def made_up_facts(
    layer_bytes: Sequence[int] = (10 * MIB,) * 12,
    *,
    n_ctx_train: int = 8192,
    n_swa: int = 0,
    is_tied: bool = False,
    n_layer_nextn: int = 0,
    keys: dict[str, object] | None = None,
) -> GgufFacts:
    """Facts of a file that does not exist, with blocks of the sizes given; every second block slides with `n_swa`."""
    n_layer = len(layer_bytes)
    sizes = {f"blk.{i}.ffn_up.weight": n for i, n in enumerate(layer_bytes)}
    sizes |= {"token_embd.weight": 8 * MIB, "output_norm.weight" if is_tied else "output.weight": 8 * MIB}
    return GgufFacts(
        path=Path("made-up.gguf"),
        shard_paths=(Path("made-up.gguf"),),
        gguf_id="made-up",
        file_bytes=sum(layer_bytes) + 16 * MIB,
        version=3,
        arch="llama",
        name=None,
        quantisation="F16",
        n_params=sum(layer_bytes) // 2,
        n_layer=n_layer,
        n_layer_nextn=n_layer_nextn,
        n_embd=256,
        n_vocab=4096,
        n_ctx_train=n_ctx_train,
        n_head=(4,) * n_layer,
        n_head_kv=(2,) * n_layer,
        n_embd_head_k=64,
        n_embd_head_v=64,
        n_swa=n_swa,
        is_swa=tuple(bool(n_swa) and i % 2 == 0 for i in range(n_layer)),
        n_expert=0,
        n_expert_used=0,
        is_tied=is_tied,
        layer_bytes=tuple(layer_bytes),
        expert_bytes=(0,) * n_layer,
        embedding_bytes=8 * MIB,
        output_bytes=8 * MIB,
        other_bytes=0,
        type_bytes=(("F16", sum(layer_bytes) + 16 * MIB),),
        tensors=tuple(
            TensorFacts(name=name, type_name="I8", shape=(n_bytes,), n_bytes=n_bytes, offset=0, i_shard=0)
            for name, n_bytes in sizes.items()
        ),
        key_values=(("llama.feed_forward_length", 1024), *(keys or {}).items()),
    )


def made_up_space(
    facts: GgufFacts,
    *,
    device_bytes: int,
    goal: Goal = Goal.TURN,
    target: Target = Target.LLAMA_CPP_PYTHON,
    limit_bytes: int | None = None,
    n_ctx: int = N_CTX,
    n_prompt_new: int = WORKLOAD.n_prompt_new,
    fixed: dict[str, object] | None = None,
    kept: dict[str, object] | None = None,
) -> Space:
    """A space over a made-up computer of 16 CPUs, of which this process may use four cores with eight threads."""
    return Space(
        facts=facts,
        workload=dataclasses.replace(WORKLOAD, n_prompt_new=n_prompt_new),
        goal=goal,
        target=target,
        n_ctx=n_ctx,
        device_bytes=device_bytes,
        limit_bytes=limit_bytes,
        n_physical_cores=4,
        n_logical_cores=8,
        n_os_cpus=16,
        fixed=fixed or {},
        kept=kept or {},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticEngine:
    """A made-up engine. What does not fit under `wall_bytes` ends as `wall_outcome`; the rest obeys the speed law.

    Memory: weights and cache as predicted, `compute_factor` times the predicted compute buffers, `base_bytes` once
    anything is offloaded. Speed: bytes over bandwidth on either side, in series; `crashing_ubatch` dies.
    """

    facts: GgufFacts
    wall_bytes: int
    base_bytes: int = 0
    compute_factor: float = 1.0
    wall_outcome: Outcome = Outcome.OUT_OF_MEMORY_DEVICE
    host_bytes_per_s: float = 20e9
    device_bytes_per_s: float = 200e9
    crashing_ubatch: int | None = None

    def used_bytes(self, settings: Settings) -> int:
        """What the settings take on the made-up device."""
        if not settings.offloads:
            return 0
        predicted = estimate_footprint(self.facts, settings)
        return predicted.least_bytes + round(predicted.compute_bytes * self.compute_factor) + self.base_bytes

    def fits(self, settings: Settings) -> bool:
        return self.used_bytes(settings) <= self.wall_bytes

    def token_s(self, settings: Settings) -> float:
        """Speed law of decoding: weights are read once from either memory, threads share the host's."""
        on_device = estimate_footprint(self.facts, settings).weights_bytes
        on_host = max(sum(self.facts.layer_bytes) + self.facts.output_bytes - on_device, 0)
        host_share = min(settings.n_threads, 4) / 4
        attention = 1.1 if settings.flash_attn_type == "disabled" else 1.0
        return attention * (on_host / (self.host_bytes_per_s * host_share) + on_device / self.device_bytes_per_s + 1e-4)

    def run(self, trial: Trial) -> TrialResult:
        settings = trial.settings
        if not self.fits(settings):
            reason, evidence = "the made-up memory ran out", Evidence(phase="load")
            return TrialResult(trial=trial, outcome=self.wall_outcome, reason=reason, evidence=evidence)
        if settings.n_ctx < WORKLOAD.n_ctx_needed:
            return TrialResult(trial=trial, outcome=Outcome.UNSUPPORTED, reason="refused: the made-up context ends")
        if settings.n_ubatch == self.crashing_ubatch:
            return TrialResult(trial=trial, outcome=Outcome.CRASHED, reason="the made-up engine died")
        token_s = self.token_s(settings)
        n_ubatches = -(-WORKLOAD.n_prompt_new // settings.n_ubatch)
        visits = (
            visit(ttft_s=9.0, token_s=9.0, is_warmup=True),
            visit(ttft_s=n_ubatches * token_s * 10, token_s=token_s),
        )
        return ok_result(trial, visits, peak_bytes=self.used_bytes(settings))


def visit(*, ttft_s: float, token_s: float, is_warmup: bool = False) -> Visit:
    """A made-up visit with exactly these times."""
    return Visit(
        is_warmup=is_warmup,
        i_load=1,
        n_prefix_cached=WORKLOAD.n_prefix_cached,
        n_prompt_new=WORKLOAD.n_prompt_new,
        tokenize_ns=0,
        prefill_ns=round(ttft_s * 1e9),
        first_sample_ns=0,
        first_decode_ns=round(token_s * 1e9),
        step_ns=(round(token_s * 1e9),) * 3,
        sample_ns=(0,) * 3,
    )


def ok_result(trial: Trial, visits: tuple[Visit, ...], *, peak_bytes: int = 0) -> TrialResult:
    """A made-up result of a trial that ran."""
    return TrialResult(
        trial=trial, outcome=Outcome.OK, reason="", visits=visits, device_peak_bytes=(("Made-Up0", peak_bytes),)
    )


def carry_out(space: Space, engine: SyntheticEngine) -> list[TrialResult]:
    """The whole plan, trial by trial, as the conductor would go through it with all the time in the world."""
    results: list[TrialResult] = []
    for _ in itertools.repeat(None, _N_TRIALS_MAX):
        trial = next_trial(space, results)
        if trial is None:
            return results
        results.append(engine.run(trial))
    raise AssertionError(f"the plan did not end within {_N_TRIALS_MAX} trials")
