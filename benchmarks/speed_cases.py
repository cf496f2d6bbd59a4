"""Published speeds as the law sees them: each row of data/speed_records.csv with its rig and the amounts of its terms.

What a row leaves unsaid is read as follows. Main memory is what the row says, else what the CPU's maker allows at most
on its platform (`_PLATFORM_GB_PER_S`), else unknown. A number of layers counts the output first; in builds up to 2025
it counts blocks, and the output comes last. Rows of LocalScore are means over nine prompts, and their best of several
submitters. Flash attention is as the row says, else on, which is the default since 2025. Rows that do not say where
their weights lay are left out.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offloadtune.catalogue import Card, find_card
from offloadtune.errors import UnknownNameError
from offloadtune.footprint import BYTES_OF_32, Grid
from offloadtune.pipeline.rigs import rates_of_card
from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.records import GgufFacts
from offloadtune.speed.terms import Work, amounts_of, terms_of
from offloadtune.speeds import HostRates, Phase, Rig

Floats = NDArray[np.float64]

RECORDS = Path(__file__).parent / "data" / "speed_records.csv"
OLD_ENGINE = "older llama.cpp"
"""Kept caches in main memory, or computed attention there, where llama.cpp does not now: told apart, and in no fit."""

LOCALSCORE_PROMPTS = (1024, 4096, 2048, 2048, 1024, 1280, 384, 64, 16)
LOCALSCORE_DEPTH = 1840
"""Of a token on average over its nine tests, prompts and half of what was generated."""

_GIB = 1024**3
_OTHER_QUANTS = {"Q4_0/IQ4": "Q4_0", "Q2_K_L": "Q2_K"}
_PLATFORM_GB_PER_S = {
    "i7-11700F": 51.2,  # DDR4-3200, two channels
    "i7-12700KF": 76.8,  # DDR5-4800
    "i7-13700H": 83.2,
    "EPYC 9135": 576.0,  # DDR5-6000, twelve channels
    "EPYC 9454P": 460.8,
    "Ryzen 7 3700X": 51.2,
    "Ryzen 7 5700X": 51.2,
    "Ryzen 7 5800X": 51.2,
    "Ryzen 7 7800X3D": 83.2,
    "Ryzen 7800X3D": 83.2,
    "Ryzen 9 3900X": 51.2,
    "Ryzen 9 5900X": 51.2,
    "Ryzen 9 5950X": 51.2,
    "Ryzen 9 7950X": 83.2,
    "Ryzen 7950X": 83.2,
    "Ryzen 9 7900X": 83.2,
    "Ryzen 9 9950X": 89.6,
    "Threadripper 3960X": 102.4,  # DDR4-3200, four channels
    "Ultra 7 265K": 102.4,
    "Ultra 9 285K": 102.4,
    "i9-14900HX": 89.6,
    "E5-2697 v2": 59.7,  # DDR3-1866, four channels
    "E5-2680 v4": 76.8,
    "Platinum 8280": 140.8,
    "Raspberry Pi 5": 17.1,
    "i9-13900K": 89.6,
    "i9-9900X": 85.3,  # DDR4-2666, four channels
    "i5-12400F": 51.2,
    "i5-13600K": 89.6,
    "Ryzen 8945HS": 89.6,
    "i9-12900H": 76.8,
}
"""CPU -> GB/s of the fastest memory its maker allows, all channels."""

_LINK_GB_PER_S = {"i9-9900X": 15.75, "i7-8700": 7.88, "Ryzen 8945HS": 15.75}
"""CPU -> what the slot allows where that is less than the card's: PCIe 3 x16, PCIe 3 x8, PCIe 4 x8."""

_N_CORES = re.compile(r"([0-9]+)[ -](?:Core|threads)")
_N_CPU_MOE = re.compile(r"--n-cpu-moe (\d+)")
_BEST = re.compile(r"best ([0-9.]+)/([0-9.]+)")
_MEASURED_RAM = {"Ryzen 9950X"}
_DEPTH_IS_CONTEXT = ("llmfit", "sudoingX", "reddit", "inventivehq")
"""Sources whose column of depth holds the context's size."""

