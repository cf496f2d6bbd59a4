"""Standing in: a file with the shape and the types of a model that is not here, and random weights."""

from __future__ import annotations

import re
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offloadtune import catalogue, gguf
from offloadtune.errors import ExportError, GgufError, UsageError
from offloadtune.gguf import standin
from offloadtune.gguf.standin.writing import START_BYTES, is_marked, leftover_bytes
from offloadtune.gguf.tables import STANDIN_KEY
from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.records import GgufFacts, StandsFor

__all__ = ["StandinRequest", "is_current", "leftover_bytes", "refuse_unpublished", "write_standin"]

_MAX_SEED = 2**63 - 1
_BLOCK_NAME = re.compile(r"blk\.([0-9]+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class StandinRequest:
    """`source` is a model's name in the catalogue, or a real file, which needs no `quant`; `n_layer` None for all.

    The vocabulary is that of `vocab_from` where there is one. `may_replace` lets it take the place of another file.
    """

    source: str | Path
    output: Path
    quant: str | None = None
    n_layer: int | None = None
    vocab_from: Path | None = None
    seed: int = 0
    may_replace: bool = False


def write_standin(
    request: StandinRequest, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> GgufFacts:
    """Write the file and say what it is; `progress` is told how many bytes of how many are written.

    Raises UsageError for what cannot be written, GgufError for a file that cannot be read, ExportError for a disk that
    is too small or refuses, BusyError where another process writes the same file.
    """
    if not 0 <= request.seed <= _MAX_SEED:
        raise UsageError(f"--seed {request.seed} is out of range.", hint=f"use a whole number from 0 to {_MAX_SEED}")
    _refuse_replacing(request)
    parts, facts = _sought(request)
    n_layer = facts.n_layer if request.n_layer is None else request.n_layer
    kept = standin.kept_blocks(facts, n_layer)
    marked = standin.marked(standin.shorter(parts, facts, kept), _marks(facts, request.seed))

    def check(path: Path) -> None:
        _check_alike(gguf.read_gguf(path, identify=False), facts, kept)

    standin.write(request.output, marked, request.seed, check, progress)
    return gguf.read_gguf(request.output)


def is_current(facts: GgufFacts, whole: GgufFacts, n_layer: int) -> bool:
    """Whether the file `facts` is what would be written now for `n_layer` layers of the catalogue's model `whole`.

    Raises UsageError where so many cannot be written.
    """
    kept = standin.kept_blocks(whole, n_layer)
    of_type: Counter[str] = Counter()
    for tensor in whole.tensors:
        block = _BLOCK_NAME.match(tensor.name)
        if block is None or int(block[1]) in kept:
            of_type[tensor.type_name] += tensor.n_bytes
    return (
        facts.stands_for == _stands_for(whole)
        and dict(facts.key_values).get(f"{STANDIN_KEY}.seed") == 0
        and dict(facts.type_bytes) == of_type
        and _difference(facts, whole, kept) is None
    )


def refuse_unpublished(quant: str) -> None:
    """Raise UsageError for a quantisation that follows no published rule, UnknownNameError for an unknown one."""
    found = catalogue.find_quant(quant)
    if found.stands_for:
        sentence = f"{found.stands_for} follows no published rule, so its mix of types is not known."
        raise UsageError(sentence, hint=f"Use {found.name}, which comes nearest to it, or a real file.")


def _refuse_replacing(request: StandinRequest) -> None:
    """Never over a real model, whatever state it is in, and over another file only where that was said."""
    output = request.output
    start = _start_of(output)
    if start is None:
        return
    if start.startswith(b"GGUF") and not is_marked(start) and not _is_standin(output):
        hint = "remove it yourself if nobody needs it, or write under another name"
        raise UsageError(f"{output} is a real GGUF file and stays as it is.", hint=hint)
    if not request.may_replace:
        raise UsageError(f"{output} exists already.", hint="use --yes to replace it, or choose another name after -o")


def _start_of(path: Path) -> bytes | None:
    """The first bytes of the file that would be replaced; None where there is none."""
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder.", hint="name a file in it, or move it away")
        if not stat.S_ISREG(path.lstat().st_mode):
            return None  # writing refuses it; reading a pipe would wait for its writer
        with path.open("rb") as file:
            return file.read(START_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        hint = "check the permissions, or write under another name"
        raise ExportError(f"{path} cannot be written: {error.strerror or error}.", hint=hint) from None


def _is_standin(path: Path) -> bool:
    try:
        return gguf.read_gguf(path, identify=False).stands_for is not None
    except GgufError:
        return False


def _sought(request: StandinRequest) -> tuple[standin.Parts, GgufFacts]:
    """The parts of the whole model, and what they say of it."""
    if isinstance(request.source, Path):
        return _sought_by_file(request, request.source)
    if request.quant is None:
        hint = "name one with --quant, such as Q4_K_M"
        raise UsageError(f"Which quantisation of {request.source} is not said.", hint=hint)
    refuse_unpublished(request.quant)
    described = catalogue.described(request.source, request.quant)
    facts = facts_of_shape(request.source, request.quant)
    if request.vocab_from is None:
        vocabulary = standin.made_up(facts.n_vocab)
    else:
        vocabulary = standin.vocabulary_of(request.vocab_from, facts.n_vocab)
    return standin.described_parts(described.key_values, described.tensors, vocabulary), facts


def _sought_by_file(request: StandinRequest, path: Path) -> tuple[standin.Parts, GgufFacts]:
    for option, value in (("--quant", request.quant), ("--vocab-from", request.vocab_from)):
        if value is not None:
            hint = f"leave out {option}, or name a model of the catalogue instead of the file"
            raise UsageError(f"{option} does not go with a file, which has its own.", hint=hint)
    facts = gguf.read_gguf(path, identify=False)
    if facts.stands_for:
        raise UsageError(f"{path} is a stand-in itself.", hint="name the real file, or a model of the catalogue")
    return standin.file_parts(path), facts


def _stands_for(facts: GgufFacts) -> StandsFor:
    return StandsFor(label=facts.name or facts.path.stem, quantisation=facts.quantisation, n_layer=facts.n_layer)


def _marks(facts: GgufFacts, seed: int) -> dict[str, Any]:
    """Key-values that tell the file from a real one, whoever reads it."""
    real = _stands_for(facts)
    return {
        "general.name": f"{real.label} (stand-in: random weights)",
        STANDIN_KEY: True,
        f"{STANDIN_KEY}.of": real.label,
        f"{STANDIN_KEY}.quant": real.quantisation,
        f"{STANDIN_KEY}.n_layer": real.n_layer,
        f"{STANDIN_KEY}.seed": seed,
    }


def _check_alike(written: GgufFacts, sought: GgufFacts, kept: tuple[int, ...]) -> None:
    """Raise UsageError where an engine would take the blocks that were kept for another kind than they were."""
    name = _difference(written, sought, kept)
    if name is not None:
        sentence = f"A stand-in of {sought.arch} cannot be written so: its {name} would not be those of the model."
        raise UsageError(sentence, hint="use a stand-in of all layers, or a real file")


def _difference(written: GgufFacts, sought: GgufFacts, kept: tuple[int, ...]) -> str | None:
    """The field in which a file is not the model `sought` with the blocks `kept`; None where it is."""
    for name in ("n_swa", "n_embd_head_k", "n_embd_head_v", "n_vocab", "n_expert", "n_expert_used", "is_tied"):
        if getattr(written, name) != getattr(sought, name):
            return name
    for name in ("is_swa", "n_head", "n_head_kv", "layer_bytes"):
        if getattr(written, name) != tuple(getattr(sought, name)[i] for i in kept):
            return name
    return None
