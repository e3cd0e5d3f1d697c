"""RDDs of packets on a real Spark: every packet reaches the worker of its lane, whatever its size and the command's."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkContext

from penstock.runtime.messages.packet import from_batch
from penstock.spark.lineage import PacketRdd
from tests.support.oracles.packet_steps import TASKS, ImportShipped, Receive, Send
from tests.support.processes.spark_sessions import Sessions

pytestmark = pytest.mark.spark
LANES = 3
LANE_OF = [task % LANES for task in range(TASKS)]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark keeps its files."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def context(sessions: Sessions, scratch: Path) -> SparkContext:
    return sessions.get({"spark.master": f"local[{LANES}]", "spark.local.dir": str(scratch)}).sparkContext


@pytest.mark.few(2)
@pytest.mark.parametrize("size", [2, 3_000_000])  # in all, more than a task of a shuffle keeps in memory
@pytest.mark.parametrize("exchanges", [1, 3])
def test_packets_reach_the_lane_of_their_task(context: SparkContext, size: int, exchanges: int) -> None:
    rdd = PacketRdd.empty(context, LANES).map_partitions(Send(size))
    for _ in range(exchanges):
        rdd = rdd.exchange(LANE_OF, LANES).map_partitions(Receive())
    found = [packet for batch in rdd.collect() for packet in from_batch(batch)]
    assert sorted((packet.source_task, packet.dest, int(packet.token)) for packet in found) == sorted(
        (source, task, LANE_OF[task]) for source in range(LANES) for task in range(TASKS)
    )
    for packet in found:
        assert bytes(packet.payload or b"") == bytes([packet.source_task, packet.dest]) * (size // 2)


def test_a_task_of_a_shuffle_writes_two_files(context: SparkContext, scratch: Path) -> None:
    before = _block_files(scratch)
    rdd = PacketRdd.empty(context, LANES).map_partitions(Send(2)).exchange(LANE_OF, LANES).map_partitions(Receive())
    rdd.collect()
    written = sorted(path.suffix for path in _block_files(scratch) - before)
    assert written == [".data"] * LANES + [".index"] * LANES


def _block_files(scratch: Path) -> set[Path]:
    return {path for path in scratch.glob("blockmgr-*/*/*") if path.is_file()}


def test_a_command_that_is_too_long_for_every_task(context: SparkContext) -> None:
    rdd = PacketRdd.empty(context, LANES).map_partitions(Send(2, ballast=bytes(3_000_000))).exchange(LANE_OF, LANES)
    assert sum(batch.num_rows for batch in rdd.collect()) == LANES * TASKS


def test_files_that_were_added_between_two_batches(context: SparkContext, tmp_path: Path) -> None:
    PacketRdd.empty(context, 1).map_partitions(Receive()).collect()
    module = tmp_path / "shipped_with_add_py_file.py"
    module.write_text("VALUE = 7\n")
    context.addPyFile(str(module))
    assert PacketRdd.empty(context, 1).map_partitions(ImportShipped()).collect() == []
