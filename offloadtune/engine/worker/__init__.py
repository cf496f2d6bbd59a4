"""The child process that holds the engine: the only importer of llama_cpp in the project.

Started as `python -m offloadtune.engine.worker ENDPOINT...`; speaks JSON lines on its own stdin and stdout.
"""
