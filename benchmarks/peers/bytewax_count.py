"""The keyed count in Bytewax: a process of a cluster, with one worker. Its state is in SQLite files on disk."""

from __future__ import annotations

from typing import Any

import bytewax.operators as op
import orjson
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kafka
from bytewax.dataflow import Dataflow
from counting import EVERY, begin, run_bytewax

given, _, counted = begin()


def count_flow() -> Dataflow:
    """Until the process is killed."""

    def count(before: int | None, value: bytes) -> tuple[int, int]:
        orjson.loads(value)
        counted.messages += 1
        number = (before or 0) + 1
        return number, number

    def echo(before: int | None, value: bytes) -> tuple[int, bytes]:
        return (before or 0) + 1, orjson.dumps(orjson.loads(value))

    def record(item: tuple[str, int]) -> KafkaSinkMessage[Any, Any]:
        return KafkaSinkMessage(item[0].encode(), orjson.dumps({"count": item[1]}))

    def echoed(item: tuple[str, bytes]) -> KafkaSinkMessage[Any, Any]:
        return KafkaSinkMessage(item[0].encode(), item[1])

    flow = Dataflow("count")
    events = kafka.input("events", flow, brokers=[given["brokers"]], topics=[given["topic"]])
    keyed = op.map("keyed", events.oks, lambda message: (message.key.decode(), message.value))
    records: Any
    if given["echo"]:
        records = op.map("record", op.stateful_map("count", keyed, echo), echoed)
    else:
        counts = op.stateful_map("count", keyed, count)
        some = op.filter("some", counts, lambda item: (item[1] + ord(item[0][-1])) % EVERY == 0)
        records = op.map("record", some, record)
    kafka.output("counts", records, brokers=[given["brokers"]], topic=given["output"])
    return flow


if __name__ == "__main__":
    run_bytewax(given, count_flow, given["commit_s"])
