"""Measured settings as something a front end takes: one module a target, pure text; one writer.

A target's text is made only for a trial that was measured as that target.
"""

from offloadtune.export.llama_cpp_python import llama_kwargs, render_snippet
from offloadtune.export.llama_cpp_server import llama_cpp_server_words, render_server_program
from offloadtune.export.llama_server import llama_server_words, render_command
from offloadtune.export.profile_toml import Profile, SavedProfile, read_profile, render_profile
from offloadtune.export.workload_toml import render_workload
from offloadtune.export.write import write_text

__all__ = [
    "Profile",
    "SavedProfile",
    "llama_cpp_server_words",
    "llama_kwargs",
    "llama_server_words",
    "read_profile",
    "render_command",
    "render_profile",
    "render_server_program",
    "render_snippet",
    "render_workload",
    "write_text",
]
