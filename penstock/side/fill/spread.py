"""Takes a task's own keys from a side input, where its partitions are not simply those of the tasks.

Keys belong to tasks by their hash modulo the number of tasks. A message whose key has the hash h is in partition h
modulo the number of partitions, so a task needs the partitions that leave the same remainder as the task when they
are divided by the greatest common divisor of both numbers. From them it takes the keys that belong to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import pyarrow as pa

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError
from penstock.side.fill.entries import MessageFailedError, SideEntries
from penstock.side.fill.parts import SidePart
from penstock.state.engines.engine import Content
from penstock.state.records import Changes
from penstock.system.base import RawMessage
from penstock.system.partitioner import partitions_of


class OwnEntries(SideEntries):
    """Entries of the messages that belong to a task; `inner` makes them."""

    def __init__(self, part: SidePart, inner: SideEntries) -> None:
        super().__init__()
        self._part = part
        self._inner = inner

    @property
    def changes(self) -> Changes:
        return self._inner.changes

    def begin(self, content: Content, *, written: bool) -> None:
        self._inner.begin(content, written=written)
        self.size_bytes = 0

    def add(self, ssp: SystemStreamPartition, messages: Sequence[RawMessage]) -> None:
        count = self._part.spread_of(ssp)
        if count is not None:
            messages = self._own(ssp, messages, count)
        if messages:
            self._inner.add(ssp, messages)
        self.size_bytes = self._inner.size_bytes

    def _own(self, ssp: SystemStreamPartition, messages: Sequence[RawMessage], partitions: int) -> list[RawMessage]:
        """The messages of this task. Raises MessageFailedError for a key that belongs to a task which does not read
        this partition."""
        task, tasks = self._part.task, self._part.tasks
        common = gcd(partitions, tasks)
        keys = pa.array([message[2] for message in messages], pa.large_binary())
        own = []
        for index, (message, belongs) in enumerate(zip(messages, partitions_of(keys, tasks).tolist(), strict=True)):
            if message[2] is None:
                belongs = ssp.partition % tasks
            if belongs % common != ssp.partition % common:
                raise MessageFailedError(self._part, ssp, index, message, _misplaced(ssp, partitions, tasks))
            if belongs == task:
                own.append(message)
        return own


def _misplaced(ssp: SystemStreamPartition, partitions: int, tasks: int) -> ConfigError:
    why = f"spreads the stream over its {tasks} tasks"
    if partitions == tasks:
        why = "finds the task of each message behind a `partition_by`: a join would not find this key"
    return ConfigError(
        f"the key of this message does not belong to partition {ssp.partition} of the {partitions} of "
        f"`{ssp.system_stream}` by Kafka's hash (murmur2), by which the job {why}. Write the stream with murmur2, as "
        "Java's producers and Penstock do (those of librdkafka, such as confluent_kafka's, need "
        "partitioner=murmur2_random), or give every task all of it, with broadcast=True"
    )
