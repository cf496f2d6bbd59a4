"""Rows: llama-bench's own tests with llama-bench's own results, and those that others posted."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import offloadtune
from offloadtune import export, logs, store
from offloadtune.engine import WORKER_COMMAND, RulerFailedError, RulerRep, RulerTest
from offloadtune.errors import EngineMissingError, InterruptedSweepError, NothingWorksError, UsageError
from offloadtune.gguf import read_gguf
from offloadtune.pipeline.guarding import GuardedRunner
from offloadtune.pipeline.interrupts import deaf
from offloadtune.pipeline.marking import standin_sentence
from offloadtune.pipeline.rebuilding import rebuild_line
from offloadtune.probe import probe_host
from offloadtune.records import EngineBuild, GgufFacts, Settings
from offloadtune.report.standins import STANDIN_LIMITS, standin_words
from offloadtune.rows import FIELDS, OUR_PREFIX, ROW_FORMATS, STANDS_FOR, BenchRow, ImportedRows, RowsRequest
from offloadtune.sweeps import Said
from offloadtune.units import format_count

_TEST_S = 12 * 3600.0
_CACHE_TYPES = ("f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
_N_SHOWN_MACHINES = 3
_FLASH_ATTN = {"auto": ("auto", -1), "off": ("disabled", 0), "on": ("enabled", 1)}
"""llama-bench's word -> the engine's, and the number in a row."""


class RowsRunner(GuardedRunner):
    """A runner whose repetitions are of the file named and of no other."""

    def ruler(self, settings: Settings, test: RulerTest, n_reps: int, *, timeout_s: float) -> Iterator[RulerRep]:
        try:
            yield from super().ruler(settings, test, n_reps, timeout_s=timeout_s)
        except RulerFailedError as error:
            self.check(error.evidence)
            raise
        self.check()


def bench_rows(
    requests: Sequence[RowsRequest], listen: Callable[[Said], None], keep: Callable[[BenchRow], None] = lambda _: None
) -> tuple[BenchRow, ...]:
    """Measure each test of each request, all of one file, as llama-bench does; keep its row and hand it to `keep`.

    All requests are checked before anything is measured, and a test that fails keeps none of the others from running.
    Raises GgufError, EngineMissingError, EngineError, BusyError, StoreError, UsageError, NothingWorksError when a test
    could not be measured, and InterruptedSweepError when the user stopped it: `keep` has what had finished.
    """
    for request in requests:
        _check(request, tests_of(request))
    facts = read_gguf(requests[0].path)
    rows: list[BenchRow] = []
    failures: list[str] = []
    n_tests = sum(len(tests_of(request)) for request in requests)

    def finished(row: BenchRow) -> None:
        rows.append(row)
        keep(row)
        store.append_rows(store.data_dir(), [row])

    with store.measuring_alone(store.data_dir(), facts.path.name):
        try:
            if words := standin_sentence(facts):
                _tell(listen, f"Warning: {words}")
            for request in requests:
                failures += _measured(request, facts, listen, finished)
        except KeyboardInterrupt:
            message = f"Stopped: {len(rows)} of {format_count(n_tests, 'test')} had finished."
            raise InterruptedSweepError(message, hint="run the same command again to measure them anew") from None
    if failures:
        which = "No test" if not rows else f"{len(failures)} of {format_count(n_tests, 'test')}"
        raise NothingWorksError(
            f"{which} of {facts.path.name} could {'not ' if rows else ''}be measured: {failures[0]}.",
            hint="try fewer layers on the device with -ngl, or --repack 0",
        )
    return tuple(rows)


def tests_of(request: RowsRequest) -> tuple[RulerTest, ...]:
    """In llama-bench's order: for each depth all that read, all that write, all that do both."""
    return tuple(
        RulerTest(n_prompt=n_prompt, n_gen=n_gen, n_depth=n_depth)
        for n_depth in request.n_depth
        for n_prompt, n_gen in (*((n, 0) for n in request.n_prompt), *((0, n) for n in request.n_gen), *request.n_pg)
        if n_prompt or n_gen
    )


def import_rows(path: Path) -> ImportedRows:
    """Keep what a file of llama-bench holds, apart from this machine's own. Raises UsageError, StoreError."""
    found = logs.read_rows(path)
    stored_path, is_known = store.keep_imported(store.data_dir(), found.rows)
    machines = list(dict.fromkeys(store.machine_of(row) or "unknown" for row in found.rows))
    n_more = len(machines) - _N_SHOWN_MACHINES
    shown = "; ".join(machines[:_N_SHOWN_MACHINES]) + (f" and {n_more} more" if n_more > 0 else "")
    return ImportedRows(
        path=path,
        stored_path=stored_path,
        rows=found.rows,
        machine=_printable(shown),
        is_known=is_known,
        n_broken=found.n_broken,
        first_broken=found.first_broken,
    )