_AUTO_LAYERS = {("geerlingguy", "Llama-3.1 70B"): 45, ("unslothai", "Llama-3.3 70B"): 58}
"""Layers on the card where the source tells them in words."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One passage of a row: `amounts` (n_terms,) of `n_tokens`; rows that are means weigh them by `weight`."""

    weight: float
    n_tokens: float
    amounts: Floats


@dataclass(frozen=True, kw_only=True)
class Case:
    """One published speed.

    `gpu` is as the row has it, `card` the catalogue's name, "" for none. `kind` is full, partial, moe_cpu or cpu;
    `engine` what ran if not llama.cpp as it is now.
    """

    i_line: int
    author: str
    gpu: str
    card: str
    shape: str
    quant: str
    kind: str
    phase: Phase
    grade: str
    engine: str
    date: str
    n_gpu_layers: str
    flash: bool
    tok_per_s: float
    is_float: bool
    rig: Rig
    parts: tuple[Part, ...]
    notes: str

    @property
    def placed(self) -> str:
        """Its phase and where its weights lay, as errors are told apart."""
        where = "full" if self.kind == "full" else "offload" if self.rig.devices else "CPU"
        if self.phase is Phase.DECODE and where == "CPU":
            where = "offload"  # the same weights in the same memory
        return f"{self.phase.value} {where}"

    @property
    def maker(self) -> str:
        """Whose device: other engines have kernels of their own for each."""
        family = self.rig.devices[0].family if self.rig.devices else "cpu"
        of_others = ("apple", "gcn", "amd", "intel", "cpu")
        return family if family.startswith("rdna") else next((one for one in of_others if one in family), "nvidia")


def read_cases(
    path: Path = RECORDS, grades: str = "AB", *, is_flash_on: bool = False
) -> tuple[list[Case], Counter[str]]:
    """The cases of every row of these grades, and why others were left out.

    `is_flash_on` takes all for runs with flash attention, as plans by name do, whatever the row says.
    """
    cases, left_out = [], Counter[str]()
    with path.open(encoding="utf-8", newline="") as file:
        for i_line, row in enumerate(csv.DictReader(file), start=2):
            if row["grade"] not in grades:
                continue
            try:
                cases.append(_case(i_line, row | {"fa": "1"} if is_flash_on else row))
            except UnknownNameError as error:
                left_out[str(error)] += 1
            except _UnknownPlacementError as error:
                left_out[f"{error}: {row['source'][:40]}"] += 1
    return cases, left_out


class _UnknownPlacementError(Exception):
    """The row does not say where its weights lay."""


def _case(i_line: int, row: dict[str, str]) -> Case:
    facts = _facts(row["model"], row["quant"], float(row["file_gb"] or 0))
    rig = rig_of(row)
    phase = Phase.PREFILL if row["test"].startswith("pp") else Phase.DECODE
    engine = engine_of(row)
    is_old = not row["fa"] and (engine == "llamafile" or row["date"] < "2025-06")
    flash = row["fa"] != "0" and not is_old
    if "no-kv-offload 1" in row["notes"]:
        raise _UnknownPlacementError("Cache in main memory in an engine that is gone")
    if phase is Phase.PREFILL and row["ngl"] == "0" and rig.devices and not row["notes"]:
        raise _UnknownPlacementError("Whether the card read the prompt is not said")
    return Case(
        i_line=i_line,
        author=author_of(row["source"]),
        gpu=row["gpu"],
        card=" + ".join(card.name for card in cards_of(row)),
        shape=facts.name or "",
        quant=row["quant"],
        kind=row["offload"],
        phase=phase,
        grade=row["grade"],
        engine=engine,
        date=row["date"],
        n_gpu_layers=row["ngl"],
        flash=flash,
        tok_per_s=_tok_per_s(row, phase),
        is_float=row["quant"] in {"F16", "BF16", "F32"},
        rig=rig,
        parts=_parts(row, facts, rig, phase, flash=flash),
        notes=row["notes"],
    )


