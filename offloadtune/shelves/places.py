"""The folders where each program keeps its GGUF files; nothing here searches a whole home.

Sources: llama.cpp `common/common.cpp` (fs_get_cache_directory) and `common/hf-cache.cpp`, which since 2026 downloads
into the Hugging Face cache, LLAMA_CACHE before HF_HUB_CACHE; huggingface_hub's guide "Manage huggingface_hub cache";
lmstudio-js `findLMStudioHome` (the pointer file, then the older ~/.cache/lm-studio, then ~/.lmstudio); Ollama's FAQ
("Where are models stored?"; /var/lib/ollama is that of Arch and NixOS); janhq/jan issues 6018 and 8412;
nomic-ai/gpt4all issue 3485; oobabooga/text-generation-webui, whose `models` became `user_data/models` in 2025.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from offloadtune.shelves.walking import DEEPEST

_SETTINGS_BYTES = 1 << 20
_OLLAMA_SERVICES = ("/usr/share/ollama/.ollama/models", "/var/lib/ollama/models", "/var/lib/ollama")


class Layout(StrEnum):
    """How files lie in a folder: anywhere below it, in it alone, as in the Hugging Face cache, or as Ollama does."""

    TREE = "tree"
    FLAT = "flat"
    HUB = "hub"
    OLLAMA = "ollama"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to look. `depth` counts the folders below it that are opened.

    `has_owners`: its folders are those of Hugging Face, owner/name. `is_given`: named by the user, not usual.
    """

    program: str
    path: Path
    layout: Layout = Layout.TREE
    depth: int = DEEPEST
    has_owners: bool = False
    is_given: bool = False


def given_places(folders: Iterable[Path]) -> tuple[Place, ...]:
    """Folders, or files, that the user named."""
    return tuple(Place(program="named by you", path=folder, is_given=True) for folder in folders)


def usual_places(environ: Mapping[str, str], home: Path, platform: str) -> tuple[Place, ...]:
    """The folders of every program, each once; `platform` as in sys.platform. They need not exist."""
    user = _User(environ=environ, home=home, platform=platform)
    places = (
        Place(program="./gguf_models", path=Path("gguf_models")),
        *_llama_cpp(user),
        *_hugging_face(user),
        *_lm_studio(user),
        *_ollama(user),
        Place(program="KoboldCpp", path=home / "koboldcpp", depth=2),
        *_text_generation_webui(user),
        *_jan(user),
        *_gpt4all(user),
    )
    once: dict[tuple[Path, Layout], Place] = {}
    for place in places:
        once.setdefault((place.path, place.layout), place)
    return tuple(once.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _User:
    environ: Mapping[str, str]
    home: Path
    platform: str

    def named(self, variable: str) -> Path | None:
        """The folder that a variable of the environment names, None without."""
        text = self.environ.get(variable)
        return Path(text) if text else None

    @property
    def caches(self) -> Path:
        """Where the Hugging Face cache is on every system."""
        return self.named("XDG_CACHE_HOME") or self.home / ".cache"

    @property
    def programs_data(self) -> Path:
        """Where programs of a desktop keep what is the user's."""
        if self.platform == "darwin":
            return self.home / "Library" / "Application Support"
        if self.platform == "win32":
            return self.named("APPDATA") or self.home / "AppData" / "Roaming"
        return self.named("XDG_DATA_HOME") or self.home / ".local" / "share"

    @property
    def local_data(self) -> Path:
        """The same, for what Windows does not carry to another machine."""
        if self.platform == "win32":
            return self.named("LOCALAPPDATA") or self.home / "AppData" / "Local"
        return self.programs_data


def _llama_cpp(user: _User) -> Sequence[Place]:
    """Its own cache, flat files named owner_name_file; since 2026 folders as in the Hugging Face cache too."""
    if user.platform == "darwin":
        usual = user.home / "Library" / "Caches"
    elif user.platform == "win32":
        usual = user.local_data
    else:
        usual = user.caches
    folder = user.named("LLAMA_CACHE") or usual / "llama.cpp"
    layouts = (Layout.FLAT, Layout.HUB)
    return tuple(Place(program="llama.cpp", path=folder, layout=layout, depth=0) for layout in layouts)


def _hugging_face(user: _User) -> Sequence[Place]:
    hub = user.named("HF_HUB_CACHE") or user.named("HUGGINGFACE_HUB_CACHE")
    hf_home = user.named("HF_HOME") or user.caches / "huggingface"
    return (Place(program="Hugging Face", path=hub or hf_home / "hub", layout=Layout.HUB),)


def _lm_studio(user: _User) -> Sequence[Place]:
    """Its home is where the pointer file says; the folder of models may have been moved in its settings."""
    homes = [user.home / ".lmstudio", user.home / ".cache" / "lm-studio"]
    if pointer := _text(user.home / ".lmstudio-home-pointer"):
        homes.insert(0, Path(pointer))
    folders: list[Path] = []
    for home in homes:
        moved = _folder_in(home / "settings.json", "downloadsFolder")
        folders += [moved] if moved else []
        folders.append(home / "models")
    return tuple(Place(program="LM Studio", path=folder, has_owners=True) for folder in folders)


def _ollama(user: _User) -> Sequence[Place]:
    """OLLAMA_MODELS holds for who sets it; a service has a home and an environment of its own."""
    folders = [user.named("OLLAMA_MODELS") or user.home / ".ollama" / "models"]
    if user.platform not in {"darwin", "win32"}:
        folders += map(Path, _OLLAMA_SERVICES)
    return tuple(Place(program="Ollama", path=folder, layout=Layout.OLLAMA) for folder in folders)


def _text_generation_webui(user: _User) -> Sequence[Place]:
    roots = (user.home / "text-generation-webui", user.home / "textgen")
    folders = [root / folder for root in roots for folder in ("models", "user_data/models")]
    return tuple(Place(program="text-generation-webui", path=folder) for folder in folders)


def _jan(user: _User) -> Sequence[Place]:
    root = user.programs_data / "Jan"
    moved = _folder_in(root / "settings.json", "data_folder")
    roots = [*([moved] if moved else []), root / "data", user.home / "jan"]
    folders = [data / "llamacpp" / "models" for data in roots] + [user.home / "jan" / "models"]
    return tuple(Place(program="Jan", path=folder) for folder in folders)


def _gpt4all(user: _User) -> Sequence[Place]:
    folders = (user.local_data / "nomic.ai" / "GPT4All", user.home / ".cache" / "gpt4all")
    return tuple(Place(program="GPT4All", path=folder, depth=2) for folder in folders)


def _text(path: Path) -> str:
    """The text of a small file in one line; "" where there is none."""
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            return file.read(_SETTINGS_BYTES).decode("utf-8-sig", errors="surrogateescape").strip()
    except (OSError, ValueError):
        return ""


def _folder_in(path: Path, key: str) -> Path | None:
    """The absolute folder that a program's settings name under `key`."""
    try:
        settings: Any = json.loads(_text(path) or "{}")
    except (ValueError, RecursionError):
        return None
    value = settings.get(key) if isinstance(settings, dict) else None
    folder = Path(value) if isinstance(value, str) and value else None
    return folder if folder is not None and folder.is_absolute() else None
