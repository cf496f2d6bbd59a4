"""Where things are kept. OFFLOADTUNE_HOME overrides every default."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def data_dir() -> Path:
    """Folder of journals and remembered facts; not created here."""
    override = os.environ.get("OFFLOADTUNE_HOME")
    return Path(override) if override else Path(platformdirs.user_data_dir("offloadtune", appauthor=False))


def profiles_dir() -> Path:
    """Folder of profiles: ./profiles where it exists, else in the data folder."""
    local = Path("profiles")
    return local if local.is_dir() else data_dir() / "profiles"


def standins_dir() -> Path:
    """Folder of files that can be written anew at any time; not created here."""
    override = os.environ.get("OFFLOADTUNE_HOME")
    cache = Path(override) if override else Path(platformdirs.user_cache_dir("offloadtune", appauthor=False))
    return cache / "standins"