def author_of(source: str) -> str:
    """Who published a row: two looks at one repository are one source."""
    words = source.split()
    if words[0] == "public":  # pages without an address
        return " ".join(words[1:3])
    numbers = [word for word in words if word.startswith("#")]
    if numbers and "llama.cpp" in source:  # each thread has authors of its own
        return f"llama.cpp {numbers[0]}"
    return "/".join(words[0].split("/")[:2]) if "github" in source else words[0].split("/")[0]


def engine_of(row: dict[str, str]) -> str:
    """What ran, "" for llama.cpp's own programs."""
    build, notes = row["build"], row["notes"]
    is_lent = row["offload"] != "full" and row["test"].startswith("pp")
    if row["date"] < ("2024-06" if is_lent else "2023-12"):
        return OLD_ENGINE
    others = {"llamafile": "llamafile", "ik_llama": "ik_llama.cpp", "IPEX": "ipex", "ollama": "ollama"}
    return next((engine for word, engine in others.items() if word in build or word in notes), "")


def _tok_per_s(row: dict[str, str], phase: Phase) -> float:
    best = _BEST.search(row["notes"])
    if best:
        return float(best[2 if phase is Phase.PREFILL else 1])
    return float(row["tokens_per_s"])


# --- the machine ---------------------------------------------------------------------------------------------------


def cards_of(row: dict[str, str]) -> tuple[Card, ...]:
    """The catalogue's cards; one that the row spells without its memory is found by that."""
    if row["gpu"] == "none (CPU)":
        return ()
    names = row["gpu"].replace(" (ngl 0)", "").split(" + ")
    vram_bytes = round(float(row["gpu_vram_gb"]) * _GIB / len(names)) if row["gpu_vram_gb"] else None
    return tuple(find_card(name.strip(), vram_bytes=vram_bytes) for name in names)


def rig_of(row: dict[str, str]) -> Rig:
    backend = "Vulkan" if "Vulkan" in row["build"] else ""
    slot = next((gb * 1e9 for part, gb in _LINK_GB_PER_S.items() if part in row["cpu"]), None)
    devices = []
    for i, card in enumerate(cards_of(row)):
        rates = rates_of_card(card)
        rates = dataclasses.replace(rates, link_bytes_per_s=slot or rates.link_bytes_per_s)
        devices.append(dataclasses.replace(rates, name=f"{backend}{i}") if backend else rates)
    return Rig(devices=tuple(devices), host=_host_of(row))


def _host_of(row: dict[str, str]) -> HostRates:
    cpu = row["cpu"]
    n_cores = _N_CORES.search(cpu)
    stated = float(row["ram_bw_gbs"]) * 1e9 if row["ram_bw_gbs"] and row["ram_type"] != "unified" else None
    is_measured = cpu in _MEASURED_RAM and "measured" in row["notes"]
    if stated is None:
        stated = next((gb * 1e9 for part, gb in _PLATFORM_GB_PER_S.items() if part in cpu), None)
    return HostRates(
        peak_bytes_per_s=None if is_measured else stated,
        read_bytes_per_s=stated if is_measured else None,
        n_cores=int(n_cores[1]) if n_cores else None,
    )


# --- what ran ------------------------------------------------------------------------------------------------------


@functools.cache
def _facts(model: str, quant: str, file_gb: float) -> GgufFacts:
    """The header of the catalogue's shape, its tensors scaled to the size that the row says."""
    facts = facts_of_shape(model.removesuffix(" class"), _OTHER_QUANTS.get(quant, quant))
    scale = file_gb * 1e9 / facts.tensor_bytes if file_gb else 1.0
    if abs(scale - 1.0) < 0.01:
        return facts
    tensors = tuple(dataclasses.replace(one, n_bytes=round(one.n_bytes * scale)) for one in facts.tensors)
    return dataclasses.replace(facts, tensors=tensors, gguf_id=f"{facts.gguf_id}:{file_gb}")


