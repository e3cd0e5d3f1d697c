"""Runs an application in one process, without Spark, on the same runtime code."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.api.application import Application
from penstock.api.serdes import Serde, not_bytes
from penstock.api.serdes.failures import Part, input_place
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.config.broadcast import PartitionRange
from penstock.config.load import load_config
from penstock.config.table import BROADCAST_INPUTS
from penstock.config.values import RefusedError
from penstock.errors import ConfigError, PenstockError, UserCodeError
from penstock.plan.grouping import group_inputs
from penstock.plan.pace import Pace
from penstock.plan.positions import TaskSsp
from penstock.plan.ranges import BatchRanges, advance, plan_ranges
from penstock.runtime.batch import Batch
from penstock.runtime.in_process import run_batch_in_process
from penstock.runtime.instance import RuntimeSettings
from penstock.runtime.interrupts import marked_interrupts
from penstock.runtime.outcome import Inconsistent, JobFailed, Succeeded, UserCodeFailed, decide_outcome
from penstock.runtime.task_instance import TaskInstance
from penstock.runtime.topology import plan_topology
from penstock.state.engines.memory import MemoryEngine
from penstock.system.base import OffsetRange, PartitionOffsets, System, WriterIdentity
from penstock.system.memory import MemorySystem
from penstock.system.partitioner import partition_of
from penstock.testing.checked_operators import checked_graph
from penstock.testing.checked_store import CheckedStore


@dataclass(frozen=True, slots=True)
class OutputMessage:
    """A message of an output stream, decoded."""

    key: Any
    value: Any
    partition: int
    offset: int
    timestamp: int


class TestRunner:
    """A job of one process with in-memory streams, for tests of applications.

    ```python
    runner = TestRunner(app).input("local.flights", [{"tailnum": "N1", "distance": 10}])
    runner.run()
    assert runner.store("aircraft") == {"N1": {"flights": 1, "miles": 10}}
    ```
    It looks for mistakes that a run would not show: UnwrittenChangeError is a value of a store that was changed without
    a `put`; StaleValueError one that was kept from before another `put` of its key, changed, and put;
    ChangedMessageError the value of a message that an operator changed in place.
    """

    __test__ = False  # not a test case, whatever pytest thinks of its name

    def __init__(
        self,
        app: Application,
        *,
        partitions: int = 2,
        dead_letter: str | None = None,
        broadcast_inputs: str | Sequence[str] = (),
        config: Mapping[str, object] | None = None,
    ) -> None:
        """`partitions` is the partition count of every stream, and so the number of tasks.

        `dead_letter` and `broadcast_inputs` are what `task.dead.letter.stream` and `task.broadcast.inputs` are in a
        configuration: `broadcast_inputs="local.rates#[0-1]"`. `config` is what tasks find in `context.config`; the
        runner itself heeds none of its keys but `job.name`.

        Raises:
            ConfigError: the application, the configuration, or what is broadcast, is wrong.
        """
        self._mistakes: list[AssertionError] = []
        graph = checked_graph(app.graph(), self._mistakes)
        self._graph = graph
        self._partitions = partitions
        dead = SystemStream.parse(dead_letter) if dead_letter else None
        self._topology = plan_topology(graph, dead)
        outputs = [spec.stream for spec in graph.outputs] + ([dead] if dead else [])
        inputs = [op.stream for op in graph.inputs]
        self._systems: dict[str, System] = {s.system: MemorySystem(s.system) for s in (*inputs, *outputs)}
        for stream in (*inputs, *outputs):
            self._systems[stream.system].admin().create_stream(stream.stream, partitions)
        grouping = group_inputs(self._ends(), _broadcast(broadcast_inputs))
        loaded = load_config(overrides=config, default_job_name=graph.name)
        self._settings = RuntimeSettings(
            job_name=loaded.job.name,
            tasks=grouping.count,
            output_partitions={str(s): partitions for s in outputs},
            dead_letter=dead is not None,
            config=loaded.for_tasks(),
            store_layers=(CheckedStore,),
        )
        self._instances = [
            TaskInstance(t, self._topology, self._settings, {s.name: MemoryEngine() for s in graph.stores}, 0)
            for t in range(grouping.count)
        ]
        self._positions = {TaskSsp(task, ssp): 0 for task, ssps in grouping.tasks.items() for ssp in ssps}
        self._batch = 0
        self.dead_letters = 0
        """Messages that went to the dead-letter stream."""

    def input(
        self, stream: str, values: Iterable[Any], *, partition: int | None = None, timestamp: int = 0
    ) -> TestRunner:
        """Append messages to an input. An item is a value or a (key, value) pair.

        Without `partition`, keyed messages go where their key belongs, others round robin.
        """
        name = SystemStream.parse(stream)
        spec = next((op for op in self._graph.inputs if op.stream == name), None)
        if spec is None:
            raise ConfigError(f"`{stream}` is not an input of application `{self._graph.name}`")
        writer = self._systems[name.system].writer(None)
        for number, item in enumerate(values):
            key, value = item if isinstance(item, tuple) else (None, item)
            key_bytes = None if key is None else _bytes(name, "key", spec.key_serde, key)
            value_bytes = None if value is None else _bytes(name, "value", spec.value_serde, value)
            target = partition
            if target is None:
                target = number % self._partitions if key_bytes is None else partition_of(key_bytes, self._partitions)
            ssp = SystemStreamPartition(name.system, name.stream, target)
            writer.append(ssp, [(timestamp, key_bytes, value_bytes)])
        return self

    def run(self, *, batch_messages: int | None = None) -> TestRunner:
        """Process what is there, in batches of at most `batch_messages`, but at least one of each partition.

        Raises:
            UserCodeError: the application raised or a message did not decode; the batch was not applied.
            UnwrittenChangeError, StaleValueError, ChangedMessageError: the application would go wrong in a way that
                only a restart or another operator shows (see the class). If the application does not catch them,
                they come as the reason of a UserCodeError.
        """
        with marked_interrupts():
            self._run(batch_messages)
        return self

    def _run(self, batch_messages: int | None) -> None:
        while (planned := self._plan(batch_messages)).messages:
            outcome = decide_outcome(
                run_batch_in_process(
                    self._topology,
                    self._settings,
                    Batch(self._batch + 1, 1, time.time_ns() // 1_000_000),
                    self._instances,
                    planned.by_task,
                    self._systems,
                    WriterIdentity("test", 1),
                ),
                self._topology,
                self._settings.tasks,
            )
            match outcome:
                case Succeeded() if self._mistakes:
                    self._drop()
                    raise self._mistakes.pop(0)
                case Succeeded():
                    self._end(outcome, planned)
                case UserCodeFailed(failed):
                    self._drop()
                    raise UserCodeError(failed)
                case JobFailed(_, text) | Inconsistent(text):
                    self._drop()
                    raise PenstockError(text)
            if outcome.shutdown:
                break

    def output(self, stream: str) -> list[OutputMessage]:
        """Everything an output holds, by partition and offset."""
        name = SystemStream.parse(stream)
        spec = next((o for o in self._graph.outputs if o.stream == name), None)
        system = self._systems[name.system]
        messages: list[OutputMessage] = []
        for partition, ends in sorted(system.admin().offsets(name.stream).items()):
            ssp = SystemStreamPartition(name.system, name.stream, partition)
            for chunk in system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 4096):
                for offset, timestamp, key, value in chunk:
                    decoded_key = spec.key_serde.from_bytes(key) if spec and key is not None else key
                    decoded = spec.value_serde.from_bytes(value) if spec and value is not None else value
                    messages.append(OutputMessage(decoded_key, decoded, partition, offset, timestamp))
        return messages

    def store(self, name: str, *, task: int | None = None) -> dict[Any, Any]:
        """Everything in a store, of all tasks together, or of one. Where tasks hold the same key, as they do of what
        is broadcast, the value is that of the last of them."""
        spec = next((s for s in self._graph.stores if s.name == name), None)
        if spec is None:
            raise ConfigError(f"`{name}` is not a store of application `{self._graph.name}`")
        return {
            spec.key_serde.from_bytes(key): spec.value_serde.from_bytes(value)
            for instance in self._instances
            if task in {None, instance.task}
            for key, value in instance.engine(name).scan(None, None)
        }

    def close(self) -> None:
        """Close the user's tasks."""
        for instance in self._instances:
            instance.close()

    def _ends(self) -> dict[SystemStreamPartition, PartitionOffsets]:
        return {
            SystemStreamPartition(op.stream.system, op.stream.stream, partition): ends
            for op in self._graph.inputs
            for partition, ends in self._systems[op.stream.system].admin().offsets(op.stream.stream).items()
        }

    def _plan(self, limit: int | None) -> BatchRanges:
        ranges = plan_ranges(self._positions, self._ends(), Pace(limit or sys.maxsize, sys.maxsize), None)
        return BatchRanges.group(ranges, tuple(op.stream for op in self._graph.inputs))

    def _end(self, outcome: Succeeded, planned: BatchRanges) -> None:
        self._batch += 1
        for instance in self._instances:
            instance.end(self._batch, outcome.tokens.get(instance.task, {}))
        self._positions = advance(self._positions, planned.ranges)
        self.dead_letters += outcome.dead_letters

    def _drop(self) -> None:
        for instance in self._instances:
            instance.drop_attempts()


def _bytes(stream: SystemStream, part: Part, serde: Serde[Any], obj: Any) -> bytes:
    place = input_place(stream)
    try:
        data = serde.to_bytes(obj)
    except Exception as error:
        raise place.unwritable(part, serde, obj, error) from error
    if type(data) is not bytes:
        raise not_bytes(serde, data, f"{place.name}, a {part}")
    return data


def _broadcast(inputs: str | Sequence[str]) -> tuple[PartitionRange, ...]:
    if not inputs:
        return ()
    try:
        return BROADCAST_INPUTS.kind.parse(inputs if isinstance(inputs, str) else tuple(inputs))
    except RefusedError as error:
        raise ConfigError(f"broadcast_inputs: expected {BROADCAST_INPUTS.kind.expected} ({error})") from error
