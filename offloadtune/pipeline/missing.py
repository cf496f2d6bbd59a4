"""What is missing: the sentence that says why nothing stored answers, and the command that measures it."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Sequence

from offloadtune import search, store
from offloadtune.errors import NotMeasuredError
from offloadtune.footprint import pad_256
from offloadtune.pipeline.checking import check
from offloadtune.pipeline.journals import StoredSweep, headers, last_results
from offloadtune.pipeline.likeness import Here, Unlike
from offloadtune.recalls import Question, UnreadableJournal
from offloadtune.records import WORKLOADS, GgufFacts, Goal, Limits, Target, Workload
from offloadtune.sweeps import SweepRequest
from offloadtune.units import format_bytes, format_count, format_split, parse_bytes


def not_measured(
    question: Question,
    facts: GgufFacts,
    of_file: Sequence[StoredSweep],
    unreadable: Sequence[UnreadableJournal],
    here: Here,
) -> NotMeasuredError:
    """Why none of `of_file`, all that is stored of it, answers. Raises what a sweep would refuse the question with."""
    answering = _answering(question, of_file, here)
    usual = answering[0].header.workload if answering else WORKLOADS["chat"]
    request = SweepRequest(
        path=question.path,
        workload=question.workload or usual,
        budget_s=0,
        goal=question.goal or Goal.TURN,
        target=question.target or Target.LLAMA_CPP_PYTHON,
        n_ctx=question.n_ctx,
        vram_limit_bytes=question.vram_limit_bytes,
        limits=question.limits,
    )
    check(request, facts)
    command = sweep_command(question, answering[0].header if answering else None)
    damaged = [one for one in unreadable if one.gguf_id == facts.gguf_id]
    if damaged and not of_file:
        message = f"What was measured of {facts.path.name} cannot be read: {damaged[0].reason}"
        return NotMeasuredError(message, hint=f"move that file away and measure it again: {command}")
    return NotMeasuredError(_why(question, facts, of_file, here), hint=f"measure it: {command}")


def sweep_command(question: Question, like: store.SweepHeader | None = None) -> str:
    """The command that measures what answers the question; what it does not say is as in the sweep under `like`."""
    if like is not None:
        question = dataclasses.replace(
            question,
            workload=question.workload or like.workload,
            goal=question.goal or like.goal,
            target=question.target or like.target,
            n_ctx=question.n_ctx or like.n_ctx,
            vram_limit_bytes=like.limit_bytes if question.vram_limit_bytes is None else question.vram_limit_bytes,
            limits=question.limits.over(like.limits),
        )
    options = [*_asked(question), *([f"--goal {question.goal}"] if question.goal else []), *_limits_asked(question)]
    held = [*fixed_words(like), *(f"--rpc {endpoint}" for endpoint in like.endpoints)] if like else []
    quoted = (shlex.join(one.split(" ", 1)) for one in held)
    return " ".join([shlex.join(["offloadtune", "sweep", str(question.path)]), *options, *quoted])


def fixed_words(header: store.SweepHeader) -> Iterator[str]:
    """What a sweep fixed or allowed, as its options."""
    for name, value in header.fixed.items():
        yield f"--set {name}={format_split(value) if isinstance(value, tuple) else value}"
    if header.allow_kv_quant:
        yield "--allow-kv-quant"


def limit_words(limit_bytes: int | None, limits: Limits) -> Iterator[str]:
    """Limits as options of a sweep."""
    if limits.min_tok_per_s is not None:
        yield f"--min-tok-per-s {limits.min_tok_per_s:.12g}"
    if limits.ttft_p95_s is not None:
        yield f"--max-ttft {limits.ttft_p95_s:.12g}s"
    if limit_bytes is not None:
        yield f"--vram-limit {_bytes_words(limit_bytes)}"
    if limits.host_bytes is not None:
        yield f"--ram-limit {_bytes_words(limits.host_bytes)}"


def _limits_asked(question: Question) -> Iterator[str]:
    return limit_words(question.vram_limit_bytes, question.limits)


def _bytes_words(n_bytes: int) -> str:
    """As the option takes it: rounded to a unit where nothing is lost."""
    words = format_bytes(n_bytes).replace(" ", "")
    return words if parse_bytes(words) == n_bytes else str(n_bytes)


def workload_words(workload: Workload) -> str:
    """The workload's name where --workload takes it, else its four numbers."""
    numbers = (workload.n_prefix_cached, workload.n_prompt_new, workload.n_gen, workload.n_parallel)
    return workload.name if WORKLOADS.get(workload.name) == workload else "/".join(map(str, numbers))


