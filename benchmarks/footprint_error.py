"""How far the footprint is from what engines printed: every published log in data/memory_records.csv, and own trials.

Caches, weights and compute buffers of each log whose model is in the catalogue, predicted and logged, then how many
agree, and a line for each that does not. Logs of llama.cpp since mid-2025, which the rules describe, are told apart
from older engines and forks. Trials of sweeps on this machine follow, if any are stored.

Ends with 1 when a bar is missed in the logs that the rules describe: every cache within 0.6 MiB, weights of plain
quantisations within 0.5 %, half of the compute buffers within 5 %, with and without the logs from which terms of the
rule or settings of the log were found (`FOUND_HERE`).

    python benchmarks/footprint_error.py
"""

from __future__ import annotations

import csv
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from offloadtune import catalogue, footprint, store
from offloadtune.errors import OffloadTuneError
from offloadtune.footprint import BYTES_OF_32, Footprints, Grid
from offloadtune.gguf import read_gguf
from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.records import GgufFacts, Outcome, Settings, TrialResult

LOGS = Path(__file__).parent / "data" / "memory_records.csv"
MIB = 1024**2
CACHE_BAR_MIB = 0.6
"""Logs have two decimals for each of several buffers."""
WEIGHTS_BAR_FRAC = 0.005
COMPUTE_BAR_FRAC = 0.05
FOUND_HERE = {25, 27, 28, 29, 32, 33, 34, 36, 45, 46}
"""Lines of logs whose compute buffers had a say in the rule (hybrids on CUDA and Vulkan) or in how they are read."""
DESCRIBED_SINCE = "2025-06"
"""Window caches of llama.cpp are short since May 2025."""

_DEVICES = {"CUDA": "CUDA0", "GPU": "CUDA0", "ROCm": "ROCm0", "Vulkan": "Vulkan0", "Metal": "Metal", "OpenCL": "OpenCL"}
_QUANTS = {"Q4_0 (QAT)": "Q4_0", "MXFP4": "MXFP4_MOE", "Q4": "Q4_K_M"}
"""What a log calls a quantisation that has another name with llama-quantize."""
_SEPARATE = {25}
"""Lines of logs of llama-server with a cache for each slot: the mask there has a quarter of the context's cells."""
_IMATRIX = {"glm-4-32b-0414", "qwen3-32b Q4_0", "gemma-3-27b Q4_0"}
"""Files whose makers had an importance matrix, as their ffn_down tensors show."""


