"""Stand-ins of the sample models' shapes against the real files: do they take as long?

One worker loads two copies of the real file and the stand-in, whose vocabulary is the built-in one: memory that is
given anew makes two loads of the same file differ by some per cent, and pages of a file that was just written may lie
otherwise in memory than those of one long read (11 % in the time of a token were seen), so all three are written alike.
A round visits the three in an order by chance. Printed for reading a prompt and for writing are the stand-in's time
over the first copy's and, as the noise, the second's over the first's, with 95 % intervals; and whether the first is
within 5 % beyond the second.

To be run where nothing else runs.

    python benchmarks/standin_against_real.py --rounds 40
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import shutil
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offloadtune import stats
from offloadtune.engine.process import WorkerProcess
from offloadtune.gguf import read_gguf
from offloadtune.pipeline import StandinRequest, write_standin
from offloadtune.records import Estimate, Settings

MODELS = Path(__file__).parents[1] / "gguf_models"
PAIRS = (
    ("SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M", "Q4_1"),
    ("gemma-3-270m-q4_k_m.gguf", "Gemma-3-270M", "Q4_K_M"),
)
_ALLOWED_FRAC = 0.05
_ASK_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Times:
    """Nanoseconds for reading the prompt and for the median token, a value for each round."""

    prompt_ns: list[float] = field(default_factory=list)
    token_ns: list[float] = field(default_factory=list)

    def add(self, visit: dict[str, Any]) -> None:
        self.prompt_ns.append(visit["prefill_ns"])
        self.token_ns.append(statistics.median(visit["step_ns"]))


def measure(paths: dict[str, Path], settings: Settings, options: argparse.Namespace) -> dict[str, Times]:
    """The times of the real file, of another copy, and of the stand-in, round by round."""
    worker, asked = WorkerProcess(), dataclasses.asdict(settings)
    try:
        chance, times = random.Random(options.seed), {name: Times() for name in paths}  # noqa: S311 - no secret
        contexts = {}
        for name in chance.sample(sorted(paths), len(paths)):
            loaded = worker.ask("load", timeout_s=_ASK_S, path=str(paths[name]), settings=asked)["handle"]
            contexts[name] = worker.ask("open", timeout_s=_ASK_S, loaded=loaded, settings=asked)["handle"]
        work = {"n_prefix": 0, "n_new": options.prompt, "n_steps": options.steps}
        for i in range(options.rounds + 1):
            for name in chance.sample(sorted(contexts), len(contexts)):
                visit = worker.ask("visit", timeout_s=_ASK_S, context=contexts[name], **work)
                if i:  # the first round warms up
                    times[name].add(visit)
        return times
    finally:
        worker.leave()


def line(what: str, times: dict[str, list[float]]) -> tuple[str, bool]:
    """How the stand-in's times compare, and whether they are near enough."""
    ours = stats.paired_ratio(times["real"], times["standin"])
    noise = stats.paired_ratio(times["real"], times["copy"])
    noise_frac = max(noise.high - 1, 1 - noise.low)
    is_near = abs(ours.p50 - 1) <= _ALLOWED_FRAC + noise_frac
    of_real = statistics.median(times["real"]) / 1e6
    return (
        f"  {what}: real {of_real:.2f} ms, stand-in over real {_words(ours)}, another copy over it {_words(noise)}: "
        f"{'within' if is_near else 'NOT within'} {_ALLOWED_FRAC:.0%} beyond the noise of {noise_frac:.1%}"
    ), is_near


def _words(ratio: Estimate) -> str:
    return f"{ratio.p50:.4f} ({ratio.low:.4f} to {ratio.high:.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--prompt", type=int, default=256, help="tokens read a visit")
    parser.add_argument("--steps", type=int, default=32, help="tokens written a visit")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    settings = Settings(devices=(), n_ctx=1024, n_threads=options.threads, n_threads_batch=options.threads)
    all_near = True
    with tempfile.TemporaryDirectory() as folder:
        for file_name, shape, quant in PAIRS:
            standin = Path(folder) / f"{shape}.gguf"
            facts = write_standin(StandinRequest(source=shape, quant=quant, output=standin))
            real = read_gguf(MODELS / file_name)
            copies = {name: Path(folder) / f"{name}.{file_name}" for name in ("real", "copy")}
            for copy in copies.values():
                shutil.copyfile(real.path, copy)
            print(f"{shape} {quant}: {facts.tensor_bytes} bytes of tensors, {real.tensor_bytes} in the real file")
            times = measure({**copies, "standin": standin}, settings, options)
            for what, name in (("prompt", "prompt_ns"), ("token", "token_ns")):
                words, is_near = line(what, {key: getattr(one, name) for key, one in times.items()})
                print(words, flush=True)
                all_near &= is_near
    if not all_near:
        raise SystemExit("A stand-in differs by more than it may.")


if __name__ == "__main__":
    main()
