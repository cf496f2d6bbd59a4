"""How often the intervals hold and how often unchanged settings are called faster, on noise recorded on a machine.

Series are runs of neighbouring visits drawn from data/visit_noise.csv (record_noise.py makes it), so that what lasts
from one visit to the next stays; a run that leaves the end of its session goes on at its beginning. Within a pair or a
round the order is by chance, as in a sweep. Every comparison is of settings with themselves.

Ends with 1 when a bar is missed: the ratio of paired visits held by 94 to 96.5 % of its intervals at 7 pairs and more
(at 6 the first step of the exact test is 96.9 %, and Student's t below is as wide as long tails make it: there 94 % is
the least and no most is asked), all looks together by 94 %, and less than 5 % of false "faster".

    python benchmarks/interval_coverage.py [--series 2000]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from record_noise import MODEL, N_STEPS, read_noise

from offloadtune import stats
from offloadtune.gguf import read_gguf
from offloadtune.recommend import N_ROUNDS_A_LOOK, is_decided, recommend
from offloadtune.recommend.looks import N_LOOKS_MOST, confidence_at
from offloadtune.records import Goal, Outcome, Recommendation, Target, TrialResult, Verdict, Visit, Workload
from offloadtune.search import Space, baseline_trials
from offloadtune.units import format_count

Floats = npt.NDArray[np.float64]
LEAST, MOST = 0.94, 0.965
FALSE_FASTER = 0.05
N_FINALISTS = 4
N_PAIRS_BY_RANKS = 6
_SEED = 20261130
_MORE_SERIES = 4
"""As many for the ratio, whose promise at 8 pairs, 96.1 %, is nearer to its bar than 2000 series can tell."""


@dataclass(kw_only=True)
class Noise:
    """Seconds of the turns recorded, by session, and the chance that draws from them; `last` was drawn from last."""

    sessions: list[Floats]
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(_SEED))
    last: Floats = field(default_factory=lambda: np.ones(1))

    def run(self, n: int) -> Floats:
        """`n` neighbouring visits from anywhere: each visit recorded is as likely as another to be the first."""
        sizes = np.array([len(session) for session in self.sessions])
        session = self.sessions[int(self.chance.choice(len(sizes), p=sizes / sizes.sum()))]
        self.last = session
        return np.take(session, np.arange(n) + self.chance.integers(len(session)), mode="wrap")

    def rounds(self, n_rounds: int, n_settings: int) -> Floats:
        """`[round, setting]`, all settings alike, those of a round in an order by chance."""
        visits = self.run(n_rounds * n_settings).reshape(n_rounds, n_settings)
        return self.chance.permuted(visits, axis=1)

    def lines(self) -> Iterator[str]:
        """How noisy each session was."""
        for i, session in enumerate(self.sessions, 1):
            logs = np.log(session)
            likeness = [float(np.corrcoef(logs[k:], logs[:-k])[0, 1]) for k in (1, 4, 16)]
            words = ", ".join(f"{value:.2f}" for value in likeness)
            yield (
                f"session {i}: {len(session)} visits, spread of the logarithm {logs.std():.3f}, "
                f"autocorrelation 1, 4 and 16 visits later {words}"
            )


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A share that was found and the range it has to lie in; None where nothing is asked."""

    what: str
    found: float
    least: float | None = None
    most: float | None = None

    @property
    def is_missed(self) -> bool:
        return (self.least is not None and self.found < self.least) or (
            self.most is not None and self.found > self.most
        )

    def line(self) -> str:
        asked = " to ".join(f"{100 * end:g}" for end in (self.least, self.most) if end is not None)
        word = {True: "MISSED", False: "ok"}[self.is_missed] if asked else "stated"
        return f"{self.what:<66} {100 * self.found:6.2f} %  {asked:>10}  {word}"


