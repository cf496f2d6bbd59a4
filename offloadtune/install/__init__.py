"""Bring the engine and the sample models onto this machine.

    facts.py --> Toolchain --backend.py--> BuildPlan --engine.py--> wheel, kept in the cache --pip--> this venv
    gguf_models/samples.toml --samples.py--> gguf_models/*.gguf

`make` runs `python -m offloadtune.install.engine` and `python -m offloadtune.install.samples` before anything else is
sure to be installed, so everything here gets by on the standard library (platformdirs is imported where it is used).
"""

from offloadtune.install.backend import BuildPlan, Gpu, Toolchain, backend_advice, engine_line, plan_build
from offloadtune.install.facts import install_command, read_toolchain

__all__ = [
    "BuildPlan",
    "Gpu",
    "Toolchain",
    "backend_advice",
    "engine_line",
    "install_command",
    "plan_build",
    "read_toolchain",
]
