"""Importing entries into a store: all of them to scratch, then, under a claim, to its backends, last the checkpoint."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.admin.checkpoint.append import append_record
from penstock.admin.job.ownership import claimed_job
from penstock.admin.state.spark_target import StoreTarget
from penstock.checkpoint.edit import Content, successor
from penstock.checkpoint.id import CheckpointId
from penstock.checkpoint.record import CheckpointRecord, Claim
from penstock.checkpoint.value import Markers
from penstock.errors import IncompatibleError, PenstockError
from penstock.metadata.identity import settle
from penstock.state.admins import BackendAdmins
from penstock.state.backends.base import BackendContext, StoreCopy
from penstock.state.backends.roots import BackendRoots
from penstock.state.spark.load import BaseUpload, StoreLoad
from penstock.state.spark.mapping import EntryMapping
from penstock.state.spark.reader import SparkState
from penstock.system.partitioner import partition_of

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called now and then with the partition of Spark's state that is read, and the number of entries so far."""

_UPLOADERS = 4
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
    scratch = Path(tempfile.mkdtemp(prefix="penstock-import-"))
    try:
        store = target.found.config.store(target.spec.name)
        with closing(StoreLoad(store, target.tasks, scratch / "tasks")) as load:
            left_out = _fill(state, mapping, target, load, scratch / "spark", progress)
            copies = load.copies()
        record = _commit(target, copies)
        return Imported(record, tuple(load.entries), left_out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


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
    latest = target.view.latest
    with claimed_job(target.found, target.log, "import") as claim:
        view = target.log.known()
        if view.latest != latest or view.retained != target.view.retained:
            raise IncompatibleError(
                f"nothing was imported: another process wrote a checkpoint of job `{target.found.paths.root}` meanwhile"
            )
        now_ms, nanos = time.time_ns() // 1_000_000, time.monotonic_ns()
        draft = _successor(target, claim, {}, now_ms, nanos)
        roots = BackendRoots(target.found.config, target.found.objects)
        uploads: list[BaseUpload] = []
        try:
            uploads = _open_uploads(target, claim, roots)
            markers = _upload(uploads, copies, target.base.base.id, draft.id)
            record = _successor(target, claim, markers, now_ms, nanos)
            append_record(target.log, record, target.found.paths.root)
            for upload in uploads:
                _clean_up(upload, record.id, markers[upload.task][upload.backend])
        finally:
            for upload in uploads:
                upload.close()
            roots.close()
    return record


def _open_uploads(target: StoreTarget, claim: Claim, roots: BackendRoots) -> list[BaseUpload]:
    found, store = target.found, target.spec.name
    uid = settle(found.objects, found.paths, found.config.job.root)
    with closing(
        BackendAdmins(
            found.config,
            found.paths,
            found.objects,
            target.tasks,
            [store],
            target.systems,
            uid,
            target.view.restorable,
        )
    ) as admins:
        admins.prepare(claim.epoch)

    def context(backend: str, task: int) -> BackendContext:
        objects = roots.of(backend)
        return BackendContext(objects, found.paths, task, (store,), claim.epoch, found.config, target.systems)

    return [BaseUpload(backend, context(backend, task)) for task in range(target.tasks) for backend in target.backends]


def _upload(
    uploads: list[BaseUpload], copies: list[StoreCopy], before: CheckpointId, checkpoint_id: CheckpointId
) -> dict[int, dict[str, str]]:
    """Task -> backend -> marker of the store."""
    with ThreadPoolExecutor(_UPLOADERS, thread_name_prefix="import") as pool:
        futures = [pool.submit(each.run, before, checkpoint_id, copies[each.task]) for each in uploads]
        try:
            markers: dict[int, dict[str, str]] = {}
            for each, future in zip(uploads, futures, strict=True):
                markers.setdefault(each.task, {})[each.backend] = future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return markers


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


def _clean_up(upload: BaseUpload, checkpoint_id: CheckpointId, marker: str) -> None:
    """What fails here costs space, no state: the job's next commit does it again."""
    try:
        upload.done(checkpoint_id, marker)
    except PenstockError as error:
        logger.warning("cleaning up in backend %s failed: %s", upload.backend, error)
