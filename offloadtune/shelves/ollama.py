"""Ollama's files: manifests that name what lies, under the digest of its content, among the blobs.

`HOST/NAMESPACE/NAME/TAG` is JSON whose layers have a media type and a digest; the layer of the model is the GGUF file
itself. It lies below `manifests`, since Ollama 0.40 below `manifests-v2`, where it may be a link to a blob, and may be
a list of manifests for several runners, blobs too. Source: ollama/ollama `manifest/`, docs/import.md and pull requests
15735 and 16590; a download under way ends in -partial, beside parts numbered -partial-0 and so on (issue 8769).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offloadtune.shelves.walking import Walk

_LOST = "has a manifest, but what it names is gone"
_MANIFEST_BYTES = 1 << 20
_DEPTH = 6
_DIGEST = re.compile(r"sha256[:-](?P<hex>[0-9a-f]{64})")
_UNFINISHED = re.compile(r"sha256-(?P<short>[0-9a-f]{12})[0-9a-f]{52}-partial")
_SHADOW = re.compile(r"llamacpp:[0-9a-f]{64}")  # a converted manifest under its digest, kept for older versions
_FOLDERS = ("manifests-v2", "manifests")
_USUAL_HOSTS = {"registry.ollama.ai", "ollama.com"}
_USUAL_NAMESPACE, _USUAL_TAG = "library", "latest"
_RUNNERS = ("llamacpp", "ggml", "ollama")
"""Whose manifests in a list name GGUF files. What is not llama.cpp's may need more than llama.cpp knows."""
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
    for names, path in _manifests(root, walk).items():
        yield from _of_manifest(root, path, names)
    for entry in walk.entries(root / "blobs"):
        if match := _UNFINISHED.fullmatch(entry.name):
            trouble = "is a download of Ollama's under way, or one that was given up"
            yield OllamaFile(path=root / "blobs" / entry.name, names=(f"sha256-{match['short']}",), trouble=trouble)


def _manifests(root: Path, walk: Walk) -> dict[tuple[str, ...], Path]:
    """Names -> manifest: the newer one of a name that has two, unless it is a link to nothing."""
    found: dict[tuple[str, ...], Path] = {}
    for folder in _FOLDERS:
        for path in walk.files(root / folder, _DEPTH):
            names = _names(path.relative_to(root / folder).parts)
            if names and walk.is_there(found.setdefault(names, path)) is False:
                found[names] = path
    return found


def _names(parts: tuple[str, ...]) -> tuple[str, ...]:
    """NAME:TAG for Ollama's own library, with the namespace or the host before it for others; () for no model's."""
    if len(parts) < 4 or any(part.startswith(".") for part in parts):
        return ()
    host, *namespaces, name, tag = parts
    owner = [] if namespaces == [_USUAL_NAMESPACE] else namespaces
    title = "/".join(([] if host in _USUAL_HOSTS else [host.replace("%3A", ":"), *namespaces]) or owner)
    whole = f"{title}/{name}" if title else name
    if _SHADOW.fullmatch(f"{whole}:{tag}"):
        return ()
    return (f"{whole}:{tag}", whole) if tag == _USUAL_TAG else (f"{whole}:{tag}",)


def _of_manifest(root: Path, path: Path, names: tuple[str, ...]) -> Iterable[OllamaFile]:
    """Its files; for a list those of the best manifest in it whose files are all there."""
    found = [tuple(_files(root, path, manifest, names)) for manifest in _runnable(_json(path))]
    return min(found, key=lambda files: any(file.trouble for file in files), default=())


def _json(path: Path) -> Any:
    """What a file says, None for one that cannot be read."""
    try:
        if not path.is_file():  # a pipe never ends
            return None
        with path.open("rb") as file:
            return json.loads(file.read(_MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def _runnable(manifest: Any) -> list[Any]:
    """The manifest itself; of a list those whose runners read GGUF files, the best first."""
    children = manifest.get("manifests") if isinstance(manifest, dict) else None
    if not isinstance(children, list):
        return [manifest]
    known = [(str(child.get("runner")).lower(), child) for child in children if isinstance(child, dict)]
    return [child for wanted in _RUNNERS for runner, child in known if runner == wanted]


def _files(root: Path, path: Path, manifest: Any, names: tuple[str, ...]) -> Iterator[OllamaFile]:
    """What the layers of a manifest name; one in a list may be no more than the digest of the blob that has them."""
    try:
        if "layers" not in manifest:
            blob = _blob(root, manifest["digest"])
            manifest = _json(blob) if blob else None
        layers = [(_KINDS.get(layer["mediaType"]), _blob(root, layer["digest"])) for layer in manifest["layers"]]
    except (KeyError, TypeError):
        yield OllamaFile(path=path, names=names, trouble="has a manifest that cannot be read")
        return
    for companion, blob in layers:
        if companion is None or blob is None:  # templates, licences, and digests that would lead elsewhere
            continue
        if companion:
            yield OllamaFile(path=blob, names=(f"{names[0]} {companion}",), companion=companion)
        else:
            yield OllamaFile(path=blob, names=names, trouble="" if os.path.lexists(blob) else _LOST)


def _blob(root: Path, digest: Any) -> Path | None:
    """Where content lies, None for what is no digest and would lead elsewhere."""
    match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    return root / "blobs" / f"sha256-{match['hex']}" if match else None