# --- a log ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Log:
    """A published log, and the settings it was made with as they took effect.

    `i_line` is the line in the file. `shares` are those of the blocks on each device.
    """

    i_line: int
    row: dict[str, str]
    facts: GgufFacts
    n_gpu_layers: int
    n_cpu_moe: int = 0
    devices: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.row['shape_key']} {self.row['quant']}".strip()

    @property
    def is_fork(self) -> bool:
        return "ik_llama" in self.row["engine"]

    @property
    def is_recent(self) -> bool:
        return (self.row["date"] or "0") >= DESCRIBED_SINCE

    @property
    def is_described(self) -> bool:
        """Whether it is of an engine that the rules describe."""
        return self.is_recent and not self.is_fork

    @property
    def has_experts_on_host(self) -> bool:
        """Whether all blocks are offloaded and yet more than the embedding lies on the host."""
        is_full = self.n_gpu_layers > self.facts.n_layer and any(self.facts.expert_bytes)
        return is_full and (self.mib("cpu_model_mib") or 0.0) > 2 * self.facts.embedding_bytes / MIB

    @property
    def first_block(self) -> int:
        """The first offloaded block."""
        return self.facts.n_layer + 1 - min(self.n_gpu_layers, self.facts.n_layer + 1)

    @property
    def limits_outputs(self) -> bool:
        """Whether logits were reserved for the slots only: by llama-server, or there was no room for more.

        It has done so since early 2026.
        """
        is_server = "llama-server" in self.row["engine"] or self.row["build"].startswith("b10818")
        device_mib = self.mib("gpu_compute_mib")
        logits_mib = 4 * self.facts.n_vocab * int(self.row["n_ubatch"] or 512) / MIB
        return self.is_recent and (is_server or 0.0 < (device_mib or 0.0) < logits_mib)

    @property
    def n_states(self) -> int:
        """Recurrent states kept for a sequence: speculative decoding with a prediction block rolls back to two."""
        return 3 if "MTP" in self.row["model"] and "off" not in self.row["model"] else 1

    def mib(self, *columns: str) -> float | None:
        """The sum of columns in MiB; None where none of them is given."""
        values = [float(self.row[column]) for column in columns if self.row[column]]
        return sum(values) if values else None

    @property
    def per_device(self) -> dict[str, dict[str, float]]:
        """Device -> kind -> MiB of the logs with several, but for weights that no single one holds (CUDA_Split)."""
        found = {}
        for part in filter(None, self.row["per_device"].split(";")):
            name, _, kinds = part.partition(":")
            pairs = [kind.split("=") for kind in kinds.split("|")]
            found[name] = {kind: sum(map(float, value.split("+"))) for kind, value in pairs if value}
        return {name: kinds for name, kinds in found.items() if kinds.keys() - {"model"}}

    def reckon(self, n_cpu_moe: int | Sequence[int] | None = None, shares: Sequence[float] = ()) -> Footprints:
        """Its footprint, or those for each number in `n_cpu_moe`."""
        row, slots = self.row, int(self.row["n_slots"] or 1)
        is_flash = row["fa"] not in {"", "0"} or (row["fa"] == "" and self.is_recent)
        n_batch = int(row["n_batch"] or 2048)
        grid = Grid.over(
            self.facts.n_layer,
            n_gpu_layers=self.n_gpu_layers,
            n_cpu_moe=self.n_cpu_moe if n_cpu_moe is None else n_cpu_moe,
            n_ctx=int(row["n_ctx"] or 4096),
            n_batch=n_batch,
            n_ubatch=min(int(row["n_ubatch"] or 512), n_batch),
            n_seq_max=slots,
            n_outputs_max=slots if self.limits_outputs else 0,
            flash=is_flash,
            k32=BYTES_OF_32[row["type_k"]],
            v32=BYTES_OF_32[row["type_v"]],
            unified=self.limits_outputs and self.i_line not in _SEPARATE,
            swa_full=not self.is_described or "swa-full" in row["notes"],
        )
        backends = [footprint.backend_of(name) for name in self.devices] or [footprint.HOST]
        if self.is_fork:  # which neither pipelines nor has devices work for the host
            backends = [replace(backend, offloads_ops=False) for backend in backends]
        return footprint.reckon(self.facts, grid, backends, shares or self.shares or None)


def logs(path: Path = LOGS) -> Iterator[Log]:
    """Every log of `path` whose model is in the catalogue."""
    with path.open(encoding="utf-8", newline="") as file:
        for i, row in enumerate(csv.DictReader(file)):
            if row["shape_key"]:
                yield log_of(i + 2, row)


def log_of(i_line: int, row: dict[str, str]) -> Log:
    """The log in line `i_line` of the file; what it does not say of the placement follows from its buffers."""
    facts = _facts(row)
    log = Log(i_line=i_line, row=row, facts=facts, n_gpu_layers=0)
    counted = re.match(r"\d+", row["ngl"])
    n_gpu_layers = int(counted[0]) if counted else facts.n_layer + 1
    if 0 < n_gpu_layers <= facts.n_layer and not log.is_recent:
        n_gpu_layers += 1  # which then counted blocks alone while one was left on the host
    devices = tuple(log.per_device) or tuple(filter(None, [_DEVICES.get(row["backend"])]))
    log = replace(log, n_gpu_layers=n_gpu_layers if devices else 0, devices=devices)
    log = replace(log, n_cpu_moe=_n_cpu_moe(log))
    return replace(log, shares=_shares(log)) if len(devices) > 1 else log


def _facts(row: dict[str, str]) -> GgufFacts:
    """The model in the logged quantisation, or in Q4_K_M where that has no name of llama-quantize's."""
    key = row["shape_key"] + ("-mtp" if "MTP" in row["model"] else "")
    quant = plain_quant(row) or "Q4_K_M"
    is_known = bool({key, f"{key} {quant}"} & _IMATRIX)
    return facts_of_shape(key, quant, has_imatrix=True if is_known else None)


