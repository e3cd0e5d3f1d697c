"""Folders of engines, and the engine over one: of the configured kind, or the kind whose files are there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from penstock.config.settings import EngineKind, StoreSettings
from penstock.errors import CorruptError
from penstock.state.engines.engine import Engine
from penstock.state.engines.memory import ENTRIES, ColumnEngine, ColumnLimit, MemoryEngine
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.state.records import Changes

_CHUNK_BYTES = 8 << 20
"""The amount held in memory while a store is copied from one kind of engine into the other."""


def make_empty(directory: Path) -> None:
    """Make an empty folder in the place of whatever was there. Raises OSError if the old one cannot be removed: nothing
    may be restored over it."""
    with suppress(FileNotFoundError):
        shutil.rmtree(directory)
    directory.mkdir(parents=True)


def open_engine(settings: StoreSettings, directory: Path, *, read_only: bool = False) -> Engine:
    """The configured engine of a store, over a folder: a new one, or the content that a restore or copy has put there.
    Raises CorruptError if the folder's files are damaged, or of the other kind of engine."""
    if _of_the_other_kind(settings, directory).exists():
        raise CorruptError(
            f"`{directory}` holds the files of another kind of store than stores.{settings.name}.factory="
            f"{settings.factory}. Set it back, or restore from a changelog backend, which fits both"
        )
    if settings.factory == "memory":
        return MemoryEngine(directory)
    if settings.factory == "columns":
        return ColumnEngine(directory, ColumnLimit(settings.name, settings.columns_max_bytes))
    return open_rocksdb(settings, directory, read_only=read_only)


def open_rocksdb(settings: StoreSettings, directory: Path, *, read_only: bool = False) -> RocksDbEngine:
    return RocksDbEngine(
        directory,
        block_cache_bytes=settings.rocksdb_block_cache_bytes,
        write_buffer_bytes=settings.rocksdb_write_buffer_bytes,
        total_bytes=settings.all_memory_bytes,
        read_only=read_only,
    )


def open_restored(settings: StoreSettings, directory: Path) -> Engine:
    """The configured engine of a store, over a folder that a restore has filled. Files of the other kind, from before
    `stores.<name>.factory` was changed, are read into a new engine.

    Raises:
        CorruptError: the files are damaged.
    """
    if not _of_the_other_kind(settings, directory).exists():
        return open_engine(settings, directory)
    source_directory = directory.with_name(f"{directory.name}.other")
    shutil.rmtree(source_directory, ignore_errors=True)
    directory.rename(source_directory)
    try:
        with closing(open_whatever(settings, source_directory)) as source:
            engine = open_engine(settings, directory)
            try:
                for entries in _chunks(source.scan(None, None)):
                    engine.load(entries)
            except BaseException:
                engine.close()
                raise
    finally:
        shutil.rmtree(source_directory, ignore_errors=True)
    return engine


def _of_the_other_kind(settings: StoreSettings, directory: Path) -> Path:
    """A file that only the kind of engine has that is not configured."""
    return directory / (ENTRIES if settings.factory == "rocksdb" else "CURRENT")


def _chunks(entries: Iterator[tuple[bytes, bytes]]) -> Iterator[Changes]:
    chunk: dict[bytes, bytes | None] = {}
    size = 0
    for key, value in entries:
        chunk[key] = value
        size += len(key) + len(value)
        if size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = {}, 0
    if chunk:
        yield chunk


def open_whatever(settings: StoreSettings, directory: Path) -> Engine:
    """The engine whose files are in the folder, whatever the configuration says; a new one if there are none."""
    in_memory = (directory / ENTRIES).exists()
    if in_memory == (settings.factory != "rocksdb"):
        return open_engine(settings, directory)
    kind: EngineKind = "memory" if in_memory else "rocksdb"
    return open_engine(settings.put(StoreSettings.factory, kind), directory)
