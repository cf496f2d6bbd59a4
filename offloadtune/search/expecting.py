"""What settings are expected to reach, by the speed law, before they are tried."""

from __future__ import annotations

from offloadtune.records import Estimate, Expected, Goal, Settings
from offloadtune.search.space import Space
from offloadtune.speed import predict
from offloadtune.speeds import Figure

_COVERAGE_FRAC = 0.9


def expected(space: Space, settings: Settings) -> Expected | None:
    """The workload's time to first token and its rate of writing one sequence; None where nothing is foretold."""
    if space.laws is None:
        return None
    workload = space.workload
    laws = space.laws(settings)
    alone = settings.replace(n_seq_max=1)  # visits write one sequence, whatever there is room for
    found = predict(space.facts, alone, laws, n_prompt=workload.n_prompt_new, depth=workload.n_prefix_cached)
    return Expected(
        ttft_s=_estimate(found.ttft_s),
        decode_tok_per_s=_estimate(found.decode_tok_per_s),
        bound_tok_per_s=found.bound_tok_per_s,
        bound_prefill_tok_per_s=found.bound_prefill_tok_per_s,
    )


def expected_cost(space: Space, settings: Settings) -> float:
    """What the goal makes small, in seconds, as `search.cost` counts it; 0.0 for all where nothing is foretold."""
    found = expected(space, settings)
    if found is None:
        return 0.0
    ttft_s, token_s = found.ttft_s.p50, 1.0 / found.decode_tok_per_s.p50
    if space.goal is Goal.TTFT:
        return ttft_s
    if space.goal is Goal.DECODE:
        return token_s
    return ttft_s + (space.workload.n_gen - 1) * token_s


def _estimate(figure: Figure) -> Estimate:
    return Estimate(
        p50=figure.value,
        low=figure.low,
        high=figure.high,
        n_samples=0,
        coverage_frac=_COVERAGE_FRAC,
        basis=figure.basis,
    )
