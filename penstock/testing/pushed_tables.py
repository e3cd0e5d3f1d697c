"""Versions of pushed tables of rows that a test gives, without a source and without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.graph import ApplicationGraph
from penstock.api.side_inputs import PushedTable
from penstock.driver.ports import Published
from penstock.errors import ConfigError
from penstock.metadata.object_store import ObjectStore
from penstock.metadata.paths import JobPaths
from penstock.tables.build import files_of
from penstock.tables.encode import ENTRIES, RowEncoder
from penstock.tables.files import FileWriter
from penstock.tables.fingerprint import fingerprint_of
from penstock.tables.manifest import TableManifest
from penstock.tables.registry import TableRegistry, build_name
from penstock.tables.sources import TableRefusedError


class TablesInProcess:
    """The pushed tables of one job: publishes versions, and is the `PublishedTables` of its drivers."""

    def __init__(self, objects: ObjectStore, paths: JobPaths, graph: ApplicationGraph, tasks: int) -> None:
        self._tasks = tasks
        self._specs = {spec.name: spec for spec in graph.stores if isinstance(spec.side, PushedTable)}
        self._registries = {name: TableRegistry(objects, paths, name) for name in self._specs}

    def start(self) -> None:
        """See `PublishedTables`. There is nothing to build."""

    def published(self, table: str) -> Published:
        """See `PublishedTables`. It looks now, and raises what the store raises."""
        registry = self._registries[table]
        choice = registry.choose(fingerprint_of(self._specs[table], self._tasks))
        chosen = choice.version is not None and registry.pinned() == choice.version.version
        return Published(choice.version, chosen, choice.warning or "")

    def pin(self, table: str, version: int | None) -> None:
        """Choose a version, as `penstock table use` does."""
        self._registries[table].pin(version)

    def push(self, table: str, rows: Iterable[Mapping[str, Any]]) -> TableManifest:
        """Publish a version with these rows, by column.

        Raises:
            ConfigError: the application has no such pushed table, or the rows are not one: a key is there twice or
                missing, or something does not fit the table's serdes.
        """
        spec = self._specs.get(table)
        if spec is None:
            raise ConfigError(f"`{table}` is not a pushed table of the application")
        registry, encoder = self._registries[table], RowEncoder.of(spec, self._tasks)
        build = build_name(0, uuid.uuid4().hex)

        def put(name: str, data: bytes) -> None:
            registry.put_file(build, name, data)

        given = [dict(row) for row in rows]
        names = list(dict.fromkeys(name for row in given for name in row))
        if given and (missing := [name for name in encoder.needed() if name not in names]):
            raise ConfigError(f"a version of table `{table}`: its rows have no column `{missing[0]}`")
        batches = pa.table({name: [row.get(name) for row in given] for name in names}).to_batches() if given else []
        try:
            entries = pa.Table.from_batches(encoder(batches), schema=ENTRIES)
            order = pc.sort_indices(entries, sort_keys=[("task", "ascending"), ("key", "ascending")])
            writer = FileWriter(put, encoder.key_serde, encoder.key_columns)
            written = [row for batch in writer.write(entries.take(order).to_batches()) for row in batch.to_pylist()]
            files = files_of(written, encoder.key_columns)
        except TableRefusedError as error:
            raise ConfigError(f"a version of table `{table}`: {error}") from error
        fingerprint = fingerprint_of(spec, self._tasks)
        return registry.publish(TableManifest(table, 0, 0, build, "test", build, len(given), 0, fingerprint, files))