def read_turns() -> Noise:
    """The turns recorded, as long as the visits were."""
    sessions = [np.array([one.turn_s(N_STEPS) for one in session]) for session in read_noise()]
    if not sessions:
        raise SystemExit("Nothing is recorded: python benchmarks/record_noise.py --minutes 3 --append")
    return Noise(sessions=sessions)


def ratio_bars(noise: Noise, n_series: int) -> Iterator[Bar]:
    """The interval of B over A, and how often B is called faster though nothing is."""
    for n_pairs in (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 20, 28, 35, 40):
        found = []
        for _ in range(_MORE_SERIES * n_series):
            pairs = noise.rounds(n_pairs, 2)
            found.append(stats.compare_pairs(pairs[:, 0].tolist(), pairs[:, 1].tolist(), 0.0))
        covered = statistics.fmean(one.ratio.low <= 1 <= one.ratio.high for one in found)
        how = "ranks" if n_pairs >= N_PAIRS_BY_RANKS else "Student's t"
        is_exact = n_pairs > N_PAIRS_BY_RANKS
        promised = f"{n_pairs} pairs, {how}, promise {found[0].ratio.coverage_frac:.1%}"
        yield Bar(what=f"ratio: {promised}", found=covered, least=LEAST, most=MOST if is_exact else None)
        faster = statistics.fmean(one.verdict is Verdict.FASTER for one in found)
        yield Bar(what=f"false faster: {n_pairs} pairs", found=faster, most=FALSE_FASTER)


def look_bars(noise: Noise, n_series: int) -> Iterator[Bar]:
    """Two settings at all looks of a sweep: whether all intervals hold, and whether the first to decide says faster."""
    for n_looks in range(1, N_LOOKS_MOST + 1):
        covered, faster = [], []
        for _ in range(n_series):
            pairs = noise.rounds(N_ROUNDS_A_LOOK * n_looks, 2)
            ends = [N_ROUNDS_A_LOOK * i for i in range(1, n_looks + 1)]
            looks = [
                stats.compare_pairs(pairs[:n, 0].tolist(), pairs[:n, 1].tolist(), 0.0, confidence_frac=confidence_at(n))
                for n in ends
            ]
            covered.append(all(look.ratio.low <= 1 <= look.ratio.high for look in looks))
            faster.append(next((look.verdict for look in looks if look.is_decided), None) is Verdict.FASTER)
        name = f"{format_count(n_looks, 'look')} of {N_ROUNDS_A_LOOK} pairs"
        yield Bar(what=f"repeated intervals: {name}", found=statistics.fmean(covered), least=LEAST)
        yield Bar(what=f"false faster: {name}", found=statistics.fmean(faster), most=FALSE_FASTER)


def quantile_bars(noise: Noise, n_series: int) -> Iterator[Bar]:
    """Medians as a sweep takes them, one visit of each round, and P95 of visits without a gap.

    They hold the median of the time in which they were measured. The machine of another quarter of an hour is another
    machine: what such an interval says of the whole session is stated, and no bar is set.
    """
    for n_rounds in (N_ROUNDS_A_LOOK, 2 * N_ROUNDS_A_LOOK, 5 * N_ROUNDS_A_LOOK):
        at_the_time, in_the_session = [], []
        for _ in range(n_series):
            visits, session = noise.rounds(n_rounds, N_FINALISTS), noise.last
            found = stats.estimate_median(visits[:, 0].tolist())
            at_the_time.append(found.low <= np.median(visits) <= found.high)
            in_the_session.append(found.low <= np.median(session) <= found.high)
        promised = f"{n_rounds} rounds, promises {found.coverage_frac:.1%}"
        yield Bar(what=f"median of that time: {promised}", found=statistics.fmean(at_the_time), least=LEAST)
        yield Bar(what=f"median of the session: {promised}", found=statistics.fmean(in_the_session))
    for n_visits in (80, 200):
        covered = []
        for _ in range(n_series):
            visits, session = noise.run(n_visits), noise.last
            one = stats.estimate_quantile(visits.tolist(), 0.95)
            assert one.low is not None
            assert one.high is not None
            covered.append(one.low <= np.quantile(session, 0.95) <= one.high)
        promised = f"{n_visits} visits, promises {one.coverage_frac:.1%}"
        yield Bar(what=f"P95 of the session: {promised}", found=statistics.fmean(covered))


