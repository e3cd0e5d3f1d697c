"""Reading one store of a Spark query at one batch, partition by partition.

The RocksDB of a partition is put together from a snapshot, to which the changelogs after it are applied. A changelog
file, `<version>[_<uuid>].changelog`, has what one batch changed in one partition of a store. Records of all versions
have lengths of 4 bytes, big-endian, and come in the order they were made in.

| version | when                      | head                      | records                                          |
|---------|---------------------------|---------------------------|--------------------------------------------------|
| 1       |                           | none                      | as in `penstock.state.engines.engine`            |
| 2       | column families           | UTF "v2"                  | type byte, then key and value (a delete: key, -1)|
| 3       | checkpoint ids            | UTF "v3", UTF lineage     | as 1                                             |
| 4       | both                      | UTF "v4", UTF lineage     | as 2                                             |
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from msgspec import Struct

from penstock.base.budgets import opened_archive
from penstock.base.documents import Count, decode, decoding
from penstock.errors import ConfigError, CorruptError, IncompatibleError, NotFoundError, PenstockError
from penstock.spark.state_import.checkpoint import (
    CheckpointFiles,
    OperatorFacts,
    RestoreSteps,
    SparkCheckpoint,
    StatePartitionFiles,
    StoreFacts,
    Version,
    plan_rebuild,
)
from penstock.spark.state_import.files import DEFAULT_FAMILY, EntrySchema, JavaStream, plain_chunks, read_schema
from penstock.spark.state_import.rows import EntryDecoder, entry_decoder
from penstock.state.engines.rocksdb import RocksDbEngine, engine_error

_TYPED = {2, 4}
_WITH_LINEAGE = {3, 4}


class RecordKind(Enum):
    """The operation of a record. The values are the type bytes of versions 2 and 4."""

    PUT = 1
    DELETE = 16
    MERGE = 17
    """Appends to the value, as a ListState does."""
    DELETE_RANGE = 32
    """Deletes from the key up to the value, exclusive."""


@dataclass(frozen=True, slots=True)
class ChangelogHead:
    """The version of a file, and its lineage: version → checkpoint id, newest first or last."""

    version: int
    lineage: dict[int, str]


def read_head(data: bytes, name: str) -> ChangelogHead:
    """The version and lineage before the records. Raises as `read_changelog`."""
    return _head(_opened(data, name))


def read_changelog(data: bytes, name: str) -> Iterator[tuple[RecordKind, bytes, bytes]]:
    """(kind, key, value) of every record; the value of a delete is empty.

    Raises:
        CorruptError: the file is damaged, or its records break off or go on after their end.
        IncompatibleError: a codec or version that is not known.
    """
    source = _opened(data, name)
    head = _head(source)
    yield from _typed(source) if head.version in _TYPED else _untyped(source)
    if not source.at_end():
        raise CorruptError(f"the records of `{name}` continue after their end")


def _opened(data: bytes, name: str) -> JavaStream:
    return JavaStream(plain_chunks(data, name), name, f"the records of `{name}` break off")


def _untyped(source: JavaStream) -> Iterator[tuple[RecordKind, bytes, bytes]]:
    while (size := source.number()) >= 0:
        key = source.take(size)
        size = source.number()
        if size < 0:
            yield RecordKind.DELETE, key, b""
        else:
            yield RecordKind.PUT, key, source.take(size)


def _typed(source: JavaStream) -> Iterator[tuple[RecordKind, bytes, bytes]]:
    while code := source.take(1)[0]:
        try:
            kind = RecordKind(code)
        except ValueError:
            raise CorruptError(f"`{source.name}` has a record of the unknown type {code}") from None
        key = source.take(source.number())
        size = source.number()
        yield kind, key, b"" if kind is RecordKind.DELETE else source.take(size)


def _head(source: JavaStream) -> ChangelogHead:
    """Version 1 begins with a record or the end: a length of 4 bytes, which no UTF of two letters looks like, because
    that would be a key of 160 KB that begins with `2`."""
    start = source.peek(4)
    if start[:3] != b"\x00\x02v":
        return ChangelogHead(1, {})
    source.take(4)
    version = start[3] - ord("0")
    if version not in {2, 3, 4}:
        raise IncompatibleError(f"changelog `{source.name}` has version {version}; versions 1 to 4 can be read")
    if version not in _WITH_LINEAGE:
        return ChangelogHead(version, {})
    text = source.utf()
    lineage = decode(list[_Ancestor], text, f"the lineage of `{source.name}` is damaged, {text[:80]!r}")
    return ChangelogHead(version, {each.version: each.checkpoint_unique_id for each in lineage})


class _Ancestor(Struct, rename="camel"):
    version: Count
    checkpoint_unique_id: str


_CACHE_BYTES = 8 << 20
_BUFFER_BYTES = 16 << 20
_BATCH = 10_000


class PartitionEngine(RocksDbEngine):
    """A scratch copy of one partition of Spark's state. Damage in it is reported, wherever it is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, block_cache_bytes=_CACHE_BYTES, write_buffer_bytes=_BUFFER_BYTES, foreign=True)

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from super().scan(start, end)
        except CorruptError as error:
            raise self._damaged(error) from error

    def replay(self, data: bytes, name: str) -> None:
        """Apply a changelog in its order. Raises as `read_changelog`."""
        try:
            self._replay(data, name)
        except PenstockError:
            raise
        except Exception as error:
            raise self._damaged(error) from error

    def _replay(self, data: bytes, name: str) -> None:
        pending: dict[bytes, bytes | None] = {}
        for kind, key, value in read_changelog(data, name):
            if kind is RecordKind.PUT:
                pending[key] = value
            elif kind is RecordKind.DELETE:
                pending[key] = None
            elif kind is RecordKind.MERGE:
                before = pending[key] if key in pending else self.get(key)
                pending[key] = value if before is None else before + value
            else:
                self.apply(pending)
                pending = {inside: None for inside, _ in self.scan(key, value)}
            if len(pending) >= _BATCH:
                self.apply(pending)
                pending = {}
        self.apply(pending)

    def _damaged(self, error: Exception) -> PenstockError:
        return engine_error(error, f"the RocksDB files of the snapshot, copied to `{self._path}`, cannot be read")