def plain_quant(row: dict[str, str]) -> str | None:
    """llama-quantize's name of the logged quantisation, None where it has none."""
    name = _QUANTS.get(row["quant"], row["quant"])
    return name if name in catalogue.QUANTS else None


def _n_cpu_moe(log: Log) -> int:
    """Blocks with their experts on the host: as said, else what the devices' logged weights come closest to."""
    if said := re.search(r"n-cpu-moe (\d+)", log.row["notes"]):
        return int(said[1])
    if not log.has_experts_on_host:
        return 0
    weights = log.reckon(range(log.facts.n_layer + 1)).weights_bytes.sum(axis=0)
    return int(np.argmin(np.abs(weights / MIB - (log.mib("gpu_model_mib") or 0.0))))


def _shares(log: Log) -> tuple[float, ...]:
    """Shares of two devices, by the blocks whose caches and (where those leave a choice) weights the first logged."""
    first = next(iter(log.per_device.values()))
    has_state = "kv+rs" in first
    logged = first["kv+rs"] if has_state else first.get("kv", 0.0)

    def distance(n_first: int) -> tuple[float, float]:
        found = log.reckon(shares=(n_first, log.n_gpu_layers - n_first))
        weights = abs(found.weights_bytes[0, 0] / MIB - first.get("model", 0.0))
        cache = (found.kv_cache_bytes[0, 0] - _state_bytes(log, 0, n_first) * (not has_state)) / MIB
        return round(abs(float(cache) - logged)), float(weights)

    best = min(range(1, log.n_gpu_layers), key=distance)
    return (float(best), float(log.n_gpu_layers - best))


def _state_bytes(log: Log, begin: int = 0, end: int | None = None) -> int:
    """Recurrent states of the blocks [begin, end) for all slots."""
    states = footprint.anatomy_of(log.facts).state_bytes[begin:end]
    return int(states.sum()) * int(log.row["n_slots"] or 1)


# --- predicted and logged ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure, predicted and logged or measured.

    `kind` is cache, weights, other weights (a mixture of which we know the name alone), compute or host compute.
    """

    name: str
    kind: str
    where: str
    predicted_mib: float
    logged_mib: float
    i_line: int = 0
    is_described: bool = True

    @property
    def error_mib(self) -> float:
        return self.predicted_mib - self.logged_mib

    @property
    def error_frac(self) -> float:
        return self.error_mib / self.logged_mib if self.logged_mib else float(self.error_mib != 0)

    @property
    def is_hit(self) -> bool:
        if self.kind == "cache":
            return abs(self.error_mib) <= CACHE_BAR_MIB
        return abs(self.error_frac) <= (WEIGHTS_BAR_FRAC if "weights" in self.kind else COMPUTE_BAR_FRAC)


def compared(log: Log) -> Iterator[Compared]:
    """All figures of a log that can be compared."""
    found = log.reckon()
    one = Compared(
        name=log.name,
        kind="",
        where="",
        predicted_mib=0,
        logged_mib=0,
        i_line=log.i_line,
        is_described=log.is_described,
    )
    yield from _caches(log, found, one)
    if _has_weights(log):
        yield from _weights(log, found, one)
    yield from _computes(log, found, one)


def _caches(log: Log, found: Footprints, one: Compared) -> Iterator[Compared]:
    """Devices and host together where nothing else is known; states where the log tells them."""
    logged = log.mib("gpu_kv_mib", "cpu_kv_mib")
    if logged is None or not log.row["n_ctx"]:
        return
    predicted = float(found.kv_cache_bytes.sum() + found.host_kv_cache_bytes.sum()) / MIB
    rolled_back = log.mib("gpu_rs_mib", "cpu_rs_mib")
    states = _state_bytes(log) / MIB
    predicted += states * (log.n_states - 1) if rolled_back else -states
    logged += rolled_back or 0.0
    draft = _draft_cache_mib(log)
    yield replace(one, kind="cache", where="all", predicted_mib=predicted + draft, logged_mib=logged)
    if log.mib("cpu_kv_mib") and log.devices:
        on_host = float(found.host_kv_cache_bytes[0]) / MIB - _state_bytes(log, 0, log.first_block) / MIB
        yield replace(one, kind="cache", where="host", predicted_mib=on_host, logged_mib=log.mib("cpu_kv_mib") or 0.0)


def _draft_cache_mib(log: Log) -> float:
    """The cache of a prediction block in f16, where the log adds that of the draft's context."""
    if "MTP layer f16" not in log.row["notes"]:
        return 0.0
    n_values = int(footprint.anatomy_of(log.facts).n_values_k.max()) * 2
    return 2.0 * n_values * int(log.row["n_ctx"]) / MIB