def _parts(row: dict[str, str], facts: GgufFacts, rig: Rig, phase: Phase, *, flash: bool) -> tuple[Part, ...]:
    if row["test"] == "pp-mix":
        prompts: tuple[int, ...] = LOCALSCORE_PROMPTS
    else:
        digits = re.search(r"pp~?(\d+)", row["test"])
        prompts = (int(digits[1]) if digits else max(2048, int(row["n_ubatch"] or 0)),)
    if phase is Phase.DECODE:
        prompts = (1,)
    depth = depth_of(row, phase)
    n_ctx = max(depth + 4096, max(prompts) + depth + 512)
    work = Work.over(len(prompts), n_prompt=np.array(prompts), depth=depth, is_pinned=is_pinned(row))
    given = {
        "n_ctx": n_ctx,
        "n_batch": n_ctx,
        "n_ubatch": int(row["n_ubatch"] or 512),
        "flash": flash,
        "k32": BYTES_OF_32[row["type_kv"] or "f16"],
        "v32": BYTES_OF_32[row["type_kv"] or "f16"],
        "n_cpu_moe": _n_cpu_moe(row, facts.n_layer),
        "has_devices": bool(rig.devices),
        "swa_full": False,
    }
    n = n_layers(row, facts)
    amounts = _amounts(phase, facts, rig, work, n=n, given=given, is_old=has_old_meaning(row))
    n_tokens = [1.0] * len(prompts) if phase is Phase.DECODE else list(map(float, prompts))
    return tuple(
        Part(weight=1.0 / len(prompts), n_tokens=n_tokens[i], amounts=amounts[:, i]) for i in range(len(prompts))
    )


def _amounts(  # noqa: PLR0913 - what a row is read into
    phase: Phase, facts: GgufFacts, rig: Rig, work: Work, *, n: int, given: Mapping[str, object], is_old: bool
) -> Floats:
    """Amounts with `n` layers offloaded, of which the output is the last one by the old meaning."""

    def at(n_gpu_layers: int) -> Floats:
        grid = Grid.over(facts.n_layer, n_gpu_layers=np.full(len(work.depth), n_gpu_layers), **given)
        return amounts_of(phase, facts, grid, work, rig)

    if not is_old or not 0 < n <= facts.n_layer:
        return at(n)
    moved = at(1) - at(0)  # the output alone
    is_moved = [term.kind in {"weights", "flop"} for term in terms_of(phase, len(rig.devices))]
    return np.asarray(at(n + 1) - moved * np.array(is_moved)[:, None])


def n_layers(row: dict[str, str], facts: GgufFacts) -> int:
    """Layers offloaded, as the row counts them."""
    if row["ngl"] == "all":
        if "FFN" in row["notes"]:
            raise _UnknownPlacementError("FFN tensors spilt by hand")
        return facts.n_layer + 1
    if row["ngl"].isdigit():
        return int(row["ngl"])
    for (author, model), n in _AUTO_LAYERS.items():
        if author in row["source"] and row["model"] == model:
            return n
    raise _UnknownPlacementError("Layers placed by the engine")


def has_old_meaning(row: dict[str, str]) -> bool:
    return row["ngl"].isdigit() and ("OLD" in row["notes"] or row["date"] < "2025-06")


def _n_cpu_moe(row: dict[str, str], n_layer: int) -> int:
    if row["offload"] != "moe_cpu":
        return 0
    found = _N_CPU_MOE.search(row["notes"])
    if found:
        return int(found[1])
    if any(words in row["notes"] for words in ("exps=CPU", "--cpu-moe", "experts on CPU")):
        return n_layer
    raise _UnknownPlacementError("Experts placed by the engine")


def depth_of(row: dict[str, str], phase: Phase) -> int:
    """Tokens cached before the passage, on average over what it generates."""
    if "localscore" in row["source"]:
        return LOCALSCORE_DEPTH if phase is Phase.DECODE else 0
    stated = row["n_ctx_or_depth"]
    depth = int(stated) if stated and not any(author in row["source"] for author in _DEPTH_IS_CONTEXT) else 0
    if "14.5k-token prompt" in row["notes"]:
        depth = 14500
    if row["test"] == "tg@2K":
        depth = 2048
    digits = re.fullmatch(r"tg(\d+)", row["test"])
    return depth + (int(digits[1]) // 2 if digits else 64 if phase is Phase.DECODE else 0)


def is_pinned(row: dict[str, str]) -> bool:
    return any(words in row["notes"] for words in ("mmap 0", "--no-mmap"))