def stored_rows(text_format: str) -> str:
    """Own rows, then the imported ones, as llama-bench prints them. Raises StoreError, UsageError.

    As md each machine has a table of its own under a line that names it; in jsonl a field tells what was imported. The
    other forms have no place for it.
    """
    stored = store.read_stored_rows(store.data_dir())
    mark = {f"{OUR_PREFIX}imported": True}
    imported = [
        dataclasses.replace(row, extra={**row.extra, **mark}) for rows in stored.imported.values() for row in rows
    ]
    if text_format != "md" or not (stored.own or imported):
        return render_rows([*stored.own, *imported], text_format)
    tables: dict[str, list[BenchRow]] = {}
    for rows, how in ((stored.own, "measured here"), (imported, "imported")):
        for row in rows:
            tables.setdefault(f"{_printable(store.machine_of(row)) or 'unknown machine'}, {how}:", []).append(row)
    return "\n".join(f"{title}\n\n{render_rows(rows, 'md')}" for title, rows in tables.items())


def render_rows(rows: Sequence[BenchRow], text_format: str) -> str:
    """`rows` as llama-bench prints them. Raises UsageError for a form that it does not have.

    Above the table stands what stand-ins there are among them; the other forms are for programs and take no line.
    """
    if text_format not in ROW_FORMATS:
        raise UsageError(f"{text_format!r} is no form of llama-bench.", hint=f"use one of {', '.join(ROW_FORMATS)}")
    text = export.render_rows(rows, text_format, _n_threads_unasked())
    return f"{_standin_lines(rows)}{text}" if text_format == "md" else text


def _standin_lines(rows: Sequence[BenchRow]) -> str:
    """A line for each stand-in among `rows`; one that was imported may say anything of itself."""
    found = dict.fromkeys(str(row.extra[STANDS_FOR]) for row in rows if row.extra.get(STANDS_FOR))
    return "".join(f"{_printable(words)}: {STANDIN_LIMITS}\n\n" for words in found)


def _printable(text: str) -> str:
    return "".join(c for c in text if c.isprintable())


def _check(request: RowsRequest, tests: Sequence[RulerTest]) -> None:
    if not tests:
        raise UsageError("There is nothing to test: no prompt to read and nothing to write.", hint="set -p, -n or -pg")
    if request.flash_attn not in _FLASH_ATTN:
        raise UsageError(f"-fa {request.flash_attn!r} is not known.", hint=f"use one of {', '.join(_FLASH_ATTN)}")
    for option, name in {"-ctk": request.type_k, "-ctv": request.type_v}.items():
        if name not in _CACHE_TYPES:
            raise UsageError(f"{option} {name!r} is not known.", hint=f"use one of {', '.join(_CACHE_TYPES)}")
    least = {"-b": request.n_batch, "-ub": request.n_ubatch, "-r": request.n_reps, "-t": request.n_threads}
    for option, value in least.items():
        if value is not None and value < 1:
            raise UsageError(f"{option} {value} is less than 1.", hint="give it a number from 1 up")


def _measured(
    request: RowsRequest, facts: GgufFacts, listen: Callable[[Said], None], finished: Callable[[BenchRow], None]
) -> list[str]:
    """Hand the row of each test to `finished`; returns why the others failed."""
    failures: list[str] = []
    command = request.worker_command or WORKER_COMMAND
    with RowsRunner(facts, rebuild_line, endpoints=request.endpoints, command=command) as runner:
        try:
            engine, _ = runner.describe()
            for test in tests_of(request):
                try:
                    row = _row(request, facts, engine, test, runner)
                except RulerFailedError as error:
                    failures.append(error.reason)
                    _tell(listen, f"{name_of(test)} failed: {error.reason}.")
                    continue
                with deaf():
                    finished(row)
                _tell(listen, f"{name_of(test)}: {row.fields['avg_ts']:.2f} ± {row.fields['stddev_ts']:.2f} t/s")
        except EngineMissingError as error:
            raise EngineMissingError(str(error), hint=rebuild_line()) from None
        except KeyboardInterrupt:
            with deaf():
                runner.kill()
            raise
    return failures


def name_of(test: RulerTest) -> str:
    """pp512, tg128, pp512+tg128 @ d4096."""
    parts = [f"pp{test.n_prompt}"] if test.n_prompt else []
    parts += [f"tg{test.n_gen}"] if test.n_gen else []
    return "+".join(parts) + (f" @ d{test.n_depth}" if test.n_depth else "")


def _tell(listen: Callable[[Said], None], text: str) -> None:
    with contextlib.suppress(OSError):  # a display that vanished ends no measurement
        listen(Said(text=text))