_METADATA = "metadata"


def fetch_snapshot(files: CheckpointFiles, folder: str, name: str, target: Path) -> dict[str, int]:
    """Make the folder `target` with the files of the snapshot `<folder>/<name>`.

    Returns:
        Column family -> the number its keys begin with; empty where the store has no column families.

    Raises:
        NotFoundError, CorruptError: naming the file that is missing or damaged.
        IncompatibleError: a snapshot of a version that is not known.
    """
    key = f"{folder}/{name}"
    target.mkdir(parents=True)
    with decoding(f"snapshot `{key}` is damaged"):
        with opened_archive(_get(files, key, key), f"snapshot `{key}`") as archive:
            for member in archive.namelist():
                if member != _METADATA:
                    _local(target, member, key).write_bytes(archive.read(member))
            metadata = _parse(archive.read(_METADATA), key)
        for table in metadata.sst_files:
            _fetch(files, f"{folder}/SSTs/{table.dfs_sst_file_name}", table, target, key)
        for log in metadata.log_files:
            _fetch(files, f"{folder}/logs/{log.dfs_log_file_name}", log, target, key)
        return metadata.column_family_mapping or {}


class _File(Struct, rename="camel"):
    local_file_name: str
    size_bytes: Count


class _Table(_File, rename="camel"):
    dfs_sst_file_name: str


class _Log(_File, rename="camel"):
    dfs_log_file_name: str


class _Metadata(Struct, rename="camel"):
    sst_files: tuple[_Table, ...] = ()
    log_files: tuple[_Log, ...] = ()
    column_family_mapping: dict[str, int] | None = None


def _parse(data: bytes, key: str) -> _Metadata:
    version, _, text = data.partition(b"\n")
    if version != b"v1":
        raise IncompatibleError(
            f"snapshot `{key}` has version `{version[:20].decode(errors='replace')}`; version v1 can be read"
        )
    return decode(_Metadata, text, f"snapshot `{key}` is damaged")


def _fetch(files: CheckpointFiles, key: str, file: _File, target: Path, snapshot: str) -> None:
    data = _get(files, key, snapshot)
    if len(data) != file.size_bytes:
        raise CorruptError(f"`{key}` has {len(data)} bytes, snapshot `{snapshot}` says {file.size_bytes}")
    _local(target, file.local_file_name, snapshot).write_bytes(data)


def _get(files: CheckpointFiles, key: str, snapshot: str) -> bytes:
    try:
        return files.get(key)
    except NotFoundError as error:
        raise NotFoundError(f"`{key}` is missing, which snapshot `{snapshot}` needs") from error


def _local(target: Path, name: str, snapshot: str) -> Path:
    """The target of a file. Raises for a name that leads elsewhere: it is none of Spark's."""
    if Path(name).name != name:
        raise CorruptError(f"snapshot `{snapshot}` holds a file of the name {name!r}")
    return target / name


_LIST = "ListState"


