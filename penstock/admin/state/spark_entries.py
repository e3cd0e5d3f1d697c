"""Importing entries into a store: all of them to scratch, then, under a claim, to its backends, last the checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.admin.checkpoint.append import append_record
from penstock.admin.job.ownership import claimed_job
from penstock.admin.state.spark_target import StoreTarget
from penstock.admin.state.store_uploads import StoreUploads
from penstock.checkpoint.edit import Content, successor
from penstock.checkpoint.record import CheckpointRecord, Claim
from penstock.checkpoint.versions.value import Markers
from penstock.errors import IncompatibleError
from penstock.host.process_folder import process_folder
from penstock.spark.state_import.load import StoreLoad
from penstock.spark.state_import.mapping import EntryMapping
from penstock.spark.state_import.reader import SparkState
from penstock.state.backends.base import StoreCopy
from penstock.state.backends.roots import BackendRoots
from penstock.system.partitioner import partition_of

Progress = Callable[[int, int], None]
"""Called now and then with the partition of Spark's state that is read, and the number of entries so far."""

_SHOW_EVERY = 5000


@dataclass(frozen=True, slots=True)
class Imported:
    """The checkpoint that has the entries, how many of each task, and how many were left out."""

    record: CheckpointRecord
    entries: tuple[int, ...]
    left_out: int


def import_entries(state: SparkState, mapping: EntryMapping, target: StoreTarget, progress: Progress) -> Imported:
    """Read every entry, back all of them up, append the checkpoint. Until that nothing has changed: what a process that
    dies before leaves behind is of a dead epoch and named by no checkpoint.

    Raises:
        NotFoundError, CorruptError: a file of Spark's is missing or damaged; named.
        IncompatibleError: the store cannot hold an entry; or the job wrote a checkpoint meanwhile.
        LeaseHeldError, FencedError: the job runs.
        PenstockError: the function failed, or a backend.
    """
    with process_folder("penstock-import-") as scratch:
        store = target.found.config.store(target.spec.name)
        with closing(StoreLoad(store, target.tasks, scratch / "tasks")) as load:
            left_out = _fill(state, mapping, target, load, scratch / "spark", progress)
            copies = load.copies()
        record = _commit(target, copies)
        return Imported(record, tuple(load.entries), left_out)


def _fill(
    state: SparkState, mapping: EntryMapping, target: StoreTarget, load: StoreLoad, scratch: Path, progress: Progress
) -> int:
    convert, owners, left_out = mapping.convert, target.owners, 0
    for partition in range(state.store.partitions):
        with closing(state.entries(partition, scratch)) as entries:
            for count, (key, value) in enumerate(entries):
                entry = convert(key, value)
                if entry is None:
                    left_out += 1
                else:
                    load.put(partition_of(entry.partition_key, owners), entry.key, entry.value)
                if count % _SHOW_EVERY == 0:
                    progress(partition, sum(load.entries))
    return left_out


def _commit(target: StoreTarget, copies: list[StoreCopy]) -> CheckpointRecord:
    """Claim, upload, append."""
    latest, store = target.view.latest, target.spec.name
    with claimed_job(target.found, target.log, "import") as claim:
        view = target.log.known()
        if view.latest != latest or view.retained != target.view.retained:
            raise IncompatibleError(
                f"nothing was imported: another process wrote a checkpoint of job `{target.found.paths.root}` meanwhile"
            )
        now_ms, nanos = time.time_ns() // 1_000_000, time.monotonic_ns()
        draft = _successor(target, claim, {}, now_ms, nanos)
        roots = BackendRoots(target.found.config, target.found.objects)
        uploads = StoreUploads(target.found, target.tasks, target.systems, target.view, claim.epoch)
        try:
            uploads.prepare([store])
            uploads.add(store, copies, roots)
            markers = uploads.run(target.base.base.id, draft.id)
            own = {task: {name: found[store] for name, found in each.items()} for task, each in markers.items()}
            record = _successor(target, claim, own, now_ms, nanos)
            append_record(target.log, record, target.found.paths.root)
            uploads.done(record.id, markers)
        finally:
            uploads.close()
            roots.close()
    return record


def _successor(
    target: StoreTarget, claim: Claim, markers: Mapping[int, Mapping[str, str]], now_ms: int, nanos: int
) -> CheckpointRecord:
    """The job's last checkpoint, but for the store."""
    base, store = target.base.base, target.spec.name
    before = target.base.before
    content = Content(
        next_offsets=target.next_offsets,
        markers={
            task: _with_store(before.markers.get(task, {}) if before else {}, store, markers.get(task, {}))
            for task in range(target.tasks)
        },
    )
    settings = target.found.config.task
    record = successor(base, content, target.log.known(), claim, settings, now_ms, nanos)
    covered = base.stores if before is not None else {}
    return replace(record, stores={**covered, store: target.layout})


def _with_store(before: Markers, store: str, own: Mapping[str, str]) -> Markers:
    """The markers of a task with these, and no others, of the store."""
    kept = {
        backend: {name: marker for name, marker in stores.items() if name != store}
        for backend, stores in before.items()
    }
    for backend, marker in own.items():
        kept.setdefault(backend, {})[store] = marker
    return {backend: stores for backend, stores in kept.items() if stores}