OTHER_MIXTURES = {
    "qwen3-30b-a3b Q6_K": "0.6 % more than llama-quantize's, so its embedding or output is probably Q8_0",
    "mixtral-8x7b Q5_K_M": "made before llama.cpp told the experts' ffn_down apart",
    "qwen3.8-27b Q5_K_M": "its embedding takes 682 MiB, that of llama-quantize's Q5_K_M 834",
    "qwen3.8-27b Q4_K_S": "its embedding takes 521 MiB, that of llama-quantize's Q4_K_S 682",
    "qwen3.6-35b-a3b MXFP4": "the experts of its first blocks take 505 MiB a block, in MXFP4 they would take 408",
    "qwen3-235b-a22b Q4_K_M": "not known; 1.8 % more than llama-quantize's",
}
"""Logs of files that llama-quantize did not make this way, for all that their names say, and the mark of it."""


def _has_weights(log: Log) -> bool:
    """Whether the log's weights can be compared. With a file mapped, CPU_Mapped is a span of it and holds too much."""
    is_known = plain_quant(log.row) is not None and bool(log.row["gpu_model_mib"])
    return is_known and "CPU_Mapped" not in log.row["notes"]


def _weights(log: Log, found: Footprints, one: Compared) -> Iterator[Compared]:
    device, host = log.mib("gpu_model_mib") or 0.0, log.mib("cpu_model_mib")
    kind = "other weights" if log.name in OTHER_MIXTURES else "weights"
    predicted = [found.weights_bytes.sum() / MIB if log.devices else 0.0, found.host_weights_bytes.sum() / MIB]
    if log.row["backend"] == "Metal":  # maps the whole file and counts it all
        yield replace(one, kind=kind, where="file", predicted_mib=log.facts.tensor_bytes / MIB, logged_mib=device)
    elif host is None:
        yield replace(one, kind=kind, where="devices", predicted_mib=float(predicted[0]), logged_mib=device)
    else:
        yield replace(one, kind=kind, where="all", predicted_mib=float(sum(predicted)), logged_mib=device + host)


def _computes(log: Log, found: Footprints, one: Compared) -> Iterator[Compared]:
    """Each device's compute buffer, and the host's."""
    if not log.row["n_ctx"]:
        return
    logged = {name: kinds.get("compute") for name, kinds in log.per_device.items()}
    if not logged and log.devices:
        logged = {log.devices[0]: log.mib("gpu_compute_mib")}
    for i, (name, mib) in enumerate(logged.items()):
        if mib:
            predicted = float(found.compute_bytes[i, 0]) / MIB
            yield replace(one, kind="compute", where=name, predicted_mib=predicted, logged_mib=mib)
    if on_host := log.mib("host_compute_mib"):
        predicted = float(found.host_compute_bytes[0]) / MIB
        yield replace(one, kind="host compute", where="host", predicted_mib=predicted, logged_mib=on_host)


# --- own trials ----------------------------------------------------------------------------------------------------


def trials() -> Iterator[Compared]:
    """Each stored trial's weights, cache and compute on its device, where its file still is what it was."""
    for path in sorted((store.data_dir() / "sweeps").glob("*/*.jsonl")):
        try:
            content = store.read_journal(path)
            facts = read_gguf(content.header.gguf_path)
        except OffloadTuneError:
            continue
        if facts.gguf_id == content.header.gguf_id:
            for result in content.results:
                yield from of_trial(facts, result)


