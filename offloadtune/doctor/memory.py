"""What holds main memory back: channels, speed, limits, swap. A virtual machine's modules are made up: no claims there.

Theory is channels x 8 bytes x transfers per second. Desktops of two channels read 50 to 90 % of it, servers of many
channels 40 to 70 %; each limit below lies under what was ever seen of a sound machine.
"""

from __future__ import annotations

from collections.abc import Iterator

from offloadtune.hardware import Examination, Finding, MemoryHardware, NumaNode, Severity
from offloadtune.interference import FULL_SWAP_FRAC
from offloadtune.units import MIB, format_bytes, format_bytes_per_s, format_count

SLOW_FRAC, SLOW_FRAC_MANY_CHANNELS = 0.4, 0.25
"""Of theory; the second for more than two channels, and where memory is part of the chip and made for its GPU."""

BELOW_RATED_FRAC, FAR_BELOW_RATED_FRAC = 0.97, 0.8
"""Of the modules' rating. Many CPUs and boards take a speed or two less than the modules could; far below it, it is
more likely a setting."""

SWAP_WORTH_SAYING_BYTES = 256 * MIB
SHORT_FRAC = 0.1
"""Of main memory: with less of it available it is short, whatever is loaded."""


def channels_unused(examined: Examination) -> Iterator[Finding]:
    """Of two channels one is empty, or of more some: bandwidth, and with it the speed of decode, is lost in step."""
    memory = examined.profile.hardware.memory
    n_used, n_most = memory.n_channels, memory.n_channels_most
    if not n_used or not n_most or n_used >= n_most or not _tells_truth(examined):
        return
    is_single = n_used == 1
    words = "Main memory runs on one channel" if is_single else f"Main memory runs on {n_used} channels"
    yield Finding(
        code="single_channel" if is_single else "channels_unused",
        severity=Severity.WARNING,
        words=f"{words} of {n_most}, so the CPU generates at about {n_used / n_most:.0%} of its speed.",
        evidence=f"{_modules(memory)}{_measured_words(memory)}.",
        next_step="Spread equal modules over all channels; the board's manual names the slots.",
    )


def below_rated_speed(examined: Examination) -> Iterator[Finding]:
    memory = examined.profile.hardware.memory
    rated, configured = memory.rated_mt_per_s, memory.configured_mt_per_s
    if not rated or not configured or configured >= BELOW_RATED_FRAC * rated or not _tells_truth(examined):
        return
    is_soldered = (memory.kind or "").startswith("LP")
    is_slight = is_soldered or configured >= FAR_BELOW_RATED_FRAC * rated
    yield Finding(
        code="memory_below_rated_speed",
        severity=Severity.NOTE if is_slight else Severity.WARNING,
        words="Main memory runs slower than its modules are made for.",
        evidence=f"{_modules(memory)}: rated {rated} MT/s, set to {configured} MT/s ({configured / rated:.0%})"
        f"{_measured_words(memory)}.",
        next_step="It is soldered: only an update of the firmware may change its speed."
        if is_soldered
        else "The CPU or the board may allow no more, least of all with four modules; where the firmware offers XMP or"
        " EXPO, switch it on.",
    )


def slow_memory(examined: Examination) -> Iterator[Finding]:
    """Only where this process may use all of a single node: few cores cannot ask for all that many channels give."""
    hardware = examined.profile.hardware
    memory, cpu = hardware.memory, hardware.cpu
    theory, fastest = memory.theoretical_bytes_per_s, memory.fastest
    is_part = hardware.limits.cpus is not None or (cpu.n_online_cpus or 0) > len(cpu.allowed_cpus)
    if not theory or fastest is None or is_part or len(_nodes(memory)) > 1 or not _tells_truth(examined):
        return
    least_frac = SLOW_FRAC if memory.n_channels in {1, 2} else SLOW_FRAC_MANY_CHANNELS
    if fastest.read_bytes_per_s < least_frac * theory:
        yield Finding(
            code="memory_slow",
            severity=Severity.WARNING,
            words="Main memory is read far slower than its modules allow.",
            evidence=f"{_modules(memory)}{_measured_words(memory)}; usual is {least_frac:.0%} or more.",
            next_step="Close other programs and run offloadtune doctor again; if it stays, look for a power-saving"
            " profile and for mixed modules.",
        )


def memory_limit(examined: Examination) -> Iterator[Finding]:
    """A container's limit that is less than the machine's memory."""
    limit, ram = examined.profile.hardware.limits.memory_bytes, examined.profile.machine.host.ram
    if limit is None or limit > ram.total_bytes:
        return
    machine_bytes = _machine_bytes(examined.profile.hardware.memory)
    if machine_bytes is not None and limit >= machine_bytes:
        return
    of_machine = f" of the machine's {format_bytes(machine_bytes)}" if machine_bytes else ""
    is_too_small = examined.file_bytes is not None and examined.file_bytes > limit
    yield Finding(
        code="memory_limited",
        severity=Severity.WARNING if is_too_small else Severity.NOTE,
        words="A control group (a container's or a service's) limits the memory that a model may take"
        + (", to less than the file has." if is_too_small else "."),
        evidence=f"The limit is {format_bytes(limit)}{of_machine}{_of_file(examined)}.",
        next_step="Raise the limit where the container is started (docker run --memory), or keep to smaller models.",
    )


