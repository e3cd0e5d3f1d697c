"""A batch as one Spark job with one lineage: read, exchange, process, ... , write; the action collects the reports.

It is made of RDDs of raw frames. SQL would plan each batch, generate code for it and compile that code. Here the JVM
moves frames and schedules, nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark import SparkContext

from penstock.errors import PenstockError
from penstock.graph.topology import Topology
from penstock.runtime.messages.packet import REPORT_STAGE, from_batch
from penstock.runtime.reports import Report
from penstock.spark.batches.packet_rdd import PacketRdd, Step
from penstock.spark.workers.worker import ContainerStage, SinkStage
from penstock.wire.address import Lane, lane_of_tasks


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The callables of one execution of one batch."""

    source: Step
    containers: tuple[ContainerStage, ...]
    sink: SinkStage | None
    rows: PacketRdd | None = None
    """The input of stage 0; None: stage 0 reads portions of streams."""


def run_batch(context: SparkContext, topology: Topology, lanes: Sequence[Lane], plan: BatchPlan) -> list[Report]:
    """Run the job and return its reports. Raises what Spark raises.

    The RDDs are new for every run: Spark would skip the finished stages of old ones, and with them the containers.
    """
    lane_of = lane_of_tasks(lanes)
    begin = PacketRdd.empty(context, len(lanes)) if plan.rows is None else plan.rows
    packets = begin.map_partitions(plan.source)
    for stage in plan.containers:
        if topology.is_shuffled(stage.stage):
            packets = packets.exchange(lane_of, len(lanes))
        packets = packets.map_partitions(stage)
    if plan.sink is not None:
        packets = packets.exchange(lane_of, len(lanes)).map_partitions(plan.sink)
    found = [packet for batch in packets.collect() for packet in from_batch(batch)]
    if any(packet.stage != REPORT_STAGE for packet in found):
        raise PenstockError("rows for a stage came out at the end of the job: the topology and the lineage differ")
    return [Report.decode(bytes(packet.payload or b"")) for packet in found]
