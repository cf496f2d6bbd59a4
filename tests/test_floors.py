"""The map in `offloadtune/__init__.py` is kept: who may import whom, read from the source of every module."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import offloadtune

PACKAGE = Path(offloadtune.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
ENGINE_LIBRARY, ENGINE_LIBRARY_PLACE = "llama_cpp", "offloadtune.engine.worker"
# all that pure functions of records need: no clock, no disk, no environment, no chance
PURE_IMPORTS = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "math",
    "numpy",
    "operator",
    "re",
    "scipy",
    "statistics",
    "types",
    "typing",
}
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "__import__"}


@dataclass(frozen=True)
class Floors:
    """The stages of the map, by floor and wing, in the order written there."""

    words: tuple[str, ...]
    judgement: tuple[str, ...]
    hands: tuple[str, ...]
    conductor: tuple[str, ...]
    face: tuple[str, ...]

    @property
    def all_stages(self) -> tuple[str, ...]:
        return (*self.words, *self.judgement, *self.hands, *self.conductor, *self.face)

    def allowed(self, stage: str) -> set[str]:
        """Stages that `stage` may import."""
        if stage in self.words:
            return {*self.words}
        if stage in self.judgement:
            return {*self.words, *self.judgement[: self.judgement.index(stage) + 1]}
        if stage in self.hands:
            return {*self.words, stage}
        if stage in self.conductor:
            return {"offloadtune", *self.words, *self.judgement, *self.hands, *self.conductor}
        if stage in self.face:
            return {"offloadtune", *self.words, "report", *self.conductor, *self.face}
        # the public names of the package itself are seen as imported by a type checker only
        return {"__main__": {"cli"}, "offloadtune": {*self.words, "gguf", *self.conductor}}.get(stage, set())


def read_map(docstring: str) -> Floors:
    rows = []
    for line in docstring.splitlines():
        match = re.fullmatch(r"    (\d)  (\w+(?: \w+)*) {2,}(\S.*)", line)
        if match:
            rows.append((int(match[1]), tuple(match[2].split()), match[3]))
    assert [floor for floor, _, _ in rows] == [0, 1, 1, 2, 3]
    assert [text.partition(":")[0] for _, _, text in rows[1:3]] == ["judgement", "hands"]
    return Floors(*(names for _, names, _ in rows))


FLOORS = read_map(offloadtune.__doc__ or "")


def module_name(path: Path, root: Path) -> str:
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[str]:
    """Full names of what `module` imports, wherever the import stands; `from a import b` is a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def stage_of(full_name: str, root: Path) -> str:
    """Stage of a name in the package; "offloadtune" for what the package itself offers, like __version__."""
    parts = full_name.split(".")
    if len(parts) > 1 and ((root / parts[1]).is_dir() or (root / f"{parts[1]}.py").is_file()):
        return parts[1]
    return root.name


def complaints(path: Path, root: Path = PACKAGE) -> list[str]:
    """What `path` does that its place on the map forbids."""
    module = module_name(path, root)
    stage = stage_of(module, root)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for name in imported_names(tree, module, is_package=path.stem == "__init__"):
        package = name.split(".")[0]
        if package == root.name:
            target = stage_of(name, root)
            if target not in FLOORS.allowed(stage):
                found.append(f"{module} ({stage}) imports {name} ({target})")
            if name.startswith(ENGINE_LIBRARY_PLACE) and not module.startswith(ENGINE_LIBRARY_PLACE):
                found.append(f"{module} imports {name}: the worker is another process")
        elif package == ENGINE_LIBRARY:
            if not module.startswith(ENGINE_LIBRARY_PLACE):
                found.append(f"{module} imports {name}: only {ENGINE_LIBRARY_PLACE} may")
        elif stage in FLOORS.words and package not in sys.stdlib_module_names:
            found.append(f"{module} (words) imports {name}, not of the standard library")
        elif stage in FLOORS.judgement and package not in PURE_IMPORTS:
            found.append(f"{module} (judgement) imports {name}, which is not pure")
    if stage in FLOORS.judgement:
        found += [f"{module} (judgement) calls {name}()" for name in called_names(tree) if name in IMPURE_CALLS]
    return found


def called_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


@pytest.mark.parametrize("path", MODULES, ids=[module_name(path, PACKAGE) for path in MODULES])
def test_module_imports_only_what_stands_below_it(path: Path) -> None:
    assert complaints(path) == []


