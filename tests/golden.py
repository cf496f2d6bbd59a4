"""Golden texts: what a renderer must say, byte for byte. OFFLOADTUNE_UPDATE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def check_golden(name: str, text: str) -> None:
    """Compare `text` with the golden file `name`."""
    path = FOLDER / name
    if os.environ.get("OFFLOADTUNE_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    assert text == path.read_bytes().decode(), f"differs from {path}; OFFLOADTUNE_UPDATE_GOLDEN=1 accepts it"