def of_trial(facts: GgufFacts, result: TrialResult) -> Iterator[Compared]:
    """Predicted and measured of one trial on one device; those on several devices are left out."""
    settings = result.trial.settings
    devices = [use for use in result.memory if not use.is_host]
    if result.outcome is not Outcome.OK or len(devices) != 1:
        return
    effective = {key: value for key, value in result.effective if key in Settings.__dataclass_fields__}
    grid = Grid.of((settings.replace(**effective),), facts.n_layer)
    found = footprint.reckon(facts, grid, [footprint.backend_of(devices[0].device)])
    name = f"{facts.path.name} n_gpu_layers {settings.n_gpu_layers} n_ctx {settings.n_ctx}"
    figures = (
        ("weights", found.weights_bytes, devices[0].weights_bytes),
        ("cache", found.kv_cache_bytes, devices[0].kv_cache_bytes),
        ("compute", found.compute_bytes, devices[0].compute_bytes),
    )
    for kind, predicted, measured in figures:
        yield Compared(
            name=name,
            kind=kind,
            where=devices[0].device,
            predicted_mib=float(predicted[0, 0]) / MIB,
            logged_mib=measured / MIB,
        )


# --- the report ----------------------------------------------------------------------------------------------------

NOT_KNOWN = "not known"
_LENT_UNKNOWN = "the matrices lent to the device are of a dynamic mixture, their sizes not known"
_DRAFT = "the log adds the draft's context, as its cache shows"
_IN_FORK = f"{NOT_KNOWN}, a fork"
WHY = {
    (2, "compute"): "its engine had no scheduler yet and reserved one scratch buffer",
    (13, "host compute"): _IN_FORK,
    (18, "compute"): _IN_FORK,
    (18, "host compute"): _IN_FORK,
    (19, "host compute"): _IN_FORK,
    (20, "compute"): _IN_FORK,
    (22, "compute"): _LENT_UNKNOWN,
    (23, "compute"): _LENT_UNKNOWN,
    (24, "compute"): _LENT_UNKNOWN,
    (34, "compute"): _DRAFT,
    (34, "host compute"): _DRAFT,
    (41, "cache"): "its engine did not round 16000 cells up to 16128",
    (
        55,
        "host compute",
    ): "freed memory in pieces too small for the logits: llama-cpp-python 0.3.36 takes 240.26 MiB for this",
}
"""(line of the file, kind) -> why the figure is missed, as far as checked."""


def why(one: Compared, log: Log) -> str:
    """Why a figure is missed: said above, or the rule of an older engine that gives it."""
    if one.kind == "other weights":
        return OTHER_MIXTURES[one.name]
    if known := WHY.get((one.i_line, one.kind)):
        return known
    rules = _older_host_rules(log) if one.where == "host" else _older_rules(log)
    for rule, mib in rules.items():
        if "compute" in one.kind and abs(mib - one.logged_mib) <= 0.005 * one.logged_mib:
            return f"it is {rule} ({mib:.2f} MiB)"
    return NOT_KNOWN


def _older_rules(log: Log) -> dict[str, float]:
    """What engines up to 2025 were found to reserve on a device, in MiB."""
    facts, row = log.facts, log.row
    anatomy, n_ctx, n = footprint.anatomy_of(facts), int(row["n_ctx"] or 0), int(row["n_ubatch"] or 512)
    embedding, logits, cell = (4 * n * width / MIB for width in (facts.n_embd, facts.n_vocab, n_ctx))
    width_k, width_v = int(anatomy.n_values_k.max()), int(anatomy.n_values_v.max())
    of_heads = 4 * n * anatomy.n_head * int(anatomy.head_v.max()) / MIB
    scores = (anatomy.n_head + 1) * cell
    return {
        "logits and the embedding": logits + embedding,
        "logits and the embedding twice": logits + 2 * embedding,
        "logits, mask, the embedding twice, K and V": logits
        + cell / 2
        + 2 * embedding
        + 4 * n * (width_k + width_v) / MIB,
        "scores, mask, the embedding and Q twice": scores + 2 * (embedding + of_heads),
        "scores, mask, the embedding twice and Q": scores + 2 * embedding + of_heads,
        "scores, mask, the embedding and Q twice, and the copies of pipelining": scores
        + 2 * (embedding + of_heads)
        + 3 * cell
        + 4 * embedding,
    }


