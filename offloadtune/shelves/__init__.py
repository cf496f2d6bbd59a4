"""Shelves: where programs keep GGUF files on this machine, and which files lie there.

Hands of floor 1: lists folders and reads manifests, never a model file, and decides nothing. From the outside in:

    places   environment and home -> the folders of each program
    looking  places -> the files that lie there, shards together, each once
    ollama   manifests -> the files behind Ollama's names
    walking  a folder -> paths, within bounds
    titles   names of files and folders -> what they say
"""

from offloadtune.shelves.looking import look
from offloadtune.shelves.places import Layout, Place, given_places, usual_places
from offloadtune.shelves.titles import has_quantisation

__all__ = ["Layout", "Place", "given_places", "has_quantisation", "look", "usual_places"]
