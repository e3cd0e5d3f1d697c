"""Spark's RocksDB snapshots, put together again into a folder RocksDB opens."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from penstock.base.budgets import opened_archive
from penstock.base.documents import Count, decode, decoding
from penstock.errors import CorruptError, IncompatibleError, NotFoundError
from penstock.spark.state_import.files.checkpoint import CheckpointFiles

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
