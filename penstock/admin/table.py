"""The versions of a job's pushed tables, and the stores that it only reads."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.admin.job.logs import audited, operator
from penstock.admin.jobs import FoundJob
from penstock.api.ssp import SystemStream
from penstock.base.wording import listed, size_text, utc_text
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import NotFoundError
from penstock.facts import Facts, FactTable, Shown
from penstock.graph.store_declarations import side_input_of
from penstock.side.wing import SideStoreFacts, side_store_board
from penstock.tables.manifest import TableManifest
from penstock.tables.registry import TableRegistry, VersionRefusal, refusal_of


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version of a pushed table."""

    version: int
    rows: int
    size_bytes: int
    """The size of its files in the job root."""
    file_count: int
    source: str
    source_version: str
    """The Delta version, or the hash of the file list."""
    built_ms: int
    """In epoch milliseconds."""
    tasks: int
    """The number of tasks that it was built for; 1 if every task has all rows. A job with another number does not use
    it."""


@dataclass(frozen=True, slots=True)
class TableVersions(Shown):
    """A pushed table: its versions, ascending, and which of them the job is to use."""

    table: str
    versions: tuple[TableVersion, ...]
    chosen: int | None
    """The version that `use_table` set; None: the newest one."""
    unreadable: Mapping[int, str]
    """Version → the reason why it cannot be read."""
    refused: VersionRefusal | None
    """The last source that was refused since the newest version came."""

    @property
    def to_use(self) -> int | None:
        """The version that a running job uses, once every container has loaded it; None: there is none."""
        numbers = [each.version for each in self.versions]
        return self.chosen if self.chosen in numbers else max(numbers, default=None)

    def as_facts(self) -> Facts:
        rows = [
            (
                each.version,
                "yes" if each.version == self.to_use else "",
                f"{each.rows:,}",
                size_text(each.size_bytes),
                each.tasks,
                utc_text(each.built_ms),
                each.source_version,
                each.source,
            )
            for each in self.versions
        ]
        title = f"Table {self.table}" + ("" if self.chosen is None else f" (version {self.chosen} was chosen)")
        headings = "version>, to use, rows>, size>?3, tasks>?2, built, source version, source?1"
        notes = [f"version {number} cannot be read: {reason}" for number, reason in self.unreadable.items()]
        if (refused := self.refused) is not None:
            notes.append(f"refused at {utc_text(refused.time_ms)}: {refused.source_version} {refused.reason}")
        return Facts({}, (FactTable.of(title, headings, rows),), tuple(notes))


def table_versions(job: FoundJob, table: str | None = None) -> tuple[TableVersions, ...]:
    """The versions of a pushed table, or of all that the job has.

    Args:
        job: the job. It may run.
        table: the name of the table; None for all.

    Raises:
        NotFoundError: no version of the table was ever published; the message names the tables that exist.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     admin.table_versions(job)
        ()
    """
    names = table_names(job)
    if table is not None and table not in names:
        raise NotFoundError(_no_table(job, table, names))
    return tuple(_facts(job, name) for name in ([table] if table is not None else names))


def use_table(job: FoundJob, table: str, version: int | None) -> TableVersions:
    """Choose the version of a pushed table that the job uses. A running job notices within `tables.poll.ms`, loads the
    version beside the one in use, and switches to it between two batches, once every container has it.

    Args:
        job: the job. It may run.
        table: the name of the table.
        version: its number; None for the newest one, now and in future.

    Returns:
        The table as it is now.

    Raises:
        NotFoundError: there is no such table or version; the message names those that exist. Nothing was changed.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     admin.use_table(job, "planes", 7)
        Traceback (most recent call last):
        ...
        penstock.errors.NotFoundError: job `flights-1` has no versions of a pushed table `planes`; it has none
    """
    names = table_names(job)
    if table not in names:
        raise NotFoundError(_no_table(job, table, names))
    registry = TableRegistry(job.objects, job.paths, table)
    change = f"{registry.pinned() or 'newest'} -> {version or 'newest'}"
    with audited(job, "table use", {"table": table, "version": change}):
        registry.pin(version, f"{operator()} on {socket.gethostname()}")
    return _facts(job, table)


def table_names(job: FoundJob) -> list[str]:
    """The pushed tables of which the job root holds something, ascending."""
    prefix = f"{job.paths.tables}/"
    return sorted({key.removeprefix(prefix).partition("/")[0] for key in job.objects.list(job.paths.tables)})


def _no_table(job: FoundJob, table: str, names: list[str]) -> str:
    there = listed([f"`{name}`" for name in names])
    return f"job `{job.paths.root}` has no versions of a pushed table `{table}`; it has {there or 'none'}"


def _facts(job: FoundJob, table: str) -> TableVersions:
    registry = TableRegistry(job.objects, job.paths, table)
    found, refusal = registry.versions(), refusal_of(job.objects, job.paths, table).get()
    return TableVersions(
        table, tuple(_version(each) for each in found.manifests), registry.pinned(), found.unreadable, refusal
    )


def _version(manifest: TableManifest) -> TableVersion:
    return TableVersion(
        manifest.version,
        manifest.rows,
        manifest.size_bytes,
        len(manifest.files),
        manifest.source,
        manifest.source_version,
        manifest.built_ms,
        0 if manifest.fingerprint is None else manifest.fingerprint.tasks,
    )


def side_stores(job: FoundJob) -> tuple[SideStoreFacts, ...]:
    """The stores that the last run only reads, and their sources. Raises CorruptError or IncompatibleError."""
    found = side_store_board(job.objects, job.paths).get()
    return () if found is None else found.stores


def refuse_side_stores(job: FoundJob, record: CheckpointRecord, stores: Iterable[str]) -> None:
    """Raise NotFoundError for a store that the checkpoint does not have because the job only reads it."""
    missing = {store for store in stores if store not in record.stores}
    if not missing:
        return
    for each in side_stores(job):
        if each.store in missing:
            raise NotFoundError(each.why_not_kept)


def refuse_side_inputs(job: FoundJob, record: CheckpointRecord, streams: Iterable[SystemStream]) -> None:
    """Raise NotFoundError for a stream that has no position in the checkpoint because it is a side input."""
    missing = {str(stream) for stream in {*streams} - record.streams}
    if not missing:
        return
    for each in side_stores(job):
        for stream in missing.intersection(each.side_inputs):
            raise NotFoundError(f"`{stream}` is {side_input_of([each.store])}")
