"""The store that is to be filled from outside: of which job, with how many tasks, and which task owns a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.admin.checkpoint.target import ImportTarget, find_target
from penstock.admin.jobs import FoundJob, opened
from penstock.application.application import Application
from penstock.base.wording import flag
from penstock.batch.batch import first_positions
from penstock.checkpoint.edit import NextOffsets
from penstock.checkpoint.log_view import LogView
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.errors import ConfigError, IncompatibleError
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import StoreSpec
from penstock.start.inputs import Grouping
from penstock.start.job_streams import JobStreams
from penstock.start.layout import check_layout, store_layout
from penstock.state.reading.reader import StateReader, seen_entries
from penstock.system.base import System


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
