"""Versions of pushed tables without Spark, for jobs in one process."""

from __future__ import annotations

import hashlib
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from penstock.api.graph import ApplicationGraph
from penstock.api.side_inputs import PushedTable
from penstock.api.store import StoreSpec
from penstock.driver.ports import Published
from penstock.errors import ConfigError
from penstock.metadata.object_store import ObjectStore
from penstock.metadata.paths import JobPaths
from penstock.state.engines.rocksdb import write_sorted
from penstock.system.partitioner import partition_of
from penstock.tables.manifest import TableFile, TableFingerprint, TableManifest
from penstock.tables.registry import TableRegistry, build_name


class TablesInProcess:
    """The pushed tables of one job: publishes versions, and is the `PublishedTables` of its drivers."""

    def __init__(self, objects: ObjectStore, paths: JobPaths, graph: ApplicationGraph, tasks: int) -> None:
        self._tasks = tasks
        self._specs = {spec.name: (spec, spec.side) for spec in graph.stores if isinstance(spec.side, PushedTable)}
        self._registries = {name: TableRegistry(objects, paths, name) for name in self._specs}

    def published(self, table: str) -> Published:
        """See `PublishedTables`. It looks now, and raises what the store raises."""
        registry = self._registries[table]
        choice = registry.choose(self._fingerprint(*self._specs[table]))
        return Published(choice.version, registry.pinned() is not None, choice.warning or "")

    def pin(self, table: str, version: int | None) -> None:
        """Choose a version, as `penstock table use` does."""
        self._registries[table].pin(version)

    def push(self, table: str, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> TableManifest:
        """Publish a version with these entries: keys and values as the application sees them.

        Raises:
            ConfigError: the application has no such pushed table, or a key occurs twice.
            SerdeError: a key or a value does not fit the table's serdes.
        """
        if table not in self._specs:
            raise ConfigError(f"`{table}` is not a pushed table of the application")
        spec, side = self._specs[table]
        build = build_name(0, uuid.uuid4().hex)
        files = self._files(spec, side, build, entries)
        rows = sum(file.rows for file in files)
        draft = TableManifest(table, 0, 0, build, "test", build, rows, 0, self._fingerprint(spec, side), files)
        return self._registries[table].publish(draft)

    def _files(
        self, spec: StoreSpec, side: PushedTable, build: str, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]]
    ) -> tuple[TableFile, ...]:
        by_task: dict[int, dict[bytes, bytes]] = {}
        for key, value in entries.items() if isinstance(entries, Mapping) else entries:
            data = spec.key_serde.to_bytes(key)
            own = by_task.setdefault(0 if side.broadcast else partition_of(data, self._tasks), {})
            if data in own:
                raise ConfigError(f"the key {key!r} occurs twice in a version of table `{spec.name}`")
            own[data] = spec.value_serde.to_bytes(value)
        return tuple(self._file(spec.name, build, task, own) for task, own in sorted(by_task.items()))

    def _file(self, table: str, build: str, task: int, entries: Mapping[bytes, bytes]) -> TableFile:
        keys = sorted(entries)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "table"
            write_sorted(path, ((key, entries[key]) for key in keys))
            data = path.read_bytes()
        name = f"{task}-0.sst"
        self._registries[table].put_file(build, name, data)
        return TableFile(name, task, hashlib.sha256(data).hexdigest(), len(data), len(keys), keys[0], keys[-1])

    def _fingerprint(self, spec: StoreSpec, table: PushedTable) -> TableFingerprint:
        key = (table.key,) if isinstance(table.key, str) else table.key
        single = isinstance(table.value, str)
        value = (table.value,) if isinstance(table.value, str) else table.value
        return TableFingerprint(
            spec.key_serde.name, spec.value_serde.name, key, value, single, self._tasks, table.broadcast
        )
