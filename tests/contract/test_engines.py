"""Every engine keeps the contract, the one that writes behind as well, wherever its changes are at the moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.side.engine import SideEngine, SidePositions
from penstock.state.engines.engine import Changes, Engine
from penstock.state.engines.memory import ColumnEngine, MemoryEngine
from penstock.state.engines.open import WriteBehindEngine
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.state.stores.task_store import SideView
from penstock.testing.engine_contract import EngineContract, OpenEngine


def rocksdb(folder: Path) -> RocksDbEngine:
    return RocksDbEngine(folder, block_cache_bytes=1 << 20, write_buffer_bytes=1 << 16)


class TestRocksDb(EngineContract):
    @pytest.fixture
    def open_engine(self) -> OpenEngine:
        return rocksdb


def test_rocksdb_opens_its_files_again_as_it_is_configured_now(tmp_path: Path) -> None:
    for cache_bytes, buffer_bytes in ((8 << 20, 32 << 20), (16 << 20, 4 << 20)):
        engine = RocksDbEngine(tmp_path, block_cache_bytes=cache_bytes, write_buffer_bytes=buffer_bytes)
        assert engine._db.property_int_value("rocksdb.block-cache-capacity") == cache_bytes
        options = max(tmp_path.glob("OPTIONS-*")).read_text()
        assert f"\n  write_buffer_size={buffer_bytes}\n" in options
        engine.close()


class TestMemory(EngineContract):
    @pytest.fixture
    def open_engine(self) -> OpenEngine:
        return MemoryEngine


class TestColumns(EngineContract):
    @pytest.fixture
    def open_engine(self) -> OpenEngine:
        return ColumnEngine


class SideAsEngine(Engine):
    """A side store as an engine: each read through a new view, or of the newest content."""

    def __init__(self, below: RocksDbEngine | MemoryEngine, folder: Path, views: bool) -> None:
        self._side = SideEngine(below, str(folder))
        self._views = views

    def get(self, key: bytes) -> bytes | None:
        return self._readable().get(key)

    def apply(self, changes: Changes) -> None:
        self._side.write(changes, SidePositions(updated_ms=1))

    def load(self, changes: Changes) -> None:
        self._side.load(changes, SidePositions(updated_ms=2))

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return self._readable().scan(start, end)

    def copy_to(self, directory: Path) -> None:
        self._side.copy_to(directory)

    def close(self) -> None:
        self._side.close()

    def _readable(self) -> SideEngine | SideView:
        return self._side.view() if self._views else self._side


class SideOverAny(EngineContract):
    below: Callable[[Path], RocksDbEngine | MemoryEngine]

    @pytest.fixture(params=[False, True], ids=["newest", "views"])
    def open_engine(self, request: pytest.FixtureRequest) -> OpenEngine:
        return lambda folder: SideAsEngine(type(self).below(folder), folder, request.param)


class TestSideOverRocksDb(SideOverAny):
    below = staticmethod(rocksdb)


@pytest.mark.few(1)  # both over RocksDB
class TestSideOverMemory(SideOverAny):
    below = MemoryEngine


@pytest.mark.parametrize("gather_bytes", [0, 100_000, 16 << 20], ids=["written at once", "now and then", "gathered"])
class WriteBehind(EngineContract):
    below: OpenEngine

    @pytest.fixture
    def open_engine(self, gather_bytes: int) -> Iterator[OpenEngine]:
        with ThreadPoolExecutor(1) as writer:
            yield lambda folder: WriteBehindEngine(type(self).below(folder), writer, gather_bytes)

    @pytest.fixture
    def faulty(self, tmp_path: Path, gather_bytes: int) -> Iterator[tuple[Engine, Callable[[], None]]]:
        class Failing(MemoryEngine):
            failed = False

            def apply(self, changes: Changes) -> None:
                if self.failed:
                    raise OSError("no space left")
                super().apply(changes)

        below = Failing()
        with ThreadPoolExecutor(1) as writer:
            yield WriteBehindEngine(below, writer, gather_bytes), lambda: setattr(below, "failed", True)


@pytest.mark.few(2)
class TestWriteBehindOverRocksDb(WriteBehind):
    below = staticmethod(rocksdb)


@pytest.mark.few(1)
class TestWriteBehindOverMemory(WriteBehind):
    below = staticmethod(MemoryEngine)
