"""Spark's RocksDB snapshots, put together again into a folder RocksDB opens."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from penstock.errors import CorruptError, IncompatibleError, NotFoundError
from penstock.metadata.object_store import ObjectStore

_METADATA = "metadata"


def fetch_snapshot(files: ObjectStore, folder: str, name: str, target: Path) -> dict[str, int]:
    """Make the folder `target` with the files of the snapshot `<folder>/<name>`.

    Returns:
        Column family -> the number its keys begin with; empty where the store has no column families.

    Raises:
        NotFoundError, CorruptError: naming the file that is missing or damaged.
        IncompatibleError: a snapshot of a version that is not known.
    """
    key = f"{folder}/{name}"
    target.mkdir(parents=True)
    try:
        with zipfile.ZipFile(io.BytesIO(_get(files, key, key))) as archive:
            for member in archive.namelist():
                if member != _METADATA:
                    _local(target, member, key).write_bytes(archive.read(member))
            metadata = _parse(archive.read(_METADATA), key)
        for entry in metadata.get("sstFiles", ()):
            _fetch(files, f"{folder}/SSTs/{entry['dfsSstFileName']}", entry, target, key)
        for entry in metadata.get("logFiles", ()):
            _fetch(files, f"{folder}/logs/{entry['dfsLogFileName']}", entry, target, key)
        return {str(family): int(number) for family, number in metadata.get("columnFamilyMapping", {}).items()}
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptError(f"snapshot `{key}` is damaged: {error}") from error


def _parse(data: bytes, key: str) -> dict[str, Any]:
    version, _, text = data.partition(b"\n")
    if version != b"v1":
        raise IncompatibleError(f"snapshot `{key}` has version `{version[:20].decode(errors='replace')}`; read is v1")
    document: dict[str, Any] = orjson.loads(text)
    return document


def _fetch(files: ObjectStore, key: str, entry: Mapping[str, Any], target: Path, snapshot: str) -> None:
    data = _get(files, key, snapshot)
    if len(data) != entry["sizeBytes"]:
        raise CorruptError(f"`{key}` has {len(data)} bytes, snapshot `{snapshot}` says {entry['sizeBytes']}")
    _local(target, entry["localFileName"], snapshot).write_bytes(data)


def _get(files: ObjectStore, key: str, snapshot: str) -> bytes:
    try:
        return files.get(key)
    except NotFoundError as error:
        raise NotFoundError(f"`{key}` is missing, which snapshot `{snapshot}` needs") from error


def _local(target: Path, name: str, snapshot: str) -> Path:
    """Where a file goes. A name that leads elsewhere is none of Spark's."""
    if Path(name).name != name:
        raise CorruptError(f"snapshot `{snapshot}` holds a file of the name {name!r}")
    return target / name
