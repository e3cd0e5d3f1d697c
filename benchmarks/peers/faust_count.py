"""The keyed count in Faust: a worker. Its table is in RocksDB and a changelog topic."""

from __future__ import annotations

import sys
from typing import Any

import faust
from counting import EVERY, begin

given, work, counted = begin()
app = faust.App(
    given["group"],
    broker="kafka://" + given["brokers"],
    store="rocksdb://?driver=rocksdict",
    datadir=str(work / f"data-{given['process']}"),
    broker_commit_interval=given["commit_s"],
    topic_partitions=given["partitions"],
    topic_replication_factor=1,
    web_enabled=False,
)
events = app.topic(given["topic"], key_type=str, key_serializer="raw", value_serializer="json")
counts = app.topic(given["output"], key_type=str, key_serializer="raw", value_serializer="json")
table = app.Table("counts", default=int, partitions=given["partitions"])


@app.agent(events)
async def count(stream: Any) -> None:
    async for key, value in stream.items():
        number = table[key] + 1
        table[key] = number
        counted.messages += 1
        if given["echo"]:
            await counts.send(key=key, value=value)
        elif (number + ord(key[-1])) % EVERY == 0:
            await counts.send(key=key, value={"count": number})


if __name__ == "__main__":
    sys.argv = [sys.argv[0], "worker", "--loglevel", "warn", "--without-web"]
    app.main()
