"""Versions of pushed tables from rows that a test gives, without a source and without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.api.state.side_inputs import PushedTable, TableCandidate
from penstock.errors import ConfigError
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import StoreSpec
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.start.job import ClaimedJob
from penstock.tables.versions.build import check_candidate
from penstock.tables.versions.encode import RowEncoder
from penstock.tables.versions.fingerprint import fingerprint_of, pushed_table
from penstock.tables.versions.manifest import PublishedVersion, TableFile, TableManifest
from penstock.tables.versions.registry import TableRegistry, build_name
from penstock.tables.versions.sources import TableRefusedError
from penstock.testing.runner.table_builder import written_files

_SOURCE = "test"


class TablesInProcess:
    """The pushed tables of one job: publishes versions, and is the `PublishedTables` of its drivers."""

    def __init__(self, objects: ObjectStore, paths: JobPaths, graph: ApplicationGraph, tasks: int) -> None:
        self._tasks = tasks
        self._specs = {spec.name: spec for spec in graph.stores if isinstance(spec.side, PushedTable)}
        self._registries = {name: TableRegistry(objects, paths, name) for name in self._specs}

    def start(self) -> None:
        """Do nothing: there is nothing to build."""

    def close(self) -> None:
        """Do nothing: the tables are the test's."""

    def published(self, table: str) -> PublishedVersion:
        """The published version, read now. Raises the store's errors."""
        registry = self._registries[table]
        choice = registry.choose(fingerprint_of(self._specs[table], self._tasks))
        chosen = choice.version is not None and registry.pinned() == choice.version.version
        return PublishedVersion(choice.version, chosen, choice.warning or "")

    def pin(self, table: str, version: int | None) -> None:
        """Choose a version, as `penstock table use` does."""
        self._registries[table].pin(version)

    def push(self, table: str, rows: Iterable[Mapping[str, Any]]) -> TableManifest:
        """Publish a version with these rows, by column, if it passes the table's check.

        Raises:
            ConfigError: the application has no such pushed table; or the rows are no table: a key occurs twice or is
            missing, or a value does not fit the table's serdes; or the check refuses them.
        """
        spec = self._specs.get(table)
        if spec is None:
            raise ConfigError(f"`{table}` is not a pushed table of the application")
        registry, build = self._registries[table], build_name(0, uuid.uuid4().hex)
        given = [dict(row) for row in rows]
        try:
            files = self._files(spec, given, partial(registry.put_file, build))
            before = registry.newest()
            previous = None if before is None else before.rows
            check_candidate(pushed_table(spec), TableCandidate(table, _SOURCE, build, len(given), previous))
        except TableRefusedError as error:
            raise ConfigError(f"a version of table `{table}`: {error}") from error
        fingerprint = fingerprint_of(spec, self._tasks)
        return registry.publish(TableManifest(table, 0, 0, build, _SOURCE, build, len(given), 0, fingerprint, files))

    def _files(
        self, spec: StoreSpec, rows: list[dict[str, Any]], put: Callable[[str, bytes], None]
    ) -> tuple[TableFile, ...]:
        """Put the files of a version.

        Raises:
            TableRefusedError: the rows are no version.
        """
        encoder = RowEncoder.of(spec, self._tasks)
        names = list(dict.fromkeys(name for row in rows for name in row))
        if rows and (missing := [name for name in encoder.needed() if name not in names]):
            raise TableRefusedError(f"its rows have no column `{missing[0]}`")
        batches = pa.table({name: _column(name, rows) for name in names}).to_batches() if rows else []
        return written_files(encoder, batches, put)


def _column(name: str, rows: list[dict[str, Any]]) -> pa.Array:
    try:
        return pa.array([row.get(name) for row in rows])
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise TableRefusedError(
            f"column `{name}` cannot be a column of a file, whose values all have one type that Arrow knows: {error}"
        ) from error


def tables_in_process(job: ClaimedJob, needed: Callable[[str], Collection[int]]) -> TablesInProcess:
    """The pushed tables of a run whose containers are objects of this process. `needed` is not asked."""
    return TablesInProcess(job.objects, job.paths, job.topology.graph, job.settings.tasks)
