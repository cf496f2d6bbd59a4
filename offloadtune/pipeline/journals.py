"""The journals on disk: where they lie, which of them can be read, and what stands in the end in one of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from offloadtune import search, store
from offloadtune.errors import StoreError
from offloadtune.recalls import UnreadableJournal
from offloadtune.recommend import losers
from offloadtune.records import Outcome, Settings, Trial, TrialResult, Visit

_ASIDE = re.compile(r"\.\d{8}T\d{6}\.jsonl\Z")
_OF_THE_MOMENT = {Outcome.OUT_OF_MEMORY_HOST, Outcome.TIMED_OUT, Outcome.CANCELLED}
"""What ended a later visit but does not speak against settings that ran before: the rounds to come tell."""
_SAME_FREE_BYTES = 64 << 20

Rounds = tuple[dict[Settings, tuple[Visit, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSweep:
    """A journal read back, and when its last line was written; `is_under_way` while its sweep still measures."""

    path: Path
    written_at: datetime
    content: store.JournalContent
    is_under_way: bool

    @property
    def header(self) -> store.SweepHeader:
        return self.content.header

    @property
    def was_put_aside(self) -> bool:
        """Whether the same command measured anew since; the name says when."""
        return _ASIDE.search(self.path.name) is not None

    @property
    def is_gone_on_with(self) -> bool:
        """Whether the same command would go on from here: not after it was put aside, nor under a newer ruler."""
        return self.path.stem.endswith(f"-{self.header.sweep_key}")

    @property
    def is_cut_short(self) -> bool:
        """Whether more was to come: it measures still, was killed, or stopped in the middle of a trial."""
        results = self.content.results
        return not self.content.is_ended or any(result.outcome is Outcome.CANCELLED for result in results)


def sweeps_dir() -> Path:
    """Folder of all journals: one folder a machine, one file a sweep."""
    return store.data_dir() / "sweeps"


def headers() -> Iterator[store.SweepHeader]:
    """The headers that can be read."""
    for path in _paths():
        try:
            yield store.read_header(path)
        except StoreError:  # not ours to judge here
            continue


def read_all(
    is_wanted: Callable[[store.SweepHeader], bool] = lambda _header: True,
) -> tuple[list[StoredSweep], list[UnreadableJournal]]:
    """The wanted journals of all machines, and those that cannot be read; both newest first.

    One that died before its first line holds nothing and is left out.
    """
    stored, unreadable = [], []
    owner = store.owner_now(store.data_dir())
    for written_at, path in sorted(_dated_paths(), reverse=True):
        header = None
        try:
            header = store.read_header(path)
            if is_wanted(header):
                stored.append(_stored(path, written_at, owner))
        except StoreError as error:
            gguf_id = header.gguf_id if header else None
            unreadable.append(UnreadableJournal(path=path, written_at=written_at, reason=str(error), gguf_id=gguf_id))
    return stored, unreadable


def _stored(path: Path, written_at: datetime, owner: store.Owner | None) -> StoredSweep:
    """The journal at `path`; the one that `owner` writes into is under way."""
    content = store.read_journal(path)
    is_its = owner is not None and owner.what == content.header.gguf_path.name and owner.began_at <= written_at
    return StoredSweep(path=path, written_at=written_at, content=content, is_under_way=is_its and not content.is_ended)


def holds(result: TrialResult, free_then: Mapping[str, int], free_now: Mapping[str, int]) -> bool:
    """Whether what was measured with other device memory free still says what would happen now.

    A device out of memory stays so unless more of it is free now; what took more than is free now is asked again.
    """
    ran_out = result.outcome is Outcome.OUT_OF_MEMORY_DEVICE
    if ran_out or (result.outcome is Outcome.CRASHED and result.trial.settings.offloads):
        return all(free_now.get(name, 0) <= n_bytes + _SAME_FREE_BYTES for name, n_bytes in free_then.items())
    return all(peak <= free_now.get(name, 0) + _SAME_FREE_BYTES for name, peak in result.device_peak_bytes)


def last_results(content: store.JournalContent, free_now: Mapping[str, int] | None = None) -> tuple[TrialResult, ...]:
    """The last word on each settings: a finalist that failed later counts as failed.

    Where `free_now` says what is free of each device, only what still holds with that. See `last_words`.
    """
    if free_now is None:
        return last_words(content.results)
    told = [(result, content.free_bytes_at(i)) for i, result in enumerate(content.results)]
    return last_words(result for result, free_then in told if holds(result, free_then, free_now))


def last_words(results: Iterable[TrialResult]) -> tuple[TrialResult, ...]:
    """The last of the results of each settings, in the order in which settings were first tried.

    What ran to its end still stands when something of the moment ended a later visit.
    """
    last: dict[Settings, TrialResult] = {}
    for result in results:
        before = last.get(result.trial.settings)
        if before is None or before.outcome is not Outcome.OK or result.outcome not in _OF_THE_MOMENT:
            last[result.trial.settings] = result
    return tuple(last.values())


def rounds_among(content: store.JournalContent, results: Sequence[TrialResult]) -> Rounds:
    """The rounds, of those settings only that are among `results`."""
    settings_of = {result.trial.trial_id: result.trial.settings for result in results}
    return tuple(
        {settings_of[trial_id]: visits for trial_id, visits in one.items() if trial_id in settings_of}
        for one in content.rounds
    )


def side_by_side(
    space: search.Space, results: Sequence[TrialResult], rounds: Sequence[dict[Settings, tuple[Visit, ...]]]
) -> tuple[tuple[Trial, ...], Rounds]:
    """Who is still compared, and the rounds that count: those in which all stood that had not clearly lost before."""
    finalists, counted = search.finalists(space, results), []
    for one in rounds:
        if all(trial.settings in one for trial in finalists):
            counted.append(one)
            lost = losers(space, results, counted)
            finalists = tuple(trial for trial in finalists if trial.settings not in lost)
    return finalists, tuple(counted)


def as_reported(space: search.Space, content: store.JournalContent) -> tuple[tuple[TrialResult, ...], Rounds]:
    """The results and the rounds that the sweep itself went by when it last told its answer.

    A finalist that died in a round was out of it, whatever it died of, until a later round held it again. One that the
    last round passed over, though it ran before, was not to be had then: less device memory was free.
    """
    n_then = content.n_results_at[-1] if content.rounds else 0
    last, then = _reported(content, len(content.results)), _reported(content, n_then)
    while passed := _finalists_not_in_last_round(space, content, then):
        for settings in passed:
            if last[settings] is then.pop(settings):  # nothing newer is known of it
                del last[settings]
    results = tuple(last.values())
    return results, side_by_side(space, results, rounds_among(content, results))[1]


def _reported(content: store.JournalContent, n_results: int) -> dict[Settings, TrialResult]:
    """What counted for each settings after the first `n_results`; being stopped by the user is no result of theirs."""
    found: dict[Settings, TrialResult] = {}
    free_now = content.header_now.free_bytes
    for i, result in enumerate(content.results[:n_results]):
        if content.changes and not holds(result, content.free_bytes_at(i), free_now):
            continue
        before = found.get(result.trial.settings)
        if before is None or before.outcome is not Outcome.OK or not _is_survived(content, i):
            found[result.trial.settings] = result
    return found


def _is_survived(content: store.JournalContent, i_result: int) -> bool:
    """Whether settings that ran before are not out by this end: cancelled, or of the moment and in a round since."""
    result = content.results[i_result]
    rounds_since = (one for one, n in zip(content.rounds, content.n_results_at, strict=True) if n > i_result)
    return result.outcome is Outcome.CANCELLED or (
        result.outcome in _OF_THE_MOMENT and any(result.trial.trial_id in one for one in rounds_since)
    )


def _finalists_not_in_last_round(
    space: search.Space, content: store.JournalContent, results: dict[Settings, TrialResult]
) -> list[Settings]:
    if not content.rounds:
        return []
    rounds = rounds_among(content, tuple(results.values()))
    finalists, _ = side_by_side(space, tuple(results.values()), rounds[:-1])
    return [trial.settings for trial in finalists if trial.trial_id not in content.rounds[-1]]


def _paths() -> Iterator[Path]:
    """Files only: reading a pipe of such a name would wait for ever."""
    return (path for path in sweeps_dir().glob("*/*.jsonl") if path.is_file())


def _dated_paths() -> Iterator[tuple[datetime, Path]]:
    for path in _paths():
        try:
            written_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        except OSError:  # gone since it was listed
            continue
        if store.has_lines(path):
            yield written_at, path
