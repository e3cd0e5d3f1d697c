"""The keyed count in Spark's own aggregation, with its Kafka source and sink.

Spark cannot send every message on from an aggregation. Its echo drops duplicates by the number of a message, which
keeps state as well. In Real-Time Mode, it becomes durable every five minutes, the shortest time that Spark takes.
"""

from __future__ import annotations

import time

from counting import EVERY, begin
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own name for it


def main() -> None:
    """Run until the process is killed. A batch is at most what Spark counts between two commits."""
    given, work, counted = begin()
    spark = SparkSession.builder.config(map=given["settings"]).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    options = {"kafka.bootstrap.servers": given["brokers"]}
    events = (
        spark.readStream.format("kafka")
        .options(**options, subscribe=given["topic"], startingOffsets="earliest")
        .options(**({} if given["echo"] else {"maxOffsetsPerTrigger": round(given["spark_rate"] * given["commit_s"])}))
        .load()
    )
    event = F.from_json(F.col("value").cast("string"), "key string, amount double").alias("event")
    counts = (
        events.select(F.col("key").cast("string"), event)
        .groupBy("key")
        .agg(F.count("event").alias("count"))
        .where((F.col("count") + F.ascii(F.substring("key", -1, 1))) % EVERY == 0)
        .select("key", F.to_json(F.struct("count")).alias("value"))
    )
    number = F.from_json(F.col("value").cast("string"), "n long").getField("n")
    echo = events.select("key", "value", number.alias("n")).dropDuplicates(["n"]).select("key", "value")
    writer = (
        (echo if given["echo"] else counts)
        .writeStream.format("kafka")
        .options(**options, topic=given["output"], checkpointLocation=str(work / "checkpoint"))
        .outputMode("update")
    )
    if given["engine"] == "spark-real-time":
        writer = writer.trigger(realTime="5 minutes")
    query = writer.start()
    seen: dict[int, int] = {}
    while query.exception() is None:
        for progress in query.recentProgress:
            seen[progress.batchId] = progress.numInputRows
        counted.messages = sum(seen.values())
        time.sleep(0.1)
    raise SystemExit(str(query.exception()))


if __name__ == "__main__":
    main()
