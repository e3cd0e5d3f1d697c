"""Fills a store with the state of a Spark Structured Streaming query."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.admin.checkpoint.change import NextCheckpoint, next_checkpoint
from penstock.admin.job.audit import audited
from penstock.admin.job.running import refuse_running
from penstock.admin.state.spark_target import StoreTarget, open_store_target
from penstock.admin.state.store_uploads import StoreUploads
from penstock.application.application import Application
from penstock.base.wording import argument, counted
from penstock.checkpoint.edit import CheckpointContent
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.task_values import Markers
from penstock.errors import ConfigError, IncompatibleError
from penstock.facts import Facts, FactTable
from penstock.host.folders import process_folder
from penstock.notebook import Shown
from penstock.objects.open import open_store
from penstock.spark.state_import.checkpoint import SparkCheckpoint
from penstock.spark.state_import.mapping import EntryMapping, MappedColumn, function_mapping, plain_mapping, raw_mapping
from penstock.spark.state_import.reader import SparkState, open_state
from penstock.state.backends.base import StoreCopy
from penstock.state.backends.roots import BackendRoots
from penstock.state.outside_backup import StoreLoad
from penstock.system.partitioner import partition_of

Progress = Callable[[int, int], None]
"""Called now and then with the partition of Spark's state that is read, and the number of entries so far."""
_SHOW_EVERY = 5000


@dataclass(frozen=True, slots=True)
class ImportFacts:
    """The result of `import_spark`. `entries` counts entries by task; `left_out` counts those for which the function
    returned None."""

    job: str
    store: str
    checkpoint: str
    source: str
    operator: int
    spark_store: str
    variable: str | None
    batch: int
    columns: tuple[MappedColumn, ...]
    entries: tuple[int, ...]
    left_out: int
    backends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SparkImport(Shown):
    """A planned import, from `plan_spark_import`: Spark's state, the mapping of its columns, and the store."""

    state: SparkState = field(repr=False)
    mapping: EntryMapping = field(repr=False)
    target: StoreTarget = field(repr=False)

    @property
    def columns(self) -> tuple[MappedColumn, ...]:
        """The mapping of each column."""
        return self.mapping.columns

    def as_facts(self) -> Facts:
        state, target = self.state, self.target
        serdes = f"{target.spec.key_serde.name} {target.spec.value_serde.name}"
        partitions = counted(state.store.partitions, "partition")
        lines = {
            "from": state.checkpoint.url,
            "state": f"{state.name} ({state.operator.name}), {partitions}, batch {state.batch}",
            "to": f"store `{target.spec.name}` ({serdes}) of job {target.found.paths.root}",
            "tasks": target.tasks,
            "positions": "as they are" if target.ran else "where a first start begins: the job never ran",
            "the query read": tuple(state.checkpoint.source_offsets(state.batch)),
        }
        rows = [(c.of, c.column, c.type, c.mapping or f"CANNOT BE MAPPED: {c.problem}") for c in self.columns]
        return Facts(lines, (FactTable.of("", "of, column, Spark's type, becomes", rows),))


@contextmanager
def plan_spark_import(
    app: Application,
    checkpoint: str,
    store: str,
    file: str | Path | None = None,
    assignments: Sequence[str] | None = None,
    *,
    overrides: Mapping[str, object] | None = None,
    operator: int | None = None,
    spark_store: str = "default",
    variable: str | None = None,
    batch: int | None = None,
    function: Callable[..., Any] | None = None,
    raw: bool = False,
    called: str | None = None,
    function_called: str | None = None,
) -> Iterator[SparkImport]:
    """Plan to fill a store with the state of a Spark query. Writes nothing.

    Args:
        app: the application of the job.
        checkpoint: the checkpointLocation of the Spark query: a folder, s3://, gs:// or az://.
        store: the application's store.
        file, assignments, overrides, called: as in `open_job`.
        operator: the number of Spark's stateful operator; the only one, if None.
        spark_store: Spark's state store.
        variable: the state variable of a transformWithState.
        batch: read the state after this batch; after the last committed one, if None.
        function: called with key and value as dicts of their columns; returns (key, value) for the store, or None to
            leave the entry out. A third item is the key of the entry's messages.
        raw: store keys and values as Spark's own bytes.
        function_called: the function's name in messages.

    Raises:
        ConfigError, NotFoundError, IncompatibleError, CorruptError: one of the two sides cannot be opened.
    """
    with ExitStack() as stack:
        opened = open_store_target(app, store, file, assignments, overrides=overrides, called=called)
        target = stack.enter_context(opened)
        files = open_store(checkpoint)
        stack.callback(files.close)
        query = SparkCheckpoint(files, checkpoint)
        state = open_state(query, _operator(query, operator), spark_store, variable, batch)
        if raw:
            mapping = raw_mapping(state, target.spec)
        elif function is not None:
            mapping = function_mapping(state, target.spec, function, function_called or repr(function))
        else:
            mapping = plain_mapping(state, target.spec)
        yield SparkImport(state, mapping, target)


