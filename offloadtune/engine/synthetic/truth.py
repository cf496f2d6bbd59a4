"""The truth of a simulated machine: seconds and bytes of settings, many at once.

    a block on the card       the longer of its work and `launch_s`; a product the longer of reading and computing
    a block of the host       the same by threads, or lent to the card: copying and computing, partly at once
    a prompt                  its ubatches one after the other, each with columns for whole tiles

Blocks with all on one side, or with the experts away, differ only by place: sums over blocks are looked up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from offloadtune.engine.synthetic.kernels import Curve, Floats, padded
from offloadtune.engine.synthetic.machines import Blocks, Ints, SyntheticCard, SyntheticHost, SyntheticMachine
from offloadtune.records import Settings

N_LENT_LEAST = 32
"""From so many tokens on the card works for the host (GGML_OP_OFFLOAD_MIN_BATCH)."""

_TOUCHED = Curve(x=(0.03, 0.125, 0.5, 1.0, 2.0, 4.0, 8.0, 32.0), y=(0.03, 0.11, 0.36, 0.55, 0.75, 0.88, 0.96, 1.0))
"""Part of the experts that tokens ask for, by how many tokens each expert has on average."""

_CELLS_STEP = 256
_SCORE_BYTES = 12.0
"""Without flash attention a score is written, scaled and read in single precision."""

_BYTES_OF_TYPE = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32}
_BYTES_OF_TYPE |= {"q4_1": 20 / 32, "q4_0": 18 / 32, "iq4_nl": 18 / 32}
_OVERSUBSCRIBED_TIMES = 4.0
_TINY = 1e-30
_Key = TypeVar("_Key", bound=Hashable)

Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What settings really take, one entry each: seconds to the first token, of a further one, and bytes.

    `fits` where the card and main memory have as much to give; times of what does not fit are those it would have.
    """

    ttft_s: Floats
    token_s: Floats
    device_bytes: Ints
    host_bytes: Ints
    fits: Bools

    def turn_s(self, n_gen: int) -> Floats:
        """Seconds to the last of `n_gen` tokens."""
        return self.ttft_s + (n_gen - 1) * self.token_s


def truth(machine: SyntheticMachine, settings: Sequence[Settings], *, n_prompt: int, depth: int = 0) -> Truth:
    """Of a prompt of `n_prompt` tokens after `depth` cached ones, and of the tokens written after it."""
    memory = machine.memory(settings)
    used = memory.device_bytes.astype(np.float64)
    ttft_s = prompt_s(machine, settings, n_prompt=n_prompt, depth=depth)
    token_s = decode_s(machine, settings, depth=depth + n_prompt)
    free = machine.card.free_bytes if machine.card else 0
    for one in machine.surprises:
        prompt_times, token_times = one.spill_times(used, free)
        ttft_s, token_s = ttft_s * prompt_times, token_s * token_times
    return Truth(
        ttft_s=ttft_s + machine.host.sample_s,
        token_s=token_s + machine.host.sample_s,
        device_bytes=memory.device_bytes,
        host_bytes=memory.host_bytes,
        fits=(memory.device_bytes <= most_bytes(machine)) & (memory.host_bytes <= machine.host.ram_bytes),
    )


def most_bytes(machine: SyntheticMachine) -> int:
    """What the card gives before an allocation fails."""
    free = machine.card.free_bytes if machine.card else 0
    return max((one.most_bytes(free) for one in machine.surprises), default=free)


def decode_s(machine: SyntheticMachine, settings: Sequence[Settings], *, depth: int) -> Floats:
    """Seconds of one decoded token of one sequence after `depth` tokens, without sampling and without spilling."""
    places = _Places.of(machine, settings)
    found = np.zeros(len(settings))
    for kind, group in _grouped(_Kind.of(one, one.n_threads) for one in settings).items():
        work = _Work(machine, kind)
        host = work.host_token(depth)
        card = work.card_token(depth) if machine.card else host
        found[group] = places.summed(group, host, card)
        found[group] += np.where(places.has_output[group], work.card_output(), work.host_output())
        found[group] += np.where(places.is_mixed[group], 2 * machine.host.handover_s, 0.0)
    return found