def sweep_bars(noise: Noise, n_series: int) -> Iterator[Bar]:
    """The whole rule of a sweep: settings that are all alike, looked at until decided, and what is then said."""
    sweep = AlikeSweep()
    for n_rounds in (2, 3, 5, N_ROUNDS_A_LOOK, 10, 21, 35):
        verdicts, n_measured = [], []
        for _ in range(n_series):
            answer, n = sweep.answer(noise.rounds(n_rounds, len(sweep.trials)))
            verdicts.append([one.verdict for one in answer.versus])
            n_measured.append(n)
        name = f"a sweep of up to {n_rounds} rounds"
        for verdict, most in ((Verdict.FASTER, FALSE_FASTER), (Verdict.SLOWER, None)):
            share = statistics.fmean(verdict in some for some in verdicts)
            yield Bar(what=f"false {verdict}: {name}, mean {statistics.fmean(n_measured):.1f}", found=share, most=most)


class AlikeSweep:
    """A sweep over made-up settings that all take the same time: two tuned ones, the CPU alone and the defaults."""

    def __init__(self) -> None:
        workload = Workload(name="alike", n_prefix_cached=0, n_prompt_new=64, n_gen=2)
        self.space = Space(
            facts=read_gguf(MODEL),
            workload=workload,
            goal=Goal.TURN,
            target=Target.LLAMA_CPP_PYTHON,
            n_ctx=512,
            device_bytes=8 << 30,
            limit_bytes=None,
            n_physical_cores=4,
            n_logical_cores=8,
            n_os_cpus=8,
            n_fit_layers=-1,
        )
        baselines = baseline_trials(self.space)
        fit, default, cpu_only = (baselines[name] for name in ("fit", "default", "cpu_only"))
        tuned = self.space.trial(fit.settings.replace(n_ubatch=256), "tuned")
        self.trials = (tuned, fit, default, cpu_only)

    def answer(self, turns_s: Floats) -> tuple[Recommendation, int]:
        """What is said in the end, and of how many rounds; the first visits are those of the first round."""
        rounds = [
            {trial.settings: (_visit(turn_s),) for trial, turn_s in zip(self.trials, one, strict=True)}
            for one in turns_s.tolist()
        ]
        results = [
            TrialResult(trial=trial, outcome=Outcome.OK, reason="", visits=rounds[0][trial.settings])
            for trial in self.trials
        ]
        ends = [*range(N_ROUNDS_A_LOOK, len(rounds), N_ROUNDS_A_LOOK), len(rounds)]
        n = next((n for n in ends if is_decided(self.space, results, rounds[:n])), len(rounds))
        answer = recommend(self.space, results, rounds[:n])
        assert answer is not None
        return answer, n


def _visit(turn_s: float) -> Visit:
    """A visit whose turn of two tokens takes so long."""
    return Visit(
        is_warmup=False,
        i_load=1,
        n_prefix_cached=0,
        n_prompt_new=64,
        tokenize_ns=0,
        prefill_ns=round(turn_s * 1e9),
        first_sample_ns=0,
        first_decode_ns=0,
        step_ns=(1,),
        sample_ns=(1,),
    )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--series", type=int, default=2000)
    n_series = options.parse_args().series
    noise = read_turns()
    print("\n".join(noise.lines()))
    n_missed = 0
    for bars in (ratio_bars, look_bars, quantile_bars, sweep_bars):
        for bar in bars(noise, n_series):
            print(bar.line(), flush=True)
            n_missed += bar.is_missed
    print(f"{format_count(n_missed, 'bar')} missed, {n_series} series each")
    return min(n_missed, 1)


if __name__ == "__main__":
    sys.exit(main())
