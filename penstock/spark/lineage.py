"""A batch as one Spark job with one lineage: read, exchange, process, ... , write; the action collects the reports.

It is made of RDDs of raw frames. SQL would plan each batch, generate code for it and compile that code. Here the JVM
moves frames and schedules, nothing else.

The RDDs are made in the JVM directly. PySpark asks the JVM some twenty things for each transformation, pickles
nested functions by value, and has the JVM read the byte code of whole classes for each closure. Building the RDDs of
a small batch took it a sixth of the batch's time. Here a few calls make the same RDDs, in a fifth of that.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.core.rdd import _wrap_function
from pyspark.serializers import Serializer

from penstock.errors import PenstockError
from penstock.graph.topology import Topology
from penstock.runtime.messages.packet import REPORT_STAGE, from_batch
from penstock.runtime.reports import Report
from penstock.spark.versions import read_socket
from penstock.spark.workers.worker import ByLane, ContainerStage, FramesByLane, PacketSerializer, SinkStage
from penstock.wire.containers import Lane, lane_of_tasks

Step = Callable[[Iterable[Any]], Iterator[Any]]
"""A function that a Python worker applies to a partition."""

_BROADCAST_BYTES = 1 << 20
"""A longer command becomes a broadcast variable, as in PySpark: otherwise every task would carry a copy."""


@dataclass(frozen=True, slots=True)
class PacketRdd:
    """Batches of packets in partitions, and the steps that the next Python worker takes with them."""

    jvm: JvmRdds
    parent: Any
    steps: tuple[Step, ...] = ()
    reads: Serializer = field(default_factory=PacketSerializer)
    """Reads the parent's frames for the first step."""

    @classmethod
    def of(cls, context: SparkContext, parent: Any, reads: Serializer) -> PacketRdd:
        """The frames of an RDD of the JVM: arrays of bytes that are no packets yet."""
        return cls(jvm_rdds(context), parent, reads=reads)

    @classmethod
    def empty(cls, context: SparkContext, partitions: int) -> PacketRdd:
        jvm = jvm_rdds(context)
        return cls(jvm, jvm.empty(partitions))

    def map_partitions(self, step: Step) -> PacketRdd:
        """Add a step. Steps without an exchange between them run in one worker."""
        return replace(self, steps=(*self.steps, step))

    def exchange(self, lane_of: Sequence[int], lanes: int) -> PacketRdd:
        """Move every packet to the partition of its task's lane; `lane_of` has the lane of each task."""
        steps: tuple[Step, ...] = (*self.steps, ByLane(tuple(lane_of)))
        frames = self.jvm.in_python(self.parent, steps, FramesByLane(), self.reads)
        return PacketRdd(self.jvm, self.jvm.shuffled(frames, lanes))

    def collect(self) -> list[pa.RecordBatch]:
        """Run the job. Returns the batches of its last stage; raises Spark's errors."""
        frames = self.jvm.in_python(self.parent, self.steps, PacketSerializer(), self.reads)
        serve = self.jvm.python_rdd_object.collectAndServe(frames)
        return read_socket(serve, PacketSerializer())


@dataclass(frozen=True, slots=True)
class _Steps:
    """The function of a Python worker, as PySpark calls it. Pickled by name, and therefore short."""

    steps: tuple[Step, ...]

    def __call__(self, partition: int, batches: Iterable[Any]) -> Iterable[Any]:
        for step in self.steps:
            batches = step(batches)
        return batches


