"""The weights of a projector, which makes tokens of images for the model it accompanies."""

from __future__ import annotations

from pathlib import Path

from offloadtune.errors import GgufError
from offloadtune.gguf.shards import read_shards

_KINDS = {"mmproj", "projector"}  # values of general.type
_ARCHITECTURE = "clip"


def is_projector(architecture: str | None, kind: str | None) -> bool:
    return architecture == _ARCHITECTURE or kind in _KINDS


def projector_bytes(path: Path) -> int:
    """Bytes of all tensors of the projector at `path`. Raises GgufError, for any other file too."""
    headers = read_shards(path)
    if not is_projector(headers[0].text("general.architecture"), headers[0].text("general.type")):
        sentence = f"{path} is no projector of images."
        raise GgufError(sentence, hint="Name the mmproj file that accompanies the model.")
    return sum(tensor.n_bytes for header in headers for tensor in header.tensors)