@dataclass(frozen=True, slots=True)
class SparkState:
    """One store of a query, or one state variable (column family) of it, as of one batch."""

    checkpoint: SparkCheckpoint
    operator: OperatorFacts
    store: StoreFacts
    variable: str | None
    """None if the store has no column families."""
    batch: int
    schema: EntrySchema
    is_list: bool

    @property
    def name(self) -> str:
        of = "" if self.variable is None else f", variable `{self.variable}`"
        return f"store `{self.store.name}` of operator {self.operator.number}{of}"

    def decoder(self) -> EntryDecoder:
        """A function from the bytes of an entry to its key and value. Raises IncompatibleError."""
        return entry_decoder(self.schema, "rows" if self.is_list else "row", self.name)

    def check(self) -> None:
        """Check, by the names of files only, that every partition can be rebuilt. Raises as `entries`."""
        for partition in range(self.store.partitions):
            self._plan(partition)

    def entries(self, partition: int, scratch: Path) -> Generator[tuple[bytes, bytes], None, None]:
        """The entries of a partition, by key, in Spark's bytes, without the number of the column family.

        `scratch` is a separate folder, which this makes and removes. Close the generator if it is left before its end.

        Raises:
            NotFoundError, CorruptError: naming the file that is missing or damaged.
            IncompatibleError: files of a version or codec that is not known.
        """
        plan, files = self._plan(partition), self.checkpoint.files
        folder = self.checkpoint.folder(self.operator.number, partition, self.store.name)
        try:
            families: Mapping[str, int] = {}
            if plan.snapshot is not None:
                families = fetch_snapshot(files, folder, plan.snapshot.snapshot, scratch)
            prefix = self._prefix(families, folder)
            with closing(PartitionEngine(scratch)) as engine:
                for version in plan.changelogs:
                    name = f"{folder}/{version.changelog}"
                    engine.replay(files.get(name), name)
                for key, value in engine.scan(prefix or None, _after(prefix)):
                    yield key[len(prefix) :], value
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _plan(self, partition: int) -> RestoreSteps:
        checkpoint, number = self.checkpoint, self.operator.number
        files = checkpoint.partition(number, partition, self.store.name)
        wanted = checkpoint.version(number, self.batch, files, partition)
        return plan_rebuild(files, wanted, lambda version: self._lineage(files, version))

    def _lineage(self, files: StatePartitionFiles, version: Version) -> Mapping[int, str]:
        name = f"{files.folder}/{version.changelog}"
        return read_head(self.checkpoint.files.get(name), name).lineage

    def _prefix(self, families: Mapping[str, int], folder: str) -> bytes:
        """First bytes of the keys: the number of the column family, in the byte order of the machine that wrote it."""
        if self.variable is None and not families:
            return b""
        family = self.variable or DEFAULT_FAMILY
        if family not in families:
            raise IncompatibleError(
                f"in `{folder}` no snapshot at or below version {self.batch + 1} says which number variable "
                f"`{family}` has in the keys. Run the query once more until one is uploaded"
            )
        return families[family].to_bytes(2, "little")


def open_state(
    checkpoint: SparkCheckpoint, operator: int, store: str, variable: str | None, batch: int | None
) -> SparkState:
    """The state of a store as of a batch; the last committed one if none is named.

    `variable` names the state variable of a transformWithState; it may be left out if there is only one.

    Raises:
        NotFoundError: there is no such operator, store, variable or batch; names those there are.
        ConfigError: a variable must be named.
        IncompatibleError, CorruptError: it cannot be read.
    """
    batch = checkpoint.committed() if batch is None else batch
    checkpoint.check_batch(batch)
    facts = checkpoint.operator(operator, batch)
    if store not in facts.stores:
        raise NotFoundError(
            f"operator {operator} ({facts.name}) has no store `{store}`; it has: {_named(facts.stores)}"
        )
    key = checkpoint.schema_key(operator, facts.stores[store])
    families = read_schema(checkpoint.files.get(key), key, facts.stores[store].prefix_columns)
    chosen = _choose(families, variable, f"store `{store}` of operator {operator} ({facts.name})")
    is_list = facts.variables.get(chosen or "") == _LIST
    schema = families[chosen or DEFAULT_FAMILY]
    return SparkState(checkpoint, facts, facts.stores[store], chosen, batch, schema, is_list)


def _choose(families: Mapping[str, EntrySchema], variable: str | None, where: str) -> str | None:
    if families.keys() == {DEFAULT_FAMILY}:
        if variable is not None:
            raise NotFoundError(f"{where} has no state variables, so no `{variable}`")
        return None
    users = [name for name in families if not name.startswith("$")]  # the others are Spark's own: timers, indexes
    if variable is None and len(users) == 1:
        return users[0]
    if variable is None:
        raise ConfigError(f"{where} has the state variables {_named(users)}: name one of them")
    if variable not in families:
        raise NotFoundError(f"{where} has no state variable `{variable}`; it has: {_named(users)}")
    return variable


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"


def _after(prefix: bytes) -> bytes | None:
    """The first key after all keys with the prefix."""
    number = int.from_bytes(prefix, "big") + 1
    return None if number >> 8 * len(prefix) else number.to_bytes(len(prefix), "big")
