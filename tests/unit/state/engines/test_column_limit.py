"""A store in columns that takes more memory than it may."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.state.engines.memory import ColumnEngine, ColumnLimit
from tests.support.world.sums_job import SumsWorld, drain


def test_an_engine_within_its_limit_works_and_one_beyond_it_says_what_to_do() -> None:
    engine = ColumnEngine(limit=ColumnLimit("sums", 100_000))
    engine.apply({f"{n}".encode(): b"value" for n in range(100)})
    with pytest.raises(ConfigError) as caught:
        engine.apply({f"{n}".encode(): b"value" for n in range(10_000)})
    for part in ("store `sums`", "stores.sums.columns.max.bytes=100000", "stores.sums.factory=rocksdb"):
        assert part in str(caught.value)


def test_a_run_that_ends_at_the_limit_loses_nothing(tmp_path: Path) -> None:
    world = SumsWorld(tmp_path)
    first = world.driver(stores_sums_factory="columns")
    first.loop.start()
    world.put(*range(20))
    drain(first)
    first.loop.finish()
    first.close()
    second = world.driver(stores_sums_factory="columns", stores_sums_columns_max_bytes=1)
    with pytest.raises(ConfigError, match=r"Set stores\.sums\.factory=rocksdb"):
        second.loop.start()
    second.close()
    third = world.driver(stores_sums_factory="rocksdb")
    third.loop.start()
    world.put(*range(7))
    drain(third)
    world.check(third)
    third.loop.finish()
    third.close()


def test_a_batch_that_passes_the_limit_ends_the_run_at_once(tmp_path: Path) -> None:
    world = SumsWorld(tmp_path)
    driver = world.driver(stores_sums_factory="columns", stores_sums_columns_max_bytes=1)
    driver.loop.start()
    world.put(1)
    with pytest.raises(ConfigError, match=r"store `sums` is kept in memory, in columns"):
        drain(driver)
    driver.close()