def prompt_s(machine: SyntheticMachine, settings: Sequence[Settings], *, n_prompt: int, depth: int = 0) -> Floats:
    """Seconds of reading `n_prompt` tokens after `depth` cached ones, without spilling."""
    places = _Places.of(machine, settings)
    found = np.zeros(len(settings))
    keys = (
        (_Kind.of(one, one.n_threads_batch), min(one.n_ubatch, one.n_batch, n_prompt), _may_lend(machine, one))
        for one in settings
    )
    for (kind, n_ubatch, lends), group in _grouped(keys).items():
        work = _Work(machine, kind)
        for n_tokens, cells in _ubatches(n_prompt, depth, n_ubatch):
            is_lent = lends and n_tokens >= N_LENT_LEAST
            host = work.lent_ubatches(n_tokens, cells) if is_lent else work.host_ubatches(n_tokens, cells)
            card = work.card_ubatches(n_tokens, cells, is_lent=is_lent) if machine.card else host
            times = math.prod(one.ubatch_times(n_tokens) for one in machine.surprises)
            found[group] += places.summed(group, host, card) * np.where(places.has_output[group], times, 1.0)
            fixed_s = machine.card.ubatch_s if machine.card else 0.0
            is_used = places.has_output[group] | is_lent
            found[group] += len(cells) * np.where(is_used, fixed_s, 0.0)
        found[group] += np.where(places.has_output[group], work.card_output(), work.host_output())
    return found


class _Kind(NamedTuple):
    """What of settings a block's time depends on, wherever it lies; `cache_bytes` are those of a value."""

    n_threads: int
    is_flash: bool
    keeps_cache_on_card: bool
    cache_bytes: float

    @classmethod
    def of(cls, settings: Settings, n_threads: int) -> _Kind:
        cache_bytes = (_BYTES_OF_TYPE[settings.type_k] + _BYTES_OF_TYPE[settings.type_v]) / 2
        return cls(n_threads, settings.flash_attn_type != "disabled", settings.offload_kqv, cache_bytes)


def _may_lend(machine: SyntheticMachine, settings: Settings) -> bool:
    return machine.card is not None and settings.op_offload and settings.devices != ()


def _grouped(keys: Iterable[_Key]) -> dict[_Key, Ints]:
    """Positions of equal keys."""
    found: dict[_Key, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        found[key].append(i)
    return {key: np.array(group) for key, group in found.items()}


def _ubatches(n_prompt: int, depth: int, n_ubatch: int) -> list[tuple[int, Floats]]:
    """Sizes of ubatches, each with the cells that those of the size see, in steps as the engine counts them."""
    n_full, rest = divmod(n_prompt, n_ubatch)
    ends = depth + n_ubatch * np.arange(1, n_full + 1, dtype=np.float64)
    found = [(n_ubatch, _stepped(ends))] if n_full else []
    return [*found, (rest, _stepped(np.array([depth + n_prompt], dtype=np.float64)))] if rest else found


def _stepped(cells: Floats) -> Floats:
    return np.ceil(cells / _CELLS_STEP) * _CELLS_STEP


@dataclass(frozen=True, kw_only=True)
class _Places:
    """For each setting: the first block on the card, the first with its experts there too, and with its other FFN."""

    first: Ints
    whole_from: Ints
    ffn_from: Ints
    has_output: Bools
    n_layer: int

    @classmethod
    def of(cls, machine: SyntheticMachine, settings: Sequence[Settings]) -> _Places:
        n_layer, has_card = machine.blocks.n_layer, machine.card is not None
        asked = np.array([one.n_gpu_layers if has_card and one.devices != () else 0 for one in settings])
        layers = np.where(asked < 0, n_layer + 1, np.minimum(asked, n_layer + 1))
        first = np.minimum(n_layer + 1 - layers, n_layer)
        n_away = np.array([one.n_cpu_moe if machine.blocks.n_expert else 0 for one in settings])
        whole_from = np.clip(n_away, first, n_layer)
        ffn_from = np.clip(np.array([one.n_cpu_ffn for one in settings]), first, n_layer)
        return cls(first=first, whole_from=whole_from, ffn_from=ffn_from, has_output=layers > 0, n_layer=n_layer)

    @property
    def is_mixed(self) -> Bools:
        return self.has_output & (self.first > 0)

    def summed(self, group: Ints, host: _Sides, card: _Sides) -> Floats:
        """Seconds of all blocks of the settings in `group`."""
        first, whole_from = self.first[group], self.whole_from[group]
        on_host, away, on_card = (_cumulated(one) for one in (host.whole, card.without + card.experts_away, card.whole))
        found: Floats = on_host[first] + away[whole_from] - away[first] + on_card[self.n_layer] - on_card[whole_from]
        relieved = _cumulated(card.ffn_away)
        return found + relieved[self.ffn_from[group]] - relieved[first]


def _cumulated(of_block: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(of_block)])


