"""A job whose RocksDB is damaged while it runs: the state is restored, and no good message becomes a dead letter."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from tests.support.apps import job_app
from tests.support.faults.damage import written_tables
from tests.support.jobs.home import DEADLINE_S, Home, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]
KEYS = 3000
CONFIG = {
    "stores.rocksdb.write.buffer.bytes": 65536,
    "stores.totals.object.cache.size": 1,
    "task.dead.letter.stream": "local.dead",
    "job.batch.max.messages": 2 * KEYS,
}


def test_a_flipped_byte_in_a_table(spark: SparkSession, tmp_path: Path) -> None:
    home = Home(tmp_path)

    def append() -> None:
        for partition in range(2):
            home.append(partition, [{"key": f"k{n}", "n": n} for n in range(partition, KEYS, 2)])

    def committed() -> bool:
        offsets = home.checkpoints[-1].next_offsets if home.checkpoints else {}
        return all(
            offsets.get(p, {}).get(ps.SystemStreamPartition("local", "events", p), 0) == len(home.events["events"][p])
            for p in range(2)
        )

    def tables() -> list[Path]:
        return written_tables(tmp_path / "state", "totals/*")

    append()
    job = job_app.totals_app().run({**home.config, **CONFIG}, spark=spark)
    wait_until(committed, "the first messages are committed", DEADLINE_S)
    wait_until(tables, "RocksDB writes a table", DEADLINE_S)
    epoch = home.checkpoints[-1].epoch
    for table in tables():
        data = bytearray(table.read_bytes())
        for place in range(100, len(data) * 3 // 4, 2000):
            data[place] ^= 1
        with table.open("r+b") as file:
            file.write(data)
    append()
    wait_until(committed, "the job goes on", DEADLINE_S)
    job.stop()
    assert home.checkpoints[-1].epoch > epoch
    home.verify_ended()
    assert home.length("dead") == 0
