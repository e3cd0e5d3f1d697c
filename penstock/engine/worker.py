"""What runs in Spark's Python workers: one callable per kind of stage, pickled into each batch's job."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from penstock.container.exchange import exchange
from penstock.container.protocol import AttemptCall, ContainerAddress, Identity
from penstock.runtime.instance import RuntimeSettings
from penstock.runtime.packet import Packet, from_batch, split_by_size, to_batch
from penstock.runtime.sink import SinkAttempt
from penstock.runtime.source import run_source
from penstock.runtime.topology import Topology
from penstock.system.base import OffsetRange, System, WriterIdentity


@dataclass(frozen=True, slots=True)
class WorkerPackage:
    """What of a job a Spark worker needs."""

    topology: Topology
    settings: RuntimeSettings
    systems: Mapping[str, System]


@dataclass(frozen=True, slots=True)
class PackedPackage:
    """A pickled WorkerPackage. Unpickled once per worker process, however many batches it serves."""

    digest: str
    data: bytes = field(repr=False)

    def load(self) -> WorkerPackage:
        """The package."""
        if self.digest not in _packages:
            _packages.clear()
            _packages[self.digest] = pickle.loads(self.data)  # noqa: S301 - it came with the task, from the driver
        return _packages[self.digest]


_packages: dict[str, WorkerPackage] = {}


@dataclass(frozen=True, slots=True)
class SourceStage:
    """Stage 0: reads ranges. Gets one row per task, the task's number."""

    package: PackedPackage
    ranges: Mapping[int, Sequence[tuple[int, OffsetRange]]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        package = self.package.load()
        for batch in batches:
            for task in batch.column(0).to_pylist():
                ranges = self.ranges.get(task, ())
                yield from _batches(run_source(package.topology, package.settings, task, ranges, package.systems))


@dataclass(frozen=True, slots=True)
class ContainerStage:
    """A stage with state: streams its packets through the task's container, passes all others on."""

    stage: int
    addresses: Mapping[int, ContainerAddress]
    secret: str = field(repr=False)
    epoch: int
    batch: int
    run: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = _partition()
        address = self.addresses[task]
        identity = Identity(address.incarnation, self.epoch)
        call = AttemptCall(identity, self.batch, self.run, self.stage, task, self.batch - 1)
        return exchange(address, self.secret, call, batches, lambda batch: _split(batch, self.stage))


@dataclass(frozen=True, slots=True)
class SinkStage:
    """The last stage: writes the outputs, passes reports on."""

    package: PackedPackage
    identity: WriterIdentity

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        package = self.package.load()
        topology = package.topology
        if topology.sink is None:
            raise ValueError("a job without outputs has no sink stage")
        attempt = SinkAttempt(topology, package.settings, _partition(), package.systems, self.identity)
        for batch in batches:
            mine, others = _split(batch, topology.sink)
            for packet in from_batch(mine):
                attempt.accept(packet)
            if others.num_rows:
                yield others
        yield from _batches(attempt.finish())


def _partition() -> int:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("this runs inside a Spark task only")
    return context.partitionId()


def _split(batch: pa.RecordBatch, stage: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """(for this stage, for others). Which task it is for, the exchange before has decided."""
    mine = pc.equal(batch.column("stage"), stage)
    return batch.filter(mine), batch.filter(pc.invert(mine))


def _batches(packets: Iterator[Packet]) -> Iterator[pa.RecordBatch]:
    for group in split_by_size(packets):
        yield to_batch(group)
