"""The system `files`: a stream is a folder of Parquet, JSON lines or CSV, and a message a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from penstock.base.signing import RootKeys
from penstock.config.settings import ROOT_OPTIONS
from penstock.errors import ConfigError
from penstock.system.base import System, SystemWriter, WriterIdentity, check_options
from penstock.system.contract.names import absolute_place, positive_option
from penstock.system.files.admin import FilesAdmin
from penstock.system.files.folders import Links
from penstock.system.files.formats import FORMATS, Format
from penstock.system.files.listing import ROW_BITS, Order
from penstock.system.files.reader import FilesReader
from penstock.system.files.settings import FilesSettings
from penstock.system.files.writer import FilesWriter
from penstock.system.rows.schema import split_schemas

_OPTIONS = ("folder", "format", "links", "listing", "order", "partitions", "poll.ms")
"""The options, with `schema` and `schema.<stream>`."""
_POLL_MS = 1000


class FilesSystem(FilesSettings, System):
    """Folders of files as inputs: every file is read once, existing and new ones. As outputs, their rows become valid
    with a manifest."""

    __slots__ = ()

    fences: ClassVar[bool] = True
    keeps_progress: ClassVar[bool] = True
    has_keys: ClassVar[bool] = False
    lag_unit: ClassVar[str] = "file"
    takes_root: ClassVar[bool] = True

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> FilesSystem:
        """The options are in docs/files.md."""
        schemas, options = split_schemas(name, options)
        root, key, previous = (options.pop(option, None) for option in ROOT_OPTIONS)
        check_options(name, options, _OPTIONS)
        if root is not None:
            options.setdefault("listing", f"{root.rstrip('/')}/_files")
        for needed in ("folder", "listing"):
            if not options.get(needed):
                raise ConfigError(f"`systems.{name}.{needed}` is missing: the URL or path of a folder")
        return cls(
            name,
            absolute_place(options["folder"]),
            absolute_place(options["listing"]),
            RootKeys(key, previous),
            _format(name, options.get("format")),
            positive_option(name, options, "partitions"),
            positive_option(name, options, "poll.ms") or _POLL_MS,
            schemas,
            _order(name, options.get("order")),
            _links(name, options.get("links")),
        )

    def lag(self, position: int, upcoming: int) -> int:
        """In files that are not read to their end."""
        return max(0, (upcoming >> ROW_BITS) - (position >> ROW_BITS))

    @property
    def signed_objects(self) -> str:
        """The listings."""
        return self.listing

    def admin(self) -> FilesAdmin:
        return FilesAdmin(self)

    def reader(self) -> FilesReader:
        return FilesReader(self)

    def writer(self, identity: WriterIdentity | None) -> SystemWriter:
        return FilesWriter(self, self.admin(), identity)


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
