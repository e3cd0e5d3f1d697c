"""The manifest of a pushed table's version, whose object publishes it, and the fingerprint in it, which a version must
have to serve a job.

A manifest is JSON with a format number and a checksum:

    {"format": 1, "checksum": "<sha256 of the content>", "content": {...}}

The checksum is over the bytes of `content` as orjson writes them. Keys of files are base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

import msgspec
import orjson
from msgspec import Struct

from penstock.api.side_inputs import PushedTable
from penstock.base.documents import Count, Positive, convert, decode_format, decoding
from penstock.errors import ConfigError, CorruptError
from penstock.graph.stores import StoreSpec

FORMAT = 1


@dataclass(frozen=True, slots=True)
class TableFingerprint:
    """Everything but the rows that the entries of a version depend on. A version serves only a job with the same
    fingerprint."""

    key_serde: str
    value_serde: str
    key_columns: tuple[str, ...]
    value_columns: tuple[str, ...] | None
    """None: all columns."""
    single_value: bool
    """True if a value is that of the only column, not a dict of columns."""
    tasks: Positive
    broadcast: bool
    reader: str = "parquet"
    """The format, and the schema and options that Spark reads it with."""

    def difference(self, wanted: TableFingerprint) -> str:
        """The differences from another fingerprint, in words; empty if there are none."""
        names = (field.name for field in fields(self))
        return ", ".join(
            f"{name.replace('_', ' ')} {_shown(getattr(self, name))} and not {_shown(getattr(wanted, name))}"
            for name in names
            if getattr(self, name) != getattr(wanted, name)
        )


@dataclass(frozen=True, slots=True)
class TableFile:
    """A sorted file (SST) of a version. The files of a task do not overlap, and come in the order of their keys."""

    name: str
    """Its name below the folder of the build."""
    task: Count
    """The task that its keys belong to; 0 in a broadcast table."""
    sha256: str
    size_bytes: Positive
    rows: Positive
    first: bytes
    """The first key, as the store has it."""
    last: bytes


@dataclass(frozen=True, slots=True)
class TableManifest:
    """A version of a table, or a fence: a number that no version gets, because a driver took the table over.

    `version` is 0 until it is published.
    """

    table: str
    version: Count
    epoch: Count
    """The epoch of the driver that built it. It never falls from one version to the next."""
    build: str
    """The folder of its files. Every build has another one."""
    source: str
    """The URL of the folder that the rows were read from."""
    source_version: str
    """The version of the source: equal ones have equal rows."""
    rows: Count
    built_ms: Count
    """The end of the build, in epoch milliseconds."""
    fingerprint: TableFingerprint | None
    """None: a fence."""
    files: tuple[TableFile, ...] = ()

    @property
    def is_fence(self) -> bool:
        """True if it only fences older drivers."""
        return self.fingerprint is None

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def of_task(self, task: int) -> tuple[TableFile, ...]:
        """The files of a task, in the order of their keys. A broadcast table has all of them for task 0."""
        return tuple(file for file in self.files if file.task == task)

    def encode(self) -> bytes:
        """The object's bytes; equal values give equal bytes."""
        content = asdict(self)
        content["files"] = [
            {**file, "first": _text(file["first"]), "last": _text(file["last"])} for file in content["files"]
        ]
        return orjson.dumps({"format": FORMAT, "checksum": _checksum(content), "content": content})

    @classmethod
    def decode(cls, data: bytes, key: str) -> TableManifest:
        """Decode a manifest. `key`: the object's key, for the error.

        Raises:
            CorruptError: it is damaged.
            IncompatibleError: a newer Penstock wrote it.
        """
        what = f"`{key}` is damaged, it is not the manifest of a table"
        with decoding(what):
            written = decode_format(_WrittenManifest, data, what, f"manifest `{key}`", FORMAT)
            if _checksum(written.content) != written.checksum:
                raise CorruptError(f"{what}: its checksum does not match")
            for file in written.content.get("files", ()):
                file["first"], file["last"] = _bytes(file["first"]), _bytes(file["last"])
            return convert(cls, written.content)


class _WrittenManifest(Struct):
    """The fields of the object."""

    format: Positive
    checksum: str
    content: dict[str, Any]


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(content)).hexdigest()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise msgspec.ValidationError(f"`{text[:40]}` is not base64") from error


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return f"({', '.join(map(str, value))})"
    return "all" if value is None else f"`{value}`"


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """The published version of a pushed table."""

    manifest: TableManifest | None
    """None: there is no version that the job can use."""
    pinned: bool = False
    """True if somebody chose the version with `penstock table use`."""
    note: str = ""


class PublishedTables(Protocol):
    """The published versions of pushed tables, as of the last poll."""

    def start(self) -> None:
        """Allow builds of versions: every container is up and has its tasks. Earlier, a build could hold the slots of
        Spark in which containers are started. Idempotent."""
        ...

    def published(self, table: str) -> PublishedVersion:
        """Answers at once; never raises."""
        ...

    def close(self) -> None:
        """End, and cancel the build that is under way. Idempotent."""
        ...


def pushed_table(spec: StoreSpec) -> PushedTable:
    """The declaration of a pushed table. Raises ConfigError if the store is none."""
    if not isinstance(spec.side, PushedTable):
        raise ConfigError(f"store `{spec.name}` is no pushed table")
    return spec.side


def fingerprint_of(spec: StoreSpec, tasks: int) -> TableFingerprint:
    side = pushed_table(spec)
    return TableFingerprint(
        spec.key_serde.name,
        spec.value_serde.name,
        columns(side.key),
        None if side.value is None else columns(side.value),
        isinstance(side.value, str),
        1 if side.broadcast else tasks,
        side.broadcast,
        _reader(side),
    )


def _reader(side: PushedTable) -> str:
    options = [f"{name}={value}" for name, value in sorted(side.options.items())]
    return " ".join([side.format, *([side.schema] if side.schema is not None else []), *options])


def columns(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