def _older_host_rules(log: Log) -> dict[str, float]:
    """What engines up to 2025 were found to reserve in main memory, in MiB."""
    row, n = log.row, int(log.row["n_ubatch"] or 512)
    mask, embedding = 4 * n * int(row["n_ctx"] or 0) / MIB, 4 * n * log.facts.n_embd / MIB
    masks = {
        "one mask of 4 bytes a cell and the embedding": mask + embedding,
        "two masks of 4 bytes a cell and the embedding": 2 * mask + embedding,
        "three masks of 2 bytes a cell": 1.5 * mask,
    }
    return {**masks, **_older_rules(log)}


def line_of(one: Compared) -> str:
    mark = "" if one.is_hit else " *"
    return (
        f"{one.i_line or '':>4} {one.name:<32.32} {one.kind:<13} {one.where:<8} {one.predicted_mib:>10.2f}"
        f" {one.logged_mib:>10.2f} {one.error_mib:>+9.2f} {one.error_frac:>+8.1%}{mark}"
    )


def summary(title: str, rows: Sequence[Compared]) -> Iterator[str]:
    """What of each kind agrees, in a few lines."""
    yield title
    for kind, bar in (("cache", "within 0.6 MiB"), ("weights", "within 0.5 %"), ("other weights", "within 0.5 %")):
        of_kind = [one for one in rows if one.kind == kind]
        yield f"  {kind}: {sum(one.is_hit for one in of_kind)} of {len(of_kind)} {bar}"
    groups = {kind: [one for one in rows if one.kind == kind] for kind in ("compute", "host compute")}
    if any(one.i_line in FOUND_HERE for one in groups["compute"]):
        groups["compute of logs that had no say in the rule"] = _unheard(groups["compute"])
    for kind, of_kind in groups.items():
        errors = sorted(abs(one.error_frac) for one in of_kind)
        if errors:
            p90 = errors[min(int(0.9 * len(errors)), len(errors) - 1)]
            yield f"  {kind}: median error {statistics.median(errors):.1%}, 90 % within {p90:.1%}, of {len(errors)}"


def _unheard(rows: Sequence[Compared]) -> list[Compared]:
    return [one for one in rows if one.i_line not in FOUND_HERE]


def missed_bars(rows: Sequence[Compared]) -> list[str]:
    """What the rules promise of the engine they describe and did not keep."""
    missed = [f"{one.kind} of line {one.i_line}" for one in rows if one.kind in {"cache", "weights"} and not one.is_hit]
    computes = [one for one in rows if one.kind == "compute"]
    for some in (computes, _unheard(computes)):
        median = statistics.median([abs(one.error_frac) for one in some] or [0.0])
        if median > COMPUTE_BAR_FRAC:
            missed.append(f"compute: median error {median:.1%} of {len(some)}")
    return missed


def main() -> int:
    """Print the tables; 1 when a bar is missed."""
    by_line = {log.i_line: log for log in logs()}
    rows = [one for log in by_line.values() for one in compared(log)]
    described = [one for one in rows if one.is_described]
    older = [one for one in rows if not one.is_described]
    groups = (("llama.cpp since mid-2025, which the rules describe", described), ("older engines and forks", older))
    print(f"line {'log':<32} {'kind':<13} {'where':<8} {'predicted':>10} {'logged':>10} {'MiB':>9} {'error':>8}")
    for title, group in groups:
        print(title)
        print("\n".join(map(line_of, group)))
    for title, group in groups:
        print("\n".join(["", *summary(title, group)]))
        for one in group:
            if not one.is_hit:
                reason = why(one, by_line[one.i_line])
                print(f"  missed: line {one.i_line}, {one.kind} of {one.name}, {one.error_mib:+.2f} MiB: {reason}")
    own = list(trials())
    print("\ntrials on this machine" if own else "\nno trials stored")
    print("\n".join([*map(line_of, own), *(summary("of these", own) if own else ())]))
    missed = missed_bars(described)
    print("\nall bars kept" if not missed else f"\nbars missed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
