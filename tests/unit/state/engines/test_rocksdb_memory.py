"""The memory of all stores of a process together."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from penstock.config.key import ResolvedValues
from penstock.config.settings import StoreSettings
from penstock.state.engines.open import open_rocksdb
from penstock.state.engines.rocksdb import RocksDbEngine
from tests.support.jobs.home import wait_until

TOTAL = 8 << 20
ENGINES = 8
WRITES = 10_000
VALUE_BYTES = 200
"""Each engine gets twice its share of the total."""


@contextmanager
def filled(folder: Path, given: dict[str, object]) -> Iterator[list[RocksDbEngine]]:
    """Engines with the same entries, all of which were read once."""
    with ExitStack() as stack:
        engines = []
        for number in range(ENGINES):
            engine = open_rocksdb(StoreSettings(ResolvedValues(folder, given), "s"), folder / str(number))
            stack.callback(engine.close)
            engines.append(engine)
        values = random.Random(1)
        for first in range(0, WRITES, 1000):
            changes = {b"%08d" % n: values.randbytes(VALUE_BYTES) for n in range(first, first + 1000)}
            for engine in engines:
                engine.apply(changes)
        for engine in engines:
            assert sum(len(value) for _, value in engine.scan(None, None)) == WRITES * VALUE_BYTES
        yield engines


def written(engines: list[RocksDbEngine]) -> int:
    """The bytes in all write buffers. RocksDB looks at them with each write, and frees them beside it."""
    for engine in engines:
        engine.apply({b"more": b"value"})
    return sum(engine.statistics()["rocksdb.cur-size-all-mem-tables"] for engine in engines)


def cached(engines: list[RocksDbEngine]) -> int:
    """The bytes in the fullest cache, of which shared buffers are a part."""
    return max(engine.statistics()["rocksdb.block-cache-usage"] for engine in engines)


def test_all_stores_together_stay_below_the_total(tmp_path: Path) -> None:
    with filled(tmp_path / "each", {}) as engines:
        assert written(engines) > 2 * TOTAL // 3
    with filled(tmp_path / "together", {"stores.memory.total.bytes": TOTAL}) as engines:
        wait_until(lambda: written(engines) < 1.1 * TOTAL // 3, "buffers to be written, as they are too large together")
        wait_until(lambda: cached(engines) < 1.1 * TOTAL, "the cache to have room for the buffers")