class JvmRdds:
    """The classes and objects of the JVM that RDDs are made of, looked up once per context.

    To look a class up by its name, py4j has the JVM search all of Spark's jars for several names that do not exist.
    """

    def __init__(self, context: SparkContext) -> None:
        jvm: Any = context._jvm  # noqa: SLF001
        rdds = jvm.org.apache.spark.rdd
        self._context = context
        self._array_list = jvm.java.util.ArrayList
        self.python_rdd_object = jvm.PythonRDD
        self._python_rdd = jvm.org.apache.spark.api.python.PythonRDD
        self._python_function = jvm.SimplePythonFunction
        self._pairwise_rdd = jvm.PairwiseRDD
        self._partitioner = jvm.PythonPartitioner
        self._shuffled_rdd = rdds.ShuffledRDD
        self._mapped_rdd = rdds.MapPartitionsRDD
        self._any = jvm.scala.reflect.ClassTag.Any()
        self._environment = jvm.java.util.HashMap()
        for name, value in context.environment.items():
            self._environment.put(name, value)
        self._no_broadcasts = jvm.java.util.ArrayList()
        self._includes, self._included = jvm.java.util.ArrayList(), 0
        self._empty: dict[int, Any] = {}
        self._partitioners: dict[int, Any] = {}
        self._frame_serializer = jvm.org.apache.spark.serializer.JavaSerializer(
            jvm.org.apache.spark.SparkConf(False).set("spark.serializer.objectStreamReset", "1")
        )
        self._values, self._flags = self._mapping_to_values()

    def empty(self, partitions: int) -> Any:
        """An RDD of nothing. Its tasks read no shuffle, so it serves one job after the other."""
        if partitions not in self._empty:
            self._empty[partitions] = self._context._jsc.parallelize(self._array_list(), partitions).rdd()  # noqa: SLF001
        return self._empty[partitions]

    def in_python(self, parent: Any, steps: tuple[Step, ...], serializer: Serializer, reads: Serializer) -> Any:
        """The RDD that results from the steps, in a Python worker, over the parent's frames."""
        context, function = self._context, _Steps(steps)
        pickled = pickle.dumps((function, None, reads, serializer), pickle.HIGHEST_PROTOCOL)
        if len(pickled) > _BROADCAST_BYTES:
            command = _wrap_function(context, function, reads, serializer)
        else:
            command = self._python_function(
                bytearray(pickled),
                self._environment,
                self._shipped(),
                context.pythonExec,
                context.pythonVer,
                self._no_broadcasts,
                context._javaAccumulator,  # noqa: SLF001
            )
        return self._python_rdd(parent, command, False, False)

    def shuffled(self, pairs: Any, lanes: int) -> Any:
        """The RDD of the frames of `pairs`, which come with the number of their partition before them.

        Java's serialisation writes the frames, and forgets each at once; otherwise it would keep a hundred in memory.
        Spark would choose Kryo for arrays of bytes, and make and configure a new Kryo for each file and each reader of
        a shuffle: nearly half of what its task threads did for a small batch.
        """
        if lanes not in self._partitioners:
            self._partitioners[lanes] = self._partitioner(lanes, 0)
        partitioner = self._partitioners[lanes]
        shuffled = self._shuffled_rdd(self._pairwise_rdd(pairs), partitioner, self._any, self._any, self._any)
        shuffled.setSerializer(self._frame_serializer)
        return self._mapped_rdd(shuffled, self._values, *self._flags, self._any, self._any)

    def _mapping_to_values(self) -> tuple[Any, list[bool]]:
        """The function that `JavaPairRDD.values` maps partitions with, and the flags of its RDD. Each call of that
        method has the JVM read the byte code of Spark's classes again, to find out what the function refers to."""
        pairs = self._pairwise_rdd(self.empty(1))
        values = pairs.asJavaPairRDD().values().rdd()
        parameters = values.getClass().getConstructors()[0].getParameterCount()
        field = values.getClass().getDeclaredField("f")
        field.setAccessible(True)
        return field.get(values), [False] * (parameters - 4)  # without the parent, the function and two types

    def _shipped(self) -> Any:
        known = self._context._python_includes or []  # noqa: SLF001
        if self._included != len(known):
            self._includes, self._included = self._array_list(), len(known)
            for name in known:
                self._includes.add(name)
        return self._includes


@lru_cache(maxsize=1)
def jvm_rdds(context: SparkContext) -> JvmRdds:
    return JvmRdds(context)


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
