"""Settings for llama-cpp-python's own server: words after `python -m llama_cpp.server`, or a program that says more.

The server has no words for devices, endpoints, use_extra_bufts, no_host, n_cpu_moe, n_cpu_ffn, op_offload, swa_full and
what the engine reads from the environment. The program reaches those through the defaults that `Llama` begins with, as
the snippet for `Llama` does, and then calls the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from offloadtune.export.llama_cpp_python import environment_lines, llama_kwargs, recipe
from offloadtune.records import Settings

_WORDLESS = ("op_offload", "swa_full")
"""Arguments of `Llama` that its server does not pass on; both are True unless told otherwise."""

_CONTEXT_PATCH = """
default_context_params = low.llama_context_default_params


def context_params():
    params = default_context_params()
{lines}
    return params


low.llama_context_default_params = context_params
"""
_PROGRAM = """\
{head}
from llama_cpp import llama_cpp as low
from llama_cpp.server.__main__ import main

{recipe}
sys.argv[1:1] = [
{words}]
main()
"""


def llama_cpp_server_words(settings: Settings, path: Path) -> list[str]:
    """The server's options for what it has words for, every measured one, defaults too.

    The server's own defaults would keep the logits of every token, which takes memory that was never measured, and
    log every decode, which takes time. Raises ExportError for what `Llama` itself can neither say nor be made to say.
    """
    return [word for group in _groups(settings, path) for word in group]


def render_server_program(settings: Settings, path: Path, endpoints: Sequence[str] = ()) -> str | None:
    """A Python program that starts the server, None where its options say it all; what follows its name is passed on.

    Raises ExportError as `llama_cpp_server_words` does.
    """
    groups = _groups(settings, path)
    lines = [f"    params.{name} = False" for name in _WORDLESS if not getattr(settings, name)]
    before = recipe(settings, endpoints) + (_CONTEXT_PATCH.format(lines="\n".join(lines)) if lines else "")
    if not before and not settings.environment:
        return None
    words = "".join(f"    {', '.join(map(repr, group))},\n" for group in groups)
    head = environment_lines(settings, "import ctypes\nimport sys\n" if before else "import sys\n")
    return _PROGRAM.format(head=head, recipe=before, words=words)


def _groups(settings: Settings, path: Path) -> list[list[str]]:
    """Each option with its value, or its values."""
    arguments = {"model": path, **llama_kwargs(settings), "logits_all": False, "verbose": False}
    values = {name: value if isinstance(value, list) else [value] for name, value in arguments.items()}
    return [[f"--{name}", *map(_word, some)] for name, some in values.items() if name not in _WORDLESS]


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
