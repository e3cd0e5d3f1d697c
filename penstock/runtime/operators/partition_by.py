"""partition_by: sends each message to the task that owns its new key."""

from __future__ import annotations

from typing import Any

from penstock.api.graph import PartitionBySpec, PartitionThroughSpec
from penstock.api.serdes.failures import Place, partition_by_place
from penstock.runtime.columns import Columns, Push
from penstock.runtime.operators.elementwise import Deliver, Elementwise


class PartitionBy(Elementwise[PartitionBySpec]):
    """Each result is the message's new key."""

    def place(self, name: str) -> Place:
        return partition_by_place(name)

    def apply(self, columns: Columns, results: list[Any]) -> Columns:
        return columns.with_keys(results)

    def deliver(self, downstream: Push) -> Deliver:
        return lambda _key, value, result: downstream(result, value)


class PartitionThrough(PartitionBy):
    """The same, but the messages leave by the channel to the intermediate stream."""

    spec: PartitionThroughSpec