def swap(examined: Examination) -> Iterator[Finding]:
    """Swap that is full, or in use while memory is short.

    Windows and macOS swap out what rests though memory is free, and make swap larger as they need it.
    """
    total, free, host = examined.now.swap_total_bytes, examined.now.swap_free_bytes, examined.profile.machine.host
    if not total or free is None or host.os.startswith(("macOS", "Windows")) or examined.measured_now is not None:
        return
    is_full = free < FULL_SWAP_FRAC * total
    is_short = host.ram.available_bytes < max(SHORT_FRAC * host.ram.total_bytes, examined.file_bytes or 0)
    if not is_full and (not is_short or total - free < SWAP_WORTH_SAYING_BYTES):
        return
    yield Finding(
        code="swap_full" if is_full else "swap_used",
        severity=Severity.WARNING if is_short else Severity.NOTE,
        words="Swap is full, so the system ends programs when memory runs short."
        if is_full
        else "Memory is short and swap is in use: what is loaded now pushes more out, and all becomes slow.",
        evidence=f"{format_bytes(total - free)} of {format_bytes(total)} of swap are taken;"
        f" {format_bytes(host.ram.available_bytes)} of memory are available{_of_file(examined)}.",
        next_step="Close what takes memory before you load a model" + (", or add swap." if is_full else "."),
    )


def numa(examined: Examination) -> Iterator[Finding]:
    nodes = _nodes(examined.profile.hardware.memory)
    if len(nodes) > 1:
        sizes = ", ".join("unknown" if one.total_bytes is None else format_bytes(one.total_bytes) for one in nodes)
        yield Finding(
            code="numa_nodes",
            severity=Severity.NOTE,
            words=f"Memory is split over {len(nodes)} NUMA nodes: weights on one node are read slowly from the others.",
            evidence=f"The nodes have {sizes}.",
            next_step="Try llama-server with --numa distribute; drop the page cache before the first try, since pages"
            " stay where they were read to.",
        )


def address_space(examined: Examination) -> Iterator[Finding]:
    limit, ram = examined.profile.hardware.limits.address_space_bytes, examined.profile.machine.host.ram
    if limit is None:
        return
    stops = examined.file_bytes is not None and examined.file_bytes >= limit
    if stops or limit < ram.total_bytes:
        yield Finding(
            code="address_space_limited",
            severity=Severity.PROBLEM if stops else Severity.WARNING,
            words="A limit on address space (RLIMIT_AS) "
            + (
                "is smaller than the file, which cannot be loaded." if stops else "may stop a large model from loading."
            ),
            evidence=f"The limit is {format_bytes(limit)}, memory {format_bytes(ram.total_bytes)}{_of_file(examined)}.",
            next_step="Raise it with ulimit -v unlimited, or in the service that starts the program.",
        )


def _nodes(memory: MemoryHardware) -> tuple[NumaNode, ...]:
    """Those with memory: a node may be CPUs alone, or be kept for a card."""
    return tuple(one for one in memory.numa_nodes if one.total_bytes != 0)


def _tells_truth(examined: Examination) -> bool:
    """Whether the modules told of are real: WSL is a virtual machine too, but what it tells comes from Windows."""
    surroundings = examined.profile.hardware.surroundings
    return surroundings.hypervisor is None or surroundings.is_wsl


def _modules(memory: MemoryHardware) -> str:
    modules = memory.modules or ()
    if not modules:
        return format_count(memory.n_channels, "channel") if memory.n_channels else "Modules unknown"
    each = [
        f"{one.slot or 'slot unknown'} {format_bytes(one.n_bytes) if one.n_bytes else ''}".strip() for one in modules
    ]
    slots = f" in {format_count(memory.n_slots, 'slot')}" if memory.n_slots else ""
    return f"{format_count(len(modules), 'module')}{slots} ({', '.join(each)})"


def _measured_words(memory: MemoryHardware) -> str:
    """What was measured beside theory, as far as both are known."""
    theory, fastest = memory.theoretical_bytes_per_s, memory.fastest
    words = f"; in theory {format_bytes_per_s(theory)}" if theory else ""
    if fastest is not None:
        share = f" ({fastest.read_bytes_per_s / theory:.0%})" if theory else ""
        threads = format_count(fastest.n_threads, "thread")
        words += f"; measured {format_bytes_per_s(fastest.read_bytes_per_s)}{share} with {threads}"
    return words


def _machine_bytes(memory: MemoryHardware) -> int | None:
    """The machine's own memory, which a limit does not change; None where it is not told."""
    for sizes in ([one.total_bytes for one in memory.numa_nodes], [one.n_bytes for one in memory.modules or ()]):
        known = [size for size in sizes if size is not None]
        if known and len(known) == len(sizes):
            return sum(known)
    return None


def _of_file(examined: Examination) -> str:
    return "" if examined.file_bytes is None else f"; the file has {format_bytes(examined.file_bytes)}"