@dataclass(frozen=True, kw_only=True)
class _Sides:
    """Seconds of each block at one place: all of it, all but its experts, and the experts where they are away.

    `ffn_away` are those that it takes more where its other feed-forward weights are away.
    """

    whole: Floats
    without: Floats
    experts_away: Floats
    ffn_away: Floats


class _Work:
    """What one kind of settings asks of a machine's two places."""

    def __init__(self, machine: SyntheticMachine, kind: _Kind) -> None:
        self.blocks: Blocks = machine.blocks
        self.host: SyntheticHost = machine.host
        self._card: SyntheticCard | None = machine.card
        self.n_threads, self.is_flash, self.on_card, self.cache_bytes = kind
        n_threads = self.n_threads
        host = machine.host
        frac = host.threads_frac(n_threads)
        self.read = host.read_bytes_per_s * host.reads_by_threads.at(frac)
        self.op = host.op_per_s * host.multiplies_by_threads.at(frac)
        self.slower = _OVERSUBSCRIBED_TIMES if n_threads > host.n_logical_cores else 1.0
        for one in machine.surprises:
            self.slower *= one.thread_times(n_threads, host.n_cores)

    @property
    def card(self) -> SyntheticCard:
        assert self._card is not None
        return self._card

    # --- tokens ----------------------------------------------------------------------------------------------

    def host_token(self, depth: int) -> _Sides:
        blocks = self.blocks
        dense = np.maximum(blocks.dense_bytes / self.read, blocks.dense_flop / self.op)
        experts = np.maximum(blocks.expert_bytes * blocks.used_frac / self.read, blocks.expert_flop / self.op)
        without = self.slower * (dense + self.host.barrier_s * self.n_threads) + self._host_attention(1, _one(depth))
        experts = self.slower * (experts + self.host.barrier_s * self.n_threads * (blocks.expert_bytes > 0))
        ffn = np.maximum(blocks.ffn_bytes / self.read, blocks.ffn_flop / self.op)
        ffn = self.slower * (ffn + self.host.barrier_s * self.n_threads)
        return _Sides(whole=without + experts, without=without, experts_away=experts, ffn_away=ffn)

    def card_token(self, depth: int) -> _Sides:
        blocks, card, cells = self.blocks, self.card, _one(depth)
        dense = blocks.dense_bytes / self._card_read(blocks.dense_bytes)
        used = blocks.expert_bytes * blocks.used_frac
        curve = (card.flash_read if self.is_flash else card.plain_read).at(float(cells[0]))
        attention = self._cache_bytes(1, cells) / (card.read_bytes_per_s * curve)
        if not self.on_card:
            attention = self._host_attention(1, cells) + 2 * self.host.handover_s
        experts = used / self._card_read(used)
        return self._card_sides(
            dense, self._read_s(blocks.dense_bytes - blocks.ffn_bytes), experts, attention, self.host_token(depth)
        )

    # --- prompts: of all ubatches that have `n_tokens`, which see `cells` each -----------------------------------

    def host_ubatches(self, n_tokens: int, cells: Floats) -> _Sides:
        blocks, n = self.blocks, len(cells)
        op = self.op * self.host.multiplies.at(n_tokens)
        op_experts = self.op * self.host.multiplies.at(self._n_of_expert(n_tokens))
        dense = np.maximum(blocks.dense_bytes / self.read, n_tokens * blocks.dense_flop / op)
        touched = blocks.expert_bytes * _TOUCHED.at(n_tokens * blocks.used_frac)
        experts = np.maximum(touched / self.read, n_tokens * blocks.expert_flop / op_experts)
        without = n * self.slower * (dense + self.host.barrier_s * self.n_threads)
        without = without + self._host_attention(n_tokens, cells)
        experts = n * self.slower * experts
        ffn = n * self.slower * np.maximum(blocks.ffn_bytes / self.read, n_tokens * blocks.ffn_flop / op)
        return _Sides(whole=without + experts, without=without, experts_away=experts, ffn_away=ffn)

    def card_ubatches(self, n_tokens: int, cells: Floats, *, is_lent: bool) -> _Sides:
        blocks, n = self.blocks, len(cells)
        attention = self._card_attention(n_tokens, cells)
        if not self.on_card:
            attention = self._copied(self._cache_bytes(1, cells), attention)
        dense = n * self._card_dense(n_tokens, blocks.dense_bytes, blocks.dense_flop)
        rest = n * self._card_dense(
            n_tokens, blocks.dense_bytes - blocks.ffn_bytes, blocks.dense_flop - blocks.ffn_flop
        )
        elsewhere = self.lent_ubatches(n_tokens, cells) if is_lent else self.host_ubatches(n_tokens, cells)
        return self._card_sides(dense, rest, n * self._card_experts(n_tokens), attention, elsewhere, n)

    def lent_ubatches(self, n_tokens: int, cells: Floats) -> _Sides:
        """Blocks of the host on the card: weights and cache are copied there for every ubatch."""
        blocks, n = self.blocks, len(cells)
        touched = blocks.expert_bytes * _TOUCHED.at(n_tokens * blocks.used_frac)
        dense_s = self._card_dense(n_tokens, blocks.dense_bytes, blocks.dense_flop)
        without = self._copied(n * blocks.dense_bytes, n * dense_s)
        without = without + self._copied(self._cache_bytes(1, cells), self._card_attention(n_tokens, cells))
        experts = self._copied(n * touched, n * self._card_experts(n_tokens))
        without = np.maximum(without + n * self.host.handover_s, n * self.card.launch_s)
        ffn_s = self._card_dense(n_tokens, blocks.ffn_bytes, blocks.ffn_flop)
        ffn = self._copied(n * blocks.ffn_bytes, n * ffn_s)
        return _Sides(whole=without + experts, without=without, experts_away=experts, ffn_away=ffn)

    # --- parts -----------------------------------------------------------------------------------------------

    def _card_sides(  # noqa: PLR0913, PLR0917 - one argument a part
        self, dense: Floats, rest: Floats, experts: Floats, attention: Floats, elsewhere: _Sides, n: int = 1
    ) -> _Sides:
        """Of `n` passes: `rest` is what `dense` leaves without feed-forward networks, `elsewhere` has what is away."""
        least, handing_s = n * self.card.launch_s, 2 * n * self.host.handover_s
        whole = np.maximum(dense + experts + attention, least)
        relieved = np.maximum(rest + experts + attention, least) + elsewhere.ffn_away + handing_s
        return _Sides(
            whole=whole,
            without=np.maximum(dense + attention, least),
            experts_away=np.where(self.blocks.expert_bytes > 0, elsewhere.experts_away + handing_s, 0.0),
            ffn_away=np.where(self.blocks.ffn_bytes > 0, relieved - whole, 0.0),
        )

    def card_output(self) -> float:
        """The output layer for one token."""
        if self._card is None:
            return self.host_output()
        return self.blocks.output_bytes / float(self._card_read(np.array(self.blocks.output_bytes)))

    def host_output(self) -> float:
        return self.slower * max(self.blocks.output_bytes / self.read, self.blocks.output_flop / self.op)

    def _card_read(self, n_bytes: Floats) -> Floats:
        return self.card.read_bytes_per_s * self.card.reads.over(n_bytes)

    def _read_s(self, n_bytes: Floats) -> Floats:
        return n_bytes / self._card_read(np.maximum(n_bytes, _TINY))

    def _card_dense(self, n_tokens: int, n_bytes: Floats, flop: Floats) -> Floats:
        """The longer of reading and multiplying, columns in whole tiles."""
        op = self.card.op_per_s * self.card.multiplies.at(n_tokens)
        return np.maximum(self._read_s(n_bytes), padded(n_tokens) * flop / op)

    def _card_experts(self, n_tokens: int) -> Floats:
        """As of dense ones, but each expert has few of the tokens."""
        blocks, n_each = self.blocks, self._n_of_expert(n_tokens)
        op = self.card.op_per_s * self.card.multiplies.at(n_each)
        touched = blocks.expert_bytes * _TOUCHED.at(n_tokens * blocks.used_frac)
        n_columns = n_tokens * padded(n_each) / n_each
        return np.maximum(touched / self._card_read(np.maximum(touched, _TINY)), n_columns * blocks.expert_flop / op)

    def _n_of_expert(self, n_tokens: int) -> float:
        return max(n_tokens * self.blocks.used_frac, 1.0)

    def _cells(self, n_tokens: int, cells: Floats) -> Floats:
        """Cells that all ubatches together see in each block: a window's are fewer."""
        sums = {0: float(cells.sum())}
        for window in np.unique(self.blocks.window).tolist():
            if window:
                sums[window] = float(np.minimum(cells, _stepped(np.array(window + n_tokens))).sum())
        return np.array([sums[window] for window in self.blocks.window.tolist()])

    def _cache_bytes(self, n_tokens: int, cells: Floats) -> Floats:
        return self._cells(n_tokens, cells) * self.blocks.cache_values * self.cache_bytes

    def _card_attention(self, n_tokens: int, cells: Floats) -> Floats:
        card, seen = self.card, n_tokens * self._cells(n_tokens, cells)
        share = (card.flash_share if self.is_flash else card.plain_share) * card.multiplies.at(n_tokens)
        computing = seen * self.blocks.attention_flop / (card.op_per_s * share)
        if self.is_flash:
            return computing
        return np.maximum(computing, seen * self.blocks.n_heads * _SCORE_BYTES / card.read_bytes_per_s)

    def _host_attention(self, n_tokens: int, cells: Floats) -> Floats:
        host = self.host
        share = host.flash_share if self.is_flash else host.plain_share
        seen = n_tokens * self._cells(n_tokens, cells)
        reading = self._cache_bytes(n_tokens, cells) / (self.read * share)
        computing = seen * self.blocks.attention_flop / (self.op * host.attends_share * share)
        return self.slower * np.maximum(reading, computing)

    def _copied(self, n_bytes: Floats, computing_s: Floats) -> Floats:
        copying_s = n_bytes / self.card.link_bytes_per_s
        hidden_s = self.card.overlap_frac * np.minimum(copying_s, computing_s)
        return copying_s + computing_s - hidden_s


def _one(depth: int) -> Floats:
    return _stepped(np.array([max(depth, 1)], dtype=np.float64))
