"""The sweep: every unit alone in every format, scored by how far it moves the option probabilities."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Protocol

from clefquant.calibration.stored import StoredRecord
from clefquant.errors import InputError
from clefquant.progress import SILENT, Progress, Task
from clefquant.release.load import DEFAULT_BATCH_TOKENS, LoadedRelease
from clefquant.release.release import Release
from clefquant.release.states import DEFAULT_CACHE_BYTES
from clefquant.sensitivity.adaptive import FEWEST_SHARDS, due, rounds, uncertain
from clefquant.sensitivity.assemble import assemble, check_statistics, checked_formats
from clefquant.sensitivity.probe import NOISE, Keys, Work, work_list
from clefquant.sensitivity.rounding import NEAREST, Quantizer, Rounding
from clefquant.sensitivity.shards import DEFAULT_SHARD_TOKENS, Shard, make_shards
from clefquant.sensitivity.stability import with_ranks
from clefquant.sensitivity.store import Probe, ProbeStore
from clefquant.sensitivity.table import Entry, SensitivityTable
from clefquant.sensitivity.tabulate import Questions, tabulate
from clefquant.sensitivity.walk import probes, reference_probe

STORE_FILE, TABLE_FILE, CSV_FILE = "sensitivity.sqlite", "sensitivity.json", "sensitivity.csv"


class Runner(Protocol):
    """Does probes somewhere: in this process, or spread over others. Yields them in any order."""

    def __call__(
        self, shards: Sequence[Shard], work: Sequence[Work], input_amax: Mapping[str, float]
    ) -> Iterator[Probe]:
        """Do ``work`` on ``shards``."""


# Long: the steps of a sweep share its store, its shards and what was reached so far.
def sweep(
    loaded: LoadedRelease,
    input_amax: Mapping[str, float],
    records: Sequence[StoredRecord],
    formats: Sequence[str],
    out: Path,
    *,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    shard_tokens: int = DEFAULT_SHARD_TOKENS,
    cache_bytes: int = DEFAULT_CACHE_BYTES,
    adaptive: bool = False,
    rounding: Rounding = NEAREST,
    runner: Runner | None = None,
    progress: Progress = SILENT,
) -> SensitivityTable:
    """Probe every unit in every format on ``records`` and tabulate; what ``out``'s sqlite file already holds is not
    done again.

    ``input_amax``: largest absolute calibration input per linear. ``adaptive``: every probe on a quarter of the
    records, on more of them where the rank of a unit is uncertain (:mod:`~.adaptive`). ``runner``: has been given
    the ``rounding`` already. Writes ``sensitivity.sqlite`` as it goes, then ``sensitivity.json`` and
    ``sensitivity.csv``. Raises InputError on an empty set, unknown formats, or when the unchanged model itself answers
    NaN.
    """
    release = loaded.release
    names = checked_formats(release, formats)
    check_statistics(release, names, input_amax)
    shards = make_shards(records, batch_tokens, shard_tokens, FEWEST_SHARDS if adaptive else 1)
    keys = Keys.of(loaded)
    work = work_list(keys, release.units, names, shards, input_amax, rounding)
    quantizer = Quantizer(loaded, input_amax, rounding)

    def here(shards: Sequence[Shard], work: Sequence[Work], input_amax: Mapping[str, float]) -> Iterator[Probe]:
        return probes(loaded, shards, work, quantizer, cache_bytes=cache_bytes, spill_folder=out)

    with ProbeStore(out / STORE_FILE) as store:
        with progress.task("unchanged model", 2 * len(shards), "passes") as task:
            unchanged = {
                regrouped: [_reference(store, loaded, keys, shard, regrouped=regrouped, task=task) for shard in shards]
                for regrouped in (False, True)
            }
        if broken := sum(probe.failed for probe in unchanged[False]):
            raise InputError(
                f"{release.reference} itself gives {broken} NaN or infinite logits; there is nothing to compare with."
            )
        pairs = {(item.unit.name, item.format) for item in work}
        reached, table = dict.fromkeys(pairs, 0), None
        for end in rounds(len(shards)) if adaptive else (len(shards),):
            if table is not None:
                pairs = uncertain(table)
            _probe(
                store, due(work, reached, pairs, end), lambda left: (runner or here)(shards, left, input_amax), progress
            )
            reached |= dict.fromkeys(pairs, end)
            finished = [item for item in work if item.shard < reached[item.unit.name, item.format]]
            table = _table(release, names, shards, unchanged, finished, store, input_amax)
    assert table is not None
    table = with_ranks(table.model_copy(update={"rounding": rounding.named()}))
    if table.failed:
        worst = ", ".join(f"{entry.unit} in {entry.format}" for entry in table.failed[:3])
        progress.warn(f"{len(table.failed)} probes gave NaN or infinite logits and are left out of planning: {worst}")
    table.write(out / TABLE_FILE)
    table.write_csv(out / CSV_FILE)
    return table


def _probe(
    store: ProbeStore, wanted: Sequence[Work], run: Callable[[Sequence[Work]], Iterator[Probe]], progress: Progress
) -> None:
    """Do what of ``wanted`` the store does not have, one commit per probe."""
    done = store.have(item.key for item in wanted)
    left = [item for item in wanted if item.key not in done]
    with progress.task("probing", len(wanted), "probes") as task:
        task.advance(len(done))
        for probe in run(left) if left else ():
            store.add(probe)
            task.advance()
            task.note(f"{probe.subject} {probe.format}")


def _reference(
    store: ProbeStore, loaded: LoadedRelease, keys: Keys, shard: Shard, *, regrouped: bool, task: Task
) -> Probe:
    probe = reference_probe(store, loaded, keys, shard, regrouped=regrouped)
    task.advance()
    return probe


def _table(
    release: Release, formats: list[str], shards: Sequence[Shard], unchanged: Mapping[bool, list[Probe]],
    work: Sequence[Work], store: ProbeStore, input_amax: Mapping[str, float],
) -> SensitivityTable:  # fmt: skip
    @cache
    def questions(count: int) -> Questions:
        """Of the first shards."""
        return Questions(tuple(record for shard in shards[:count] for record in shard.records))

    by_entry: dict[tuple[str, str], list[Probe]] = {}
    for item in work:
        by_entry.setdefault((item.unit.name, item.format), []).append(store.get(item.key))
    before = unchanged[False]
    noise = _noise(shards, before, unchanged[True])
    entries = [
        tabulate(unit, name, questions(len(after)), before[: len(after)], after)
        for (unit, name), after in by_entry.items()
    ]
    return assemble(release, formats, shards, input_amax, noise, entries)


def _noise(shards: Sequence[Shard], before: Sequence[Probe], regrouped: Sequence[Probe]) -> Entry:
    """The unchanged model against itself in other batches, on the first records of every shard."""
    questions = Questions(tuple(record for shard in shards for record in shard.regrouped().records))
    same = [replace(old, logits=old.logits[: len(new.logits)]) for old, new in zip(before, regrouped, strict=True)]
    return tabulate("", NOISE, questions, same, regrouped)
