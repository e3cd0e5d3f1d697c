"""The settings of a system of files, and the places and formats by them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.base.signing import RootKeys
from penstock.errors import ConfigError
from penstock.system.files.folders import Folder, Links, partition_values
from penstock.system.files.formats import Format, format_of
from penstock.system.files.listing import FoundFile, Order
from penstock.system.files.text import SourceFile


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
    """By stream; the empty name is for all others."""
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
