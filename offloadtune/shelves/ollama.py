"""Ollama's files: manifests that name what lies, under the digest of its content, among the blobs.

`manifests/HOST/NAMESPACE/NAME/TAG` is JSON whose layers have a media type and a digest; the layer of the model is the
GGUF file itself. Source: ollama/ollama `manifest/` and docs/import.md; a download under way ends in -partial, beside
parts numbered -partial-0 and so on (ollama/ollama issue 8769).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offloadtune.shelves.walking import Walk

_LOST = "has a manifest, but what it names is gone"
_MANIFEST_BYTES = 1 << 20
_DEPTH = 6
_DIGEST = re.compile(r"sha256[:-](?P<hex>[0-9a-f]{64})")
_UNFINISHED = re.compile(r"sha256-(?P<short>[0-9a-f]{12})[0-9a-f]{52}-partial")
_USUAL_HOST, _USUAL_NAMESPACE, _USUAL_TAG = "registry.ollama.ai", "library", "latest"
_KINDS = {
    "application/vnd.ollama.image.model": "",
    "application/vnd.ollama.image.projector": "projector of images",
    "application/vnd.ollama.image.adapter": "LoRA adapter",
}
"""Layers that are GGUF files, with what they are beside a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaFile:
    """A file behind one of Ollama's names. `trouble` as in `ShelvedFile`."""

    path: Path
    names: tuple[str, ...]
    companion: str = ""
    trouble: str = ""


def ollama_files(root: Path, walk: Walk) -> Iterator[OllamaFile]:
    """What the manifests below `root` name, and downloads under way."""
    manifests = root / "manifests"
    for path in walk.files(manifests, _DEPTH):
        names = _names(path.relative_to(manifests).parts)
        if names:
            yield from _of_manifest(root, path, names)
    for entry in walk.entries(root / "blobs"):
        if match := _UNFINISHED.fullmatch(entry.name):
            trouble = "is a download of Ollama's under way, or one that was given up"
            yield OllamaFile(path=root / "blobs" / entry.name, names=(f"sha256-{match['short']}",), trouble=trouble)


def _names(parts: tuple[str, ...]) -> tuple[str, ...]:
    """NAME:TAG for Ollama's own library, with the namespace or the host before it for others."""
    if len(parts) < 4 or any(part.startswith(".") for part in parts):
        return ()
    host, *namespaces, name, tag = parts
    owner = [] if namespaces == [_USUAL_NAMESPACE] else namespaces
    title = "/".join(([] if host == _USUAL_HOST else [host, *namespaces]) or owner)
    whole = f"{title}/{name}" if title else name
    return (f"{whole}:{tag}", whole) if tag == _USUAL_TAG else (f"{whole}:{tag}",)


def _of_manifest(root: Path, path: Path, names: tuple[str, ...]) -> Iterator[OllamaFile]:
    try:
        with path.open("rb") as file:
            manifest: Any = json.loads(file.read(_MANIFEST_BYTES))
        layers = [(_KINDS.get(layer["mediaType"]), layer["digest"]) for layer in manifest["layers"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        yield OllamaFile(path=path, names=names, trouble="has a manifest that cannot be read")
        return
    for companion, digest in layers:
        match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
        if companion is None or match is None:  # templates, licences, and digests that would lead elsewhere
            continue
        blob = root / "blobs" / f"sha256-{match['hex']}"
        if companion:
            yield OllamaFile(path=blob, names=(f"{names[0]} {companion}",), companion=companion)
        else:
            yield OllamaFile(path=blob, names=names, trouble="" if os.path.lexists(blob) else _LOST)
