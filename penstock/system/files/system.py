"""The system `files`: a stream is a folder of Parquet, JSON lines or CSV, and a message a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from penstock.config.settings import RootKeys
from penstock.errors import ConfigError
from penstock.system.base import System, SystemWriter, WriterIdentity, check_options
from penstock.system.files.admin import FilesAdmin
from penstock.system.files.folders import Folder, Links, partition_values
from penstock.system.files.formats import FORMATS, Format, format_of
from penstock.system.files.listing import ROW_BITS, FoundFile, Order
from penstock.system.files.reader import FilesReader
from penstock.system.files.schema import parse_schema
from penstock.system.files.text import SourceFile
from penstock.system.files.writer import FilesWriter

_OPTIONS = ("folder", "format", "links", "listing", "order", "partitions", "poll.ms", "root.key", "root.key.previous")
"""The options, with `schema` and `schema.<stream>`. The keys of the root come from `job.root.key`."""
_POLL_MS = 1000


@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings in `systems.<name>.*`."""

    folder: str
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


class FilesSystem(System):
    """Folders of files as inputs: every file is read once, existing and new ones. As outputs, their rows become valid
    with a manifest."""

    fences: ClassVar[bool] = True
    keeps_progress: ClassVar[bool] = True
    has_keys: ClassVar[bool] = False
    lag_unit: ClassVar[str] = "file"

    def __init__(self, name: str, settings: _Settings) -> None:
        self.name = name
        self.settings = settings

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> FilesSystem:
        """The options are in docs/files.md."""
        schemas = {key: text for key, text in options.items() if key.partition(".")[0] == "schema"}
        check_options(name, {key: text for key, text in options.items() if key not in schemas}, _OPTIONS)
        for needed in ("folder", "listing"):
            if not options.get(needed):
                raise ConfigError(f"`systems.{name}.{needed}` is missing: the URL or path of a folder")
        settings = _Settings(
            _absolute(options["folder"]),
            _absolute(options["listing"]),
            RootKeys(options.get("root.key"), options.get("root.key.previous")),
            _format(name, options.get("format")),
            _positive(name, options, "partitions"),
            _positive(name, options, "poll.ms") or _POLL_MS,
            {key.partition(".")[2]: text for key, text in schemas.items()},
            _order(name, options.get("order")),
            _links(name, options.get("links")),
        )
        for key, text in schemas.items():
            try:
                parse_schema(text)
            except ConfigError as error:
                raise ConfigError(f"`systems.{name}.{key}`: {error}") from error
        return cls(name, settings)

    def folder(self, stream: str) -> Folder:
        return Folder(f"{self.settings.folder.rstrip('/')}/{stream}", self.settings.links)

    def format_of(self, file: FoundFile) -> Format:
        """Raises ConfigError if neither the configuration nor the file's name says it."""
        return self.settings.format or format_of(file.path)

    @contextmanager
    def source(self, stream: str, file: FoundFile) -> Iterator[SourceFile]:
        """A file of a stream, to be read. Raises as `Folder.reading`."""
        folder = self.folder(stream)
        with folder.reading(file) as (system, path):
            yield SourceFile(system, path, f"{folder.url}/{file.path}", file.path, partition_values(file.path))

    def lag(self, position: int, upcoming: int) -> int:
        """In files that are not read to their end."""
        return max(0, (upcoming >> ROW_BITS) - (position >> ROW_BITS))

    def admin(self) -> FilesAdmin:
        return FilesAdmin(self)

    def reader(self) -> FilesReader:
        return FilesReader(self)

    def writer(self, identity: WriterIdentity | None) -> SystemWriter:
        return FilesWriter(
            self.admin(), identity, lambda stream: self.folder(stream).url, self.schema_of, self.written_format()
        )

    def written_format(self) -> Format:
        """The format of outputs. Raises ConfigError if outputs cannot have the configured format or order."""
        if self.settings.order is not None:
            raise ConfigError(
                f"`systems.{self.name}.order` is for inputs, and outputs have the order of their commits: name another "
                "system for the output"
            )
        if self.settings.format == "csv":
            raise ConfigError(
                f"`systems.{self.name}.format` = `csv`: outputs are Parquet or lines of JSON, because CSV has "
                "neither nulls nor nested columns. Set it to parquet or json, or name another system for the output"
            )
        return self.settings.format or "parquet"

    def schema_of(self, stream: str) -> str:
        """The schema of an output. Raises ConfigError if none is configured."""
        schemas = self.settings.schemas
        text = schemas.get(stream) or schemas.get("")
        if text is None:
            raise ConfigError(
                f"`{self.name}.{stream}` is written to files, which need a schema: set `systems.{self.name}.schema` or "
                f"`systems.{self.name}.schema.{stream}` for this stream alone, as in `user STRING, visits BIGINT`"
            )
        return text


def _format(name: str, text: str | None) -> Format | None:
    for each in FORMATS:
        if each == text:
            return each
    if text is not None:
        raise ConfigError(f"`systems.{name}.format` = `{text}`: it is {', '.join(FORMATS)}")
    return None


def _order(name: str, text: str | None) -> Order | None:
    if text is None:
        return None
    if text == "name":
        return "name"
    raise ConfigError(f"`systems.{name}.order` = `{text}`: it is `name`, or left out")


def _links(name: str, text: str | None) -> Links:
    if text is None or text == "inside":
        return "inside"
    if text == "follow":
        return "follow"
    raise ConfigError(f"`systems.{name}.links` = `{text}`: it is inside or follow")


def _absolute(place: str) -> str:
    """The place for processes that have another working directory."""
    return place if "://" in place else str(Path(place).absolute())


def _positive(name: str, options: Mapping[str, str], option: str) -> int | None:
    text = options.get(option)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) > 0):
        raise ConfigError(f"`systems.{name}.{option}` = `{text}`: it is an integer, at least 1")
    return int(text)
