"""From a dead or refusing worker's remains to an outcome: pure, by the texts llama.cpp is known to print.

Sources of the texts: ggml-cuda.cu, ggml-backend.cpp, ggml-rpc.cpp, llama-model.cpp, llama-context.cpp of llama.cpp 0.5.
"""

from __future__ import annotations

import re

from offloadtune.records import Evidence, Outcome

_DEVICE_MEMORY = re.compile(
    r"cudaMalloc failed|CUDA error: out of memory|hipErrorOutOfMemory|ErrorOutOfDeviceMemory|"
    r"CUBLAS_STATUS_ALLOC_FAILED|MTLCommandBufferErrorOutOfMemory|Requested buffer size exceeds",
    re.IGNORECASE,
)
_BUFFER_REFUSED = re.compile(
    r"unable to allocate (?P<buft>\S+) buffer|failed to allocate (?P<what>buffer for kv cache|compute \w* ?buffers)|"
    r"failed to allocate (?P<device>\S+) buffer|alloc_tensor_range: failed",
    re.IGNORECASE,
)
_HOST_MEMORY = re.compile(
    r"std::bad_alloc|Cannot allocate memory|MemoryError|failed to mlock|posix_memalign failed|mmap failed",
    re.IGNORECASE,
)
_UNSUPPORTED = re.compile(
    r"unknown model architecture|unsupported model architecture|requires flash_attn|Flash ?Attention .* requires|"
    r"does not support split buffers|not supported for this model|unknown pre-tokenizer|"
    r"quantized V cache|is not supported by",
    re.IGNORECASE,
)
_DEVICE_LOST = re.compile(r"Remote RPC server crashed|Failed to connect to", re.IGNORECASE)
_SOURCE_FOLDER = re.compile(r"\S*[/\\](?=[\w.-]+\.(?:c|cc|cpp|cu|cuh|h|hpp|m):\d+)")  # of whoever built the engine
_HOST_BUFFERS = ("CPU", "CUDA_Host", "ROCm_Host", "Vulkan_Host", "AMX")
_PHASES = {
    "load": "while loading the file",
    "open": "while opening the context",
    "canary": "while filling the context to its end",
    "visit": "while measuring",
    "tiny": "in the self-test",
    "decode": "while reading a prompt",
}


def classify(  # noqa: PLR0911 - a table of cases, first match wins
    evidence: Evidence, *, offloads: bool, timed_out: bool = False
) -> tuple[Outcome, str]:
    """Outcome and its sentence. `offloads` says whether the placement uses a device besides the CPU."""
    when = _PHASES.get(evidence.phase, f"in {evidence.phase}")
    if timed_out:
        return Outcome.TIMED_OUT, f"no answer in the time allowed, {when}"
    text = "\n".join((*evidence.last_lines, evidence.abort_text or ""))
    telling = _telling_line(evidence)
    if _DEVICE_MEMORY.search(text):
        return Outcome.OUT_OF_MEMORY_DEVICE, f"the device's memory ran out {when}: {telling}"
    refused = _BUFFER_REFUSED.search(text)
    if refused:
        named = refused["buft"] or refused["device"] or ""
        on_host = named.startswith(_HOST_BUFFERS) if named else not offloads
        outcome = Outcome.OUT_OF_MEMORY_HOST if on_host else Outcome.OUT_OF_MEMORY_DEVICE
        return outcome, f"{'main' if on_host else 'the device'} memory ran out {when}: {telling}".replace(
            "main", "main", 1
        )
    if _HOST_MEMORY.search(text):
        return Outcome.OUT_OF_MEMORY_HOST, f"main memory ran out {when}: {telling}"
    if evidence.signal == "SIGKILL":
        return Outcome.OUT_OF_MEMORY_HOST, f"the system killed the engine {when}, as it does when main memory runs out"
    if _UNSUPPORTED.search(text):
        return Outcome.UNSUPPORTED, f"the engine does not support this: {telling}"
    if _DEVICE_LOST.search(text):
        return Outcome.CRASHED, f"the remote device went away {when}: {telling}"
    if evidence.signal is None and evidence.exit_code is None:  # it refused and lives
        return (
            Outcome.UNSUPPORTED if evidence.phase == "unsupported" else Outcome.LOAD_FAILED
        ), f"refused {when}: {telling}"
    how = evidence.signal or f"exit code {evidence.exit_code}"
    return Outcome.CRASHED, f"the engine died with {how} {when}: {telling}"


def is_engine_fault(evidence: Evidence) -> bool:
    """Whether a death speaks against the engine build itself, not against memory or a device that went away."""
    outcome, _ = classify(evidence, offloads=True)
    return outcome is Outcome.CRASHED and not _DEVICE_LOST.search(evidence.abort_text or "")


def _telling_line(evidence: Evidence) -> str:
    """The line that says most: the abort text, else the last one that speaks of an error, else the last."""
    return _SOURCE_FOLDER.sub("", _most_telling(evidence)).rstrip(".")


def _most_telling(evidence: Evidence) -> str:
    if evidence.abort_text:
        return evidence.abort_text.splitlines()[0]
    telling = re.compile(r"error|fail|unable|abort|assert|unknown|unsupported", re.IGNORECASE)
    for line in reversed(evidence.last_lines):
        if telling.search(line):
            return line.strip()
    return evidence.last_lines[-1].strip() if evidence.last_lines else "no message"
