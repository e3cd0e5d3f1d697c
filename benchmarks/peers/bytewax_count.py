"""The keyed count in Bytewax: a process of a cluster, with one worker. Its state is in SQLite files on disk."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import bytewax.operators as op
import orjson
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kafka
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main
from counting import EVERY, begin


def main() -> None:
    """Run until the process is killed."""
    given, work, counted = begin()
    recovery = work / "recovery"
    if given["prepare"]:
        recovery.mkdir(exist_ok=True)
        init_db_dir(recovery, len(given["addresses"]))
        return

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
    cli_main(
        flow,
        process_id=given["process"],
        addresses=given["addresses"],
        epoch_interval=timedelta(seconds=given["commit_s"]),
        recovery_config=RecoveryConfig(str(recovery)),
    )


if __name__ == "__main__":
    main()