def import_spark(
    planned: SparkImport,
    *,
    replace: bool = False,
    confirm: Callable[[], None] = lambda: None,
    progress: Progress = lambda partition, entries: None,
) -> ImportFacts:
    """Import every entry into the task that owns its key, back the tasks up, and write one checkpoint with them.

    Until the checkpoint is written, the job has not changed.

    Args:
        planned: the plan, from `plan_spark_import`.
        replace: replace what the store holds now. Otherwise a store that holds entries is refused.
        confirm: called after all checks, before anything is read or written. It raises to give up.
        progress: called now and then with the partition that is read, and the number of entries so far.

    Raises:
        IncompatibleError: a column cannot be mapped, or the store holds entries.
        LeaseHeldError: the job runs.
        NotFoundError, CorruptError: a file of Spark's is missing or damaged; the message names it.
    """
    state, mapping, target = planned.state, planned.mapping, planned.target
    _refuse_unmapped(mapping)
    state.check()
    refuse_running(target.found)
    if not replace:
        target.refuse_content()
    confirm()
    changes = {"store": target.spec.name, "source": f"{state.checkpoint.url}, batch {state.batch}"}
    with audited(target.found, "state import-spark", changes) as change:
        imported = import_entries(state, mapping, target, progress)
        before = target.base.base.id if target.ran else "none"
        change.changes |= {"checkpoint": f"{before} -> {imported.record.id}", "entries": str(sum(imported.entries))}
    return ImportFacts(
        job=target.found.paths.root,
        store=target.spec.name,
        checkpoint=str(imported.record.id),
        source=state.checkpoint.url,
        operator=state.operator.number,
        spark_store=state.store.name,
        variable=state.variable,
        batch=state.batch,
        columns=mapping.columns,
        entries=imported.entries,
        left_out=imported.left_out,
        backends=target.backends,
    )


def _operator(query: SparkCheckpoint, wanted: int | None) -> int:
    if wanted is not None:
        return wanted
    known = query.operators()
    if len(known) == 1:
        return known[0]
    query.committed()
    there = ", ".join(map(str, known)) or "none"
    raise ConfigError(f"`{query.url}` has the stateful operators {there}: name one with {argument('operator')}")


def _refuse_unmapped(mapping: EntryMapping) -> None:
    """Raise IncompatibleError, with everything that is wrong, if there is no mapping."""
    columns = [
        f"column `{each.column}` of the {each.of} ({each.type}): {each.problem}"
        for each in mapping.columns
        if each.problem
    ]
    if problems := [*mapping.problems, *columns]:
        raise IncompatibleError(
            f"{'; '.join(problems)}. Name a function that maps the entries with {argument('function')}; nothing was "
            "imported"
        )


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
    store, found = target.spec.name, target.found
    late = f"nothing was imported: another process wrote a checkpoint of job `{found.paths.root}` meanwhile"
    with (
        next_checkpoint(found, "import", target.view, late) as following,
        closing(BackendRoots(found.config, found.objects)) as roots,
        closing(StoreUploads(following, target.tasks, target.systems)) as uploads,
    ):
        uploads.prepare([store])
        uploads.add(store, copies, roots)
        markers = uploads.run(target.base.base.id, following.id)
        own = {task: {name: each[store] for name, each in backends.items()} for task, backends in markers.items()}
        record = _successor(target, following, own)
        following.append(record)
        uploads.done(record.id, markers)
    return record


def _successor(
    target: StoreTarget, following: NextCheckpoint, markers: Mapping[int, Mapping[str, str]]
) -> CheckpointRecord:
    """The job's last checkpoint, but for the store."""
    base, store = target.base.base, target.spec.name
    before = target.base.before
    content = CheckpointContent(
        next_offsets=target.next_offsets,
        markers={
            task: _with_store(before.markers.get(task, {}) if before else {}, store, markers.get(task, {}))
            for task in range(target.tasks)
        },
    )
    covered = base.stores if before is not None else {}
    return replace(following.record(base, content), stores={**covered, store: target.layout})


def _with_store(before: Markers, store: str, own: Mapping[str, str]) -> Markers:
    """The markers of a task, with `own` as the only ones of the store."""
    kept = {
        backend: {name: marker for name, marker in stores.items() if name != store}
        for backend, stores in before.items()
    }
    for backend, marker in own.items():
        kept.setdefault(backend, {})[store] = marker
    return {backend: stores for backend, stores in kept.items() if stores}
