"""Fills a store with the state of a Spark Structured Streaming query."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.admin.checkpoint.change import NextCheckpoint, next_checkpoint
from penstock.admin.checkpoint.target import ImportTarget, find_target
from penstock.admin.job.logs import audited
from penstock.admin.job.running import refuse_running
from penstock.admin.jobs import FoundJob, opened
from penstock.admin.state.store_uploads import StoreUploads
from penstock.application.application import Application
from penstock.base.wording import argument, counted, flag
from penstock.batch.batch import first_positions
from penstock.checkpoint.edit import CheckpointContent, NextOffsets, with_store
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.errors import ConfigError, IncompatibleError
from penstock.facts import Facts, FactTable, Shown
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import StoreSpec
from penstock.host.process import process_folder
from penstock.objects.open import open_store
from penstock.spark.state_import.checkpoint import SparkCheckpoint
from penstock.spark.state_import.mapping import EntryMapping, MappedColumn, function_mapping, plain_mapping, raw_mapping
from penstock.spark.state_import.reader import SparkState, open_state
from penstock.start.inputs import Grouping
from penstock.start.job_streams import JobStreams
from penstock.start.layout import check_layout, store_layout
from penstock.state.backends.base import StoreCopy
from penstock.state.backends.resources import BackendRoots
from penstock.state.outside_backup import StoreLoad
from penstock.state.reading.reader import StateReader, seen_entries
from penstock.system.base import System
from penstock.system.partitioner import partition_of


@dataclass(frozen=True, slots=True)
class StoreTarget:
    """A store of a job that is stopped, or never ran."""

    found: FoundJob
    view: LogView
    """The log that everything is decided on."""
    base: ImportTarget
    """The checkpoint or application that a start would begin with."""
    spec: StoreSpec
    layout: str
    next_offsets: NextOffsets
    """From the last checkpoint or, for a job that never ran, as its first start would choose them."""
    tasks: int
    owners: int
    """The number of partitions that decides which task owns a key."""
    systems: Mapping[str, System]

    @property
    def ran(self) -> bool:
        return self.base.before is not None

    @property
    def backends(self) -> tuple[str, ...]:
        return self.found.config.store(self.spec.name).backup_factories

    def refuse_content(self) -> None:
        """Raise IncompatibleError if the store holds anything in the checkpoint that a start would begin with."""
        name, record = self.spec.name, self.base.base
        if not self.ran or name not in record.stores:
            return
        found = self.found
        with StateReader(found.config, found.paths, found.objects, self.systems) as reader:
            for task in range(self.tasks):
                with reader.open(record, name, task) as engine:
                    if next(seen_entries(record, name, engine).scan(None, None), None) is not None:
                        raise IncompatibleError(
                            f"store `{name}` holds entries in checkpoint {record.id} (task {task}). `penstock state "
                            f"scan` shows them; {flag('replace')} deletes all of them"
                        )


@contextmanager
def open_store_target(
    app: Application,
    store: str,
    file: str | Path | None = None,
    assignments: Sequence[str] | None = None,
    *,
    overrides: Mapping[str, object] | None = None,
    called: str | None = None,
) -> Iterator[StoreTarget]:
    """The store of an application's job. The arguments are those of `open_job`.

    Raises:
        ConfigError: the configuration is wrong, or the application has no such store.
        NotFoundError: an input does not exist.
        IncompatibleError: the application does not fit the job's last checkpoint, or no task owns a key.
        CorruptError: the job's log is damaged where it is needed.
    """
    config = load_config(file, overrides, assignments or (), default_job_name=app.name)
    graph = app.graph()
    specs = {spec.name: spec for spec in graph.stores}
    if store not in specs:
        known = ", ".join(f"`{name}`" for name in specs) or "none"
        raise ConfigError(f"`{called or app.name}` has no store `{store}`; it has: {known}")
    with opened(config, app) as found, closing(JobStreams.open(graph, config)) as streams:
        view = found.log.read()
        base = find_target(found, view)
        layout = store_layout(graph)
        grouping = streams.group(streams.input_partitions())
        tasks = grouping.count
        if base.before is not None:
            check_layout(base.base, layout, tasks, job=found.paths.root)
        owners = _owners(graph, store, streams, tasks)
        offsets = _first_offsets(streams, config, grouping) if base.before is None else base.base.next_offsets
        yield StoreTarget(found, view, base, specs[store], layout[store], offsets, tasks, owners, streams.systems)


def _first_offsets(streams: JobStreams, config: JobConfig, grouping: Grouping) -> NextOffsets:
    first = first_positions(streams.ends(), {stream: config.stream(stream).offset_default for stream in streams.inputs})
    return {task: {ssp: first[ssp] for ssp in ssps} for task, ssps in grouping.tasks.items()}


def _owners(graph: ApplicationGraph, store: str, streams: JobStreams, tasks: int) -> int:
    """The number of partitions by which the keys of the messages for the store are spread over the tasks."""
    counts: dict[int, str] = {}
    specs = {op.id: op for op in graph.operators}
    pending = graph.store_users().get(store, [])
    seen: set[str] = set()
    while pending:
        op = specs[pending.pop()]
        if op.id in seen:
            continue
        seen.add(op.id)
        if op.changes_key:
            counts.setdefault(tasks, f"`{op.id}` by {tasks}")
        elif (stream := op.input_stream) is not None:
            if any(each.stream == stream for each in streams.broadcast):
                raise IncompatibleError(
                    f"store `{store}` gets messages of `{stream}`, which every task reads "
                    "(task.broadcast.inputs), so it is not known which task owns a key"
                )
            own = streams.admins[stream.system].partition_count(stream.stream)
            counts.setdefault(own, f"input `{stream}` by {own}")
        else:
            pending.extend(op.upstream)
    if len(counts) > 1:
        raise IncompatibleError(
            f"keys of store `{store}` are spread over the tasks in more than one way ({', '.join(counts.values())}), "
            "so it is not known which task owns a key: use partition_by before the operator"
        )
    return next(iter(counts), tasks)


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
        return Facts(lines, (FactTable("", self.columns),))


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
            task: with_store(before.markers.get(task, {}) if before else {}, store, markers.get(task, {}))
            for task in range(target.tasks)
        },
    )
    covered = base.stores if before is not None else {}
    return replace(following.record(base, content), stores={**covered, store: target.layout})
