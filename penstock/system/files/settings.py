"""The settings of a system of files, and what it has by them: places and formats, the listings of its streams, and
the manifests of these by stream and partition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.api.ssp import SystemStreamPartition
from penstock.base.secrets import RootKeys
from penstock.errors import ConfigError
from penstock.objects.open import open_root, open_store
from penstock.objects.store import ObjectStore
from penstock.system.base import check_stream_name
from penstock.system.files.folders import Folder, Links, partition_values
from penstock.system.files.formats import Format, SourceFile, format_of
from penstock.system.files.listing import FoundFile, Listing, Order
from penstock.system.files.manifests import FolderCommits, PartitionLog


@dataclass(frozen=True, slots=True)
class FilesSettings:
    """The settings in `systems.<name>.*`."""

    name: str
    base: str
    """The place of the folders of all streams."""
    listing: str
    keys: RootKeys
    """The keys that sign the listing."""
    format: Format | None
    partitions: int | None
    poll_ms: int
    schemas: Mapping[str, str]
    """Stream → its schema; the empty name is for all other streams."""
    order: Order | None = None
    links: Links = "inside"

    def folder(self, stream: str) -> Folder:
        return Folder(f"{self.base.rstrip('/')}/{stream}", self.links)

    def format_of(self, file: FoundFile) -> Format:
        """Raises ConfigError if neither the configuration nor the file's name says it."""
        return self.format or format_of(file.path)

    @contextmanager
    def source(self, stream: str, file: FoundFile) -> Iterator[SourceFile]:
        """A file of a stream, to be read. Raises as `Folder.reading`."""
        folder = self.folder(stream)
        with folder.reading(file) as (system, path):
            yield SourceFile(system, path, f"{folder.url}/{file.path}", file.path, partition_values(file.path))

    def written_format(self) -> Format:
        """The format of outputs. Raises ConfigError if outputs cannot have the configured format or order."""
        if self.order is not None:
            raise ConfigError(
                f"`systems.{self.name}.order` is for inputs, and outputs have the order of their commits: name another "
                "system for the output"
            )
        if self.format == "csv":
            raise ConfigError(
                f"`systems.{self.name}.format` = `csv`: outputs are Parquet or lines of JSON, because CSV has "
                "neither nulls nor nested columns. Set it to parquet or json, or name another system for the output"
            )
        return self.format or "parquet"

    def schema_of(self, stream: str) -> str:
        """The schema of an output. Raises ConfigError if none is configured."""
        schemas = self.schemas
        text = schemas.get(stream) or schemas.get("")
        if text is None:
            raise ConfigError(
                f"`{self.name}.{stream}` is written to files, which need a schema: set `systems.{self.name}.schema` or "
                f"`systems.{self.name}.schema.{stream}` for this stream alone, as in `user STRING, visits BIGINT`"
            )
        return text


class Listings:
    """The listings of a system's streams, as far as they were read."""

    def __init__(self, settings: FilesSettings) -> None:
        self._settings = settings
        self._objects = open_root(settings.listing, settings.keys)
        self._known: dict[str, Listing] = {}

    def get(self, stream: str) -> Listing:
        if stream not in self._known:
            check_stream_name(stream)
            folder = self._settings.folder(stream).url
            place = hashlib.sha256(folder.encode()).hexdigest()[:16]
            self._known[stream] = Listing(self._objects, f"{self._settings.name}/{stream}/{place}", folder)
        return self._known[stream]

    def close(self) -> None:
        self._objects.close()


class PartitionLogs:
    """The manifests of partitions, by stream."""

    def __init__(self, settings: FilesSettings) -> None:
        self._settings = settings
        self._stores: dict[str, ObjectStore] = {}
        self._logs: dict[SystemStreamPartition, PartitionLog] = {}
        self._commits: dict[str, FolderCommits] = {}

    def get(self, ssp: SystemStreamPartition) -> PartitionLog:
        if ssp not in self._logs:
            self._logs[ssp] = PartitionLog(self.folder(ssp.stream), ssp)
        return self._logs[ssp]

    def commits(self, stream: str) -> FolderCommits:
        if stream not in self._commits:
            self._commits[stream] = FolderCommits(self.folder(stream))
        return self._commits[stream]

    def folder(self, stream: str) -> ObjectStore:
        if stream not in self._stores:
            self._stores[stream] = open_store(self._settings.folder(stream).url, is_for_others=True)
        return self._stores[stream]

    def close(self) -> None:
        while self._stores:
            self._stores.popitem()[1].close()
