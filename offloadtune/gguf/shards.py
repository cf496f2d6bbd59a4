"""All shards of a model from any one of them."""

from __future__ import annotations

import re
from pathlib import Path

from offloadtune.errors import GgufError
from offloadtune.gguf.header import Header, read_header, shown
from offloadtune.gguf.opening import damaged

_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<total>[0-9]{5})\.gguf\Z", re.DOTALL)


def read_shards(path: Path) -> tuple[Header, ...]:
    """Headers of every shard in order, one for an unsharded file; `path` may be any shard.

    As in llama.cpp the key `split.count` decides, the names only lead to the siblings. Raises GgufError, naming the
    file, when a sibling is missing or belongs to something else.
    """
    given = read_header(path)
    n_shards = given.count("split.count", default=1)
    if n_shards <= 1:
        return (given,)
    i_given = given.count("split.no")
    sibling_paths = _sibling_paths(path, i_given, n_shards)
    headers = tuple(
        given if i_shard == i_given else read_header(sibling) for i_shard, sibling in enumerate(sibling_paths)
    )
    _check_siblings(headers)
    return headers


def _sibling_paths(path: Path, i_given: int, n_shards: int) -> list[Path]:
    match = _SHARD_NAME.match(path.name)
    if match is None or (int(match["number"]), int(match["total"])) != (i_given + 1, n_shards):
        ending = f"-{i_given + 1:05d}-of-{n_shards:05d}.gguf"
        sentence = f"{path} is shard {i_given + 1} of {n_shards}, but its name does not end in {ending}."
        hint = "Rename it; if the shards were joined with cat, split or merge them with llama-gguf-split instead."
        raise GgufError(sentence, hint=hint)
    siblings = [path.with_name(f"{match['stem']}-{n:05d}-of-{n_shards:05d}.gguf") for n in range(1, n_shards + 1)]
    for sibling in siblings:
        if not sibling.exists():
            hint = f"Download it into the same folder; all {n_shards} shards are needed."
            raise GgufError(f"{sibling} is missing: it is one of the {n_shards} shards of this model.", hint=hint)
    return siblings


def _check_siblings(headers: tuple[Header, ...]) -> None:
    names: set[str] = set()
    for i_shard, header in enumerate(headers):
        place = (header.count("split.no", default=0), header.count("split.count", default=1))
        if place != (i_shard, len(headers)):
            sentence = f"{header.path} is named as shard {i_shard + 1} of {len(headers)} but says it is another."
            raise GgufError(sentence, hint="Download this shard again, from the same place as the others.")
        for tensor in header.tensors:
            if tensor.name in names:
                raise damaged(header.path, f"its tensor {shown(tensor.name)} also occurs in another shard")
            names.add(tensor.name)
    n_promised = headers[0].count("split.tensors.count", default=len(names))
    if n_promised != len(names):
        raise damaged(headers[0].path, f"its shards hold {len(names)} tensors where {n_promised} are promised")