def settings_of(request: RowsRequest) -> Settings:
    """What llama-bench loads and opens with; it sets n_ctx for each test."""
    n_threads = request.n_threads or _n_threads_unasked()
    return Settings(
        n_gpu_layers=request.n_gpu_layers,
        n_cpu_moe=request.n_cpu_moe,
        tensor_split=request.tensor_split,
        load_mode="auto",
        use_extra_bufts=request.repack,
        n_batch=request.n_batch,
        n_ubatch=request.n_ubatch,
        n_threads=n_threads,
        n_threads_batch=n_threads,
        flash_attn_type=_FLASH_ATTN[request.flash_attn][0],
        type_k=request.type_k,
        type_v=request.type_v,
        swa_full=False,
    )


def _n_threads_unasked() -> int:
    """Physical cores that this process may use; RowsRequest says where llama-bench takes others."""
    cpu = probe_host(measure=False).cpu
    return cpu.n_physical_cores or cpu.n_logical_cores


def _row(request: RowsRequest, facts: GgufFacts, engine: EngineBuild, test: RulerTest, runner: RowsRunner) -> BenchRow:
    settings = settings_of(request)
    began_at = datetime.now(UTC)
    warmup, *reps = runner.ruler(settings, test, request.n_reps, timeout_s=_TEST_S)
    values = {
        **_UNASKED,
        **(warmup.described or {}),
        "model_filename": os.fsencode(request.path).decode("utf-8", "replace"),  # a name need not be text
        "n_batch": request.n_batch,
        "n_ubatch": request.n_ubatch,
        "n_threads": settings.n_threads,
        "type_k": request.type_k,
        "type_v": request.type_v,
        "n_gpu_layers": request.n_gpu_layers,
        "n_cpu_moe": request.n_cpu_moe,
        "flash_attn": _FLASH_ATTN[request.flash_attn][1],
        "tensor_split": _split_words(request.tensor_split),
        "tensor_buft_overrides": "none",
        "repack": request.repack,
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
        "n_depth": test.n_depth,
        "test_time": f"{began_at:%Y-%m-%dT%H:%M:%SZ}",
    }
    standin = standin_words(facts.stands_for, facts.n_layer)
    if standin:  # here, as it is the one text by which every form names the model
        values["model_type"] = f"{values['model_type']}, stand-in"
    samples_ns = tuple(rep.ns for rep in reps)
    samples_ts = tuple(1e9 * (test.n_prompt + test.n_gen) / ns for ns in samples_ns)
    values |= {"avg_ns": sum(samples_ns) // len(samples_ns), "stddev_ns": int(_deviation(samples_ns))}
    values |= {
        "avg_ts": round(math.fsum(samples_ts) / len(samples_ts), 6),
        "stddev_ts": round(_deviation(samples_ts), 6),
    }
    return BenchRow(
        fields={name: values[name] for name in FIELDS},
        samples_ns=samples_ns,
        samples_ts=tuple(float(f"{one:g}") for one in samples_ts),
        extra={
            f"{OUR_PREFIX}version": offloadtune.__version__,
            f"{OUR_PREFIX}engine": engine.version,
            f"{OUR_PREFIX}build_id": engine.build_id,
            f"{OUR_PREFIX}gguf_id": facts.gguf_id,
            f"{OUR_PREFIX}warmup_ns": warmup.ns,
            **({STANDS_FOR: standin} if standin else {}),
        },
    )


def _split_words(shares: Sequence[float] | None) -> str:
    """As llama-bench has it, to two places: up to the last share that is not 0."""
    n_shown = max((i + 1 for i, share in enumerate(shares or ()) if share), default=0)
    return "/".join(f"{share:.2f}" for share in (shares or ())[:n_shown]) or "0.00"


def _deviation(samples: Sequence[float]) -> float:
    """llama-bench's standard deviation: 0 for one sample, else over n - 1."""
    if len(samples) < 2:
        return 0.0
    mean = math.fsum(samples) / len(samples)
    return math.sqrt(math.fsum((one - mean) ** 2 for one in samples) / (len(samples) - 1))


_UNASKED: dict[str, Any] = {
    "build_commit": "unknown",
    "build_number": 0,
    "cpu_mask": "0x0",
    "cpu_strict": False,
    "poll": 50,
    "split_mode": "layer",
    "main_gpu": 0,
    "no_kv_offload": False,
    "devices": "auto",
    "load_mode": "auto",
    "lazy_mode": "auto",
    "embeddings": False,
    "no_op_offload": 0,
    "no_host": False,
    "fit_target": 0,
    "fit_min_ctx": 0,
}
"""What llama-bench does unasked. Built without git it knows no commit, as the engine out of a package does not."""
