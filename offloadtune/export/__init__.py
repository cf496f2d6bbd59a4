"""Measured settings as something a front end takes: one module a target, pure text; one writer.

A target's text is made only for a trial that was measured as that target.
"""

from offloadtune.export.llama_cpp_python import llama_kwargs, render_snippet
from offloadtune.export.llama_server import render_command
from offloadtune.export.profile_toml import Profile, render_profile
from offloadtune.export.write import write_text

__all__ = ["Profile", "llama_kwargs", "render_command", "render_profile", "render_snippet", "write_text"]
