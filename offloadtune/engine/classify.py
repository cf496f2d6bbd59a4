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
_BUFFER_NAMED = re.compile(r"(?:unable|failed) to allocate (?P<name>\S+) buffer\b(?! for)", re.IGNORECASE)
_BUFFER_REFUSED = re.compile(
    r"failed to allocate (?:buffer for (?:kv|rs) cache|compute \w* ?buffers)|alloc_tensor_range: failed",
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
_FILE_REFUSED = re.compile(
    r"unknown model architecture: '[^']*'|unknown pre-tokenizer type: '[^']*'|unknown tokenizer: '[^']*'|"
    r"key not found in model: \S+|tensor '[^']*' not found|wrong number of tensors; expected \d+, got \d+|"
    r"tensor '[^']*' has wrong shape; expected .*|cannot find tokenizer \w+ in model file",
)
_GONE = re.compile(r"Nothing answers at the RPC endpoint|does not start again")
_DEVICE_LOST = re.compile(r"Remote RPC server crashed|Failed to connect to", re.IGNORECASE)
_SOURCE_FOLDER = re.compile(r"\S*[/\\](?=[\w.-]+\.(?:c|cc|cpp|cu|cuh|h|hpp|m):\d+)")  # of whoever built the engine
_TROUBLE = re.compile(r"error|fail|unable|abort|assert|unknown|unsupported", re.IGNORECASE)
_HOST_BUFFERS = re.compile(r"CPU|AMX|output$|.*_Host$")
_PHASES = {
    "load": "while loading the file",
    "open": "while opening the context",
    "canary": "while filling the context to its end",
    "visit": "while measuring",
    "tiny": "in the self-test",
    "divergence": "while answers were compared",
    "forecast": "while asked what settings would take",
    "decode": "while reading a prompt",
    "front_end": "by llama-cpp-python's own Llama",
    "defaults": "before it was measured",
}


def classify(  # noqa: PLR0911 - a table of cases, first match wins
    evidence: Evidence, *, offloads: bool, timed_out: bool = False
) -> tuple[Outcome, str]:
    """Outcome and its sentence. `offloads` says whether the placement uses a device besides the CPU."""
    when = _PHASES.get(evidence.phase, f"in {evidence.phase}")
    if timed_out:
        return Outcome.TIMED_OUT, f"no answer in the time allowed, {when}"
    if line := _line_with(_DEVICE_MEMORY, evidence):
        return Outcome.OUT_OF_MEMORY_DEVICE, f"the device's memory ran out {when}: {line}"
    if line := _line_with(_BUFFER_NAMED, evidence) or _line_with(_BUFFER_REFUSED, evidence):
        on_host = _is_host_buffer(line, offloads=offloads)
        outcome = Outcome.OUT_OF_MEMORY_HOST if on_host else Outcome.OUT_OF_MEMORY_DEVICE
        whose = "main" if on_host else "the device's"
        return outcome, f"{whose} memory ran out {when}: {line}"
    if line := _line_with(_HOST_MEMORY, evidence):
        return Outcome.OUT_OF_MEMORY_HOST, f"main memory ran out {when}: {line}"
    if evidence.signal == "SIGKILL":
        return Outcome.OUT_OF_MEMORY_HOST, f"the system killed the engine {when}, as it does when main memory runs out"
    if line := _line_with(_UNSUPPORTED, evidence):
        return Outcome.UNSUPPORTED, f"the engine does not support this: {line}"
    if line := _line_with(_GONE, evidence):
        return Outcome.CRASHED, f"what the trial needs did not come back: {line}"
    if line := _line_with(_DEVICE_LOST, evidence):
        return Outcome.CRASHED, f"the remote device went away {when}: {line}"
    line = _telling_line(evidence)
    if evidence.signal is None and evidence.exit_code is None:  # it refused and lives
        outcome = Outcome.UNSUPPORTED if evidence.phase == "unsupported" else Outcome.LOAD_FAILED
        return outcome, f"refused {when}: {line}"
    how = evidence.signal or f"exit code {evidence.exit_code}"
    return Outcome.CRASHED, f"the engine died with {how} {when}: {line}"


def is_gone(evidence: Evidence | None) -> bool:
    """Whether a device or the engine itself stayed away for good: no setting is to blame, and no other will do."""
    return evidence is not None and bool(_GONE.search(evidence.abort_text or ""))


def refused_file(evidence: Evidence | None) -> str | None:
    """What this engine cannot read in the file, whatever the settings; None where it did not say so."""
    line = evidence and evidence.phase == "load" and _line_with(_FILE_REFUSED, evidence)
    found = _FILE_REFUSED.search(line) if line else None
    return found[0] if found else None


def is_engine_fault(evidence: Evidence) -> bool:
    """Whether a death speaks against the engine build itself, not against memory or a device that went away."""
    outcome, _ = classify(evidence, offloads=True)
    return outcome is Outcome.CRASHED and not is_gone(evidence) and _line_with(_DEVICE_LOST, evidence) is None


def _line_with(pattern: re.Pattern[str], evidence: Evidence) -> str | None:
    """The last line that `pattern` is found in, the abort text first."""
    for line in ((evidence.abort_text or "").partition("\n")[0], *reversed(evidence.last_lines)):
        if pattern.search(line):
            return _readable(line)
    return None


def _telling_line(evidence: Evidence) -> str:
    """The line that says most: the abort text, else the last one that speaks of trouble, else the last."""
    if evidence.abort_text:
        return _readable(evidence.abort_text.partition("\n")[0])
    last = evidence.last_lines[-1] if evidence.last_lines else "no message"
    return _line_with(_TROUBLE, evidence) or _readable(last)


def _is_host_buffer(line: str, *, offloads: bool) -> bool:
    named = _BUFFER_NAMED.search(line)
    return _HOST_BUFFERS.match(named["name"]) is not None if named else not offloads


def _readable(line: str) -> str:
    return _SOURCE_FOLDER.sub("", line).strip().rstrip(".")
