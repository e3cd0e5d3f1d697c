"""A batch as one Spark job with one lineage: read, exchange, process, ... , write; the action collects the reports.

It is made of RDDs of raw frames. What SQL would do for a batch, it would repeat for each: plan it, generate code and
compile that. Here the JVM moves frames and schedules, nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark import RDD, SparkContext

from penstock.engine.frames import Frames, FramesByLane
from penstock.engine.worker import ByLane, ContainerStage, Lane, SinkStage, SourceStage, lane_of_tasks
from penstock.errors import PenstockError
from penstock.runtime.packet import REPORT_STAGE, from_batch
from penstock.runtime.reports import Report
from penstock.runtime.topology import Topology


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The callables of one execution of one batch."""

    source: SourceStage
    containers: tuple[ContainerStage, ...]
    sink: SinkStage | None


def run_batch(context: SparkContext, topology: Topology, lanes: Sequence[Lane], plan: BatchPlan) -> list[Report]:
    """Run the job and return its reports. Raises what Spark raises.

    The RDDs are new for every run: Spark would skip the finished stages of old ones, and with them the containers.
    """
    lane_of = lane_of_tasks(lanes)
    packets = empty_partitions(context, len(lanes)).mapPartitions(plan.source)
    for stage in plan.containers:
        if topology.is_shuffled(stage.stage):
            packets = exchange(packets, lane_of, len(lanes))
        packets = packets.mapPartitions(stage)
    if plan.sink is not None:
        packets = exchange(packets, lane_of, len(lanes)).mapPartitions(plan.sink)
    found = [packet for batch in collect(packets) for packet in from_batch(batch)]
    if any(packet.stage != REPORT_STAGE for packet in found):
        raise PenstockError("rows for a stage came out at the end of the job: the topology and the lineage differ")
    return [Report.from_payload(bytes(packet.payload or b"")) for packet in found]


def empty_partitions(context: SparkContext, partitions: int) -> RDD[Any]:
    """For the source stage to fill."""
    nothing = _classes(context).array_list()  # parallelize() of the Python context would write a file for each
    return RDD(context._jsc.parallelize(nothing, partitions), context, Frames())  # noqa: SLF001


def exchange(packets: RDD[Any], lane_of: Sequence[int], lanes: int) -> RDD[Any]:
    """Every packet to the lane of the task that it is for; `lane_of` names it by task.

    As `RDD.partitionBy`, but for what that does to elements: it would pickle them, in groups that grow with the
    number of partitions.
    """
    context, by_lane = packets.context, packets.mapPartitions(ByLane(tuple(lane_of)))
    classes = _classes(context)
    by_lane._jrdd_deserializer = FramesByLane()  # noqa: SLF001 - nothing public chooses an RDD's serializer
    pairs = classes.pairwise_rdd(by_lane._jrdd.rdd()).asJavaPairRDD()  # noqa: SLF001
    shuffled = pairs.partitionBy(classes.partitioner(lanes, 0))
    shuffled.rdd().setSerializer(classes.frame_serializer)
    return RDD(shuffled.values(), context, Frames())


def collect(packets: RDD[Any]) -> list[pa.RecordBatch]:
    """Run the job; the batches that come out of it."""
    packets._jrdd_deserializer = Frames()  # noqa: SLF001
    return packets.collect()


@dataclass(frozen=True, slots=True)
class _JvmClasses:
    """Classes of the JVM that each batch needs."""

    array_list: Any
    pairwise_rdd: Any
    partitioner: Any
    frame_serializer: Any
    """Writes frames into a shuffle. Spark would choose Kryo for arrays of bytes, and make and configure a new Kryo for
    each file and each reader of a shuffle: half of the JVM's work for a small batch. Java's serialisation writes the
    same bytes. It forgets each frame at once; otherwise it would keep a hundred in memory."""


@lru_cache(maxsize=1)
def _classes(context: SparkContext) -> _JvmClasses:
    """Looked up once per context: to look up a class by name, the JVM searches all of Spark's jars for several names
    that do not exist, which takes milliseconds. What PySpark looks up for each RDD is kept on its view of the JVM."""
    jvm: Any = context._jvm  # noqa: SLF001
    for name in ("PythonRDD", "PythonUtils", "SimplePythonFunction"):
        setattr(jvm, name, getattr(jvm, name))
    forgets = jvm.org.apache.spark.SparkConf(False).set("spark.serializer.objectStreamReset", "1")
    return _JvmClasses(
        array_list=jvm.java.util.ArrayList,
        pairwise_rdd=jvm.PairwiseRDD,
        partitioner=jvm.PythonPartitioner,
        frame_serializer=jvm.org.apache.spark.serializer.JavaSerializer(forgets),
    )