def test_every_stage_is_on_the_map_and_every_name_of_the_map_exists() -> None:
    stages = {stage_of(module_name(path, PACKAGE), PACKAGE) for path in MODULES} - {"offloadtune", "__main__"}
    assert stages == set(FLOORS.all_stages)
    assert len(FLOORS.all_stages) == len(set(FLOORS.all_stages))


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("probe/cpu.py", "from offloadtune.gguf import read_gguf"),
        ("probe/cpu.py", "from offloadtune import stats"),
        ("store/journal.py", "def f():\n    import offloadtune.engine.process"),
        ("export/write.py", "from ..engine import Runner"),
        ("search/plan.py", "from offloadtune.recommend import recommend"),
        ("stats/pairs.py", "from offloadtune.footprint import pad_256"),
        ("search/plan.py", "from offloadtune.gguf import read_gguf"),
        ("search/plan.py", "from time import monotonic"),
        ("stats/pairs.py", "import random"),
        ("recommend/answer.py", "import os.path"),
        ("footprint/grid.py", "text = open('/proc/meminfo')"),
        ("records.py", "from offloadtune.stats import judge"),
        ("units.py", "import numpy as np"),
        ("engine/process.py", "import llama_cpp"),
        ("pipeline/measuring.py", "from llama_cpp import llama_cpp as low"),
        ("engine/process.py", "from offloadtune.engine.worker import native"),
        ("pipeline/measuring.py", "from offloadtune.cli import main"),
        ("report/terminal.py", "from offloadtune import pipeline"),
        ("cli/sweep.py", "from offloadtune.engine import Runner"),
        ("cli/sweep.py", "from offloadtune import search"),
        ("__main__.py", "from offloadtune import pipeline"),
        ("__init__.py", "from offloadtune.cli import main"),
    ],
)
def test_a_planted_import_is_found(place: str, line: str, tmp_path: Path) -> None:
    root = copy_with(tmp_path, place, line)
    assert len(complaints(root / place, root)) == 1


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("probe/cpu.py", "from offloadtune.records import Cpu"),
        ("probe/cpu.py", "from offloadtune.probe import host\nfrom .host import Door\nimport psutil"),
        ("search/plan.py", "from offloadtune import footprint, stats"),
        ("recommend/answer.py", "from offloadtune.search.cost import result_cost"),
        ("engine/worker/native.py", "import llama_cpp\nfrom offloadtune.engine import osdoor"),
        ("pipeline/measuring.py", "import offloadtune\nfrom offloadtune import export, recommend\nimport time"),
        ("cli/sweep.py", "from offloadtune import __version__, pipeline, report"),
    ],
)
def test_a_rightful_import_is_not_found(place: str, line: str, tmp_path: Path) -> None:
    root = copy_with(tmp_path, place, line)
    assert complaints(root / place, root) == []


def copy_with(tmp_path: Path, place: str, line: str) -> Path:
    """A package with the places of ours, empty but for `line` at `place`."""
    root = tmp_path / "offloadtune"
    for path in MODULES:
        copy = root / path.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(f"{line}\n" if str(path.relative_to(PACKAGE)) == place else "", encoding="utf-8")
    return root


def loaded_by(code: str) -> set[str]:
    """Top-level modules that a fresh Python has loaded after `code`."""
    script = (
        f"import json, sys\n{code}\nprint('\\n' + json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_package_itself_loads_no_engine_no_nvml_and_no_command_line() -> None:
    loaded = loaded_by("import offloadtune")
    assert "offloadtune" in loaded
    assert loaded & {"llama_cpp", "pynvml", "typer", "numpy", "rich", "pydantic"} == set()


@pytest.mark.parametrize("arguments", [["--help"], ["sweep", "--help"], ["plan", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    loaded = loaded_by(
        f"sys.argv = ['offloadtune', *{arguments!r}]\n"
        "from offloadtune.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code"
    )
    assert "typer" in loaded
    assert loaded & {"numpy", "llama_cpp", "pynvml", "rich"} == set()


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"]])
def test_help_reads_no_catalogue(arguments: list[str]) -> None:
    script = (
        f"import sys\nsys.argv = ['offloadtune', *{arguments!r}]\nfrom offloadtune.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.exit('offloadtune.catalogue' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=60)