def is_answered_by(question: Question, header: store.SweepHeader) -> bool:
    """Whether a sweep under `header` says anything to the question; its goal may be another."""
    asked, measured = question.workload or header.workload, header.workload
    return (
        (asked.n_prefix_cached, asked.n_prompt_new) == (measured.n_prefix_cached, measured.n_prompt_new)
        and asked.n_parallel == measured.n_parallel
        and asked.n_ctx_needed <= header.n_ctx
        and question.target in {None, header.target}
        and (question.n_ctx is None or pad_256(question.n_ctx) == header.n_ctx)
    )


def _why(question: Question, facts: GgufFacts, of_file: Sequence[StoredSweep], here: Here) -> str:
    name = facts.path.name
    usable = [stored for stored in of_file if here.unlike(stored.header) is None]
    if answering := _answering(question, of_file, here):
        results = [result for stored in answering for result in last_results(stored.content)]
        tried = format_count(len(results), "stored trial")
        limits = " ".join(_limits_asked(question))
        if limits and any(search.is_feasible(result, None) for result in results):
            return f"Of {tried} of {name} none stayed within {limits}."
        return f"Of {tried} of {name} none ran to its end."
    if usable:
        known = "; ".join(dict.fromkeys(_measured_words(stored.header) for stored in usable))
        return f"{name} was not measured here with {' '.join(_asked(question))}; stored are: {known}."
    if of_file:
        return _unlike_words(name, of_file, here)
    places = {facts.path.absolute(), facts.path.resolve()}
    if any(header.gguf_path in places and header.gguf_id != facts.gguf_id for header in headers()):
        return f"{name} has changed since it was measured."
    return f"Nothing was measured of {name} yet."


def _answering(question: Question, of_file: Sequence[StoredSweep], here: Here) -> list[StoredSweep]:
    """Those that were made here and for the question, newest first."""
    return [one for one in of_file if here.unlike(one.header) is None and is_answered_by(question, one.header)]


def _unlike_words(name: str, of_file: Sequence[StoredSweep], here: Here) -> str:
    """What all of the sweeps were made with that is not here now; of the one that is nearest to it."""
    nearest = min(of_file, key=lambda stored: here.unlike(stored.header) or Unlike.MACHINE).header
    unlike = here.unlike(nearest)
    if unlike is Unlike.DRIVER:
        now = ", ".join(dict.fromkeys(str(gpu.driver) for gpu in here.host.nvml_gpus or ()))
        then = ", ".join(dict.fromkeys(map(str, nearest.drivers)))
        return f"{name} was measured here with another driver ({then}, now it is {now}), so it may run otherwise."
    if unlike is Unlike.ENGINE:
        return f"{name} was measured with another build of the engine ({nearest.engine.version}) than is installed now."
    if unlike is Unlike.RULER:
        return f"{name} was measured here only in another way than today's, so its figures do not compare."
    machines = ", ".join(dict.fromkeys(stored.header.machine_id for stored in of_file))
    return f"{name} was measured only on another machine ({format_count(len(of_file), 'sweep')}, {machines})."


def _asked(question: Question) -> Iterator[str]:
    """What the user asked for, as options of a sweep, but for the goal, which any sweep answers."""
    if question.workload:
        yield f"--workload {workload_words(question.workload)}"
    if question.target:
        yield f"--target {question.target}"
    if question.n_ctx:
        yield f"--n-ctx {question.n_ctx}"


def _measured_words(header: store.SweepHeader) -> str:
    return f"--workload {workload_words(header.workload)} --target {header.target} --n-ctx {header.n_ctx}"
