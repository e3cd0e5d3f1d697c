"""A driver of a streaming query with a job of Penstock inside, as a user writes it, which meets faults at every step:
`python query_driver.py <parameters.json>`."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    """Process the files there are, unless a fault ends it before."""
    parameters = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.path.insert(0, parameters["path"])
    folder = Path(parameters["folder"])

    from pyspark.sql import SparkSession

    import penstock.spark as pss
    from penstock.checkpoint.log import CheckpointLog
    from penstock.spark.query.job import QueryJob
    from penstock.spark.query.rows import OutputRows
    from tests.support.faults import driver_faults
    from tests.support.faults.plan import Faults
    from tests.support.oracles.counted_visits import OUTPUT, CountVisits

    faults = Faults(folder / "faults")
    faults.is_driver()
    driver_faults.wrap_calls(faults, *driver_faults.COMMIT_CALLS, "end", "start-run")
    for owner, method, point in (
        (CheckpointLog, "append", _append_of),
        (QueryJob, "__init__", "open"),
        (QueryJob, "run", "batch"),
        (QueryJob, "close", "close"),
        (OutputRows, "frame", "frame"),
    ):
        driver_faults.wrap(faults, owner, method, point)
    if parameters["exits on SIGTERM"]:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    builder: Any = SparkSession.builder
    spark = builder.config(map=parameters["spark"]).getOrCreate()

    def handler(rows: Any, batch: int) -> None:
        faults.at("handler.before")
        written = rows.mapInArrow(_through_python(faults, "sink"), rows.schema)
        written.write.mode("overwrite").parquet(str(folder / "out" / f"b={batch}"))
        faults.at("handler.after")

    events = spark.readStream.schema("user STRING, id LONG").option("maxFilesPerTrigger", parameters["files"])
    events = events.parquet(str(folder / "in"))
    query = (
        pss.transform_with_state(
            events.mapInArrow(_through_python(faults, "source"), events.schema),
            processor=CountVisits(faults),
            key="user",
            output=OUTPUT,
            root=str(folder / "root"),
            name="visits",
            partitions=2,
            config=parameters["config"],
            from_checkpoint=parameters["from"],
        )
        .for_each_batch(handler)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(**parameters["trigger"])
        .start()
    )
    query.awaitTermination()
    state = pss.read_state(spark, str(folder / "root"), "visits", config=parameters["config"])
    rows = [row.asDict(recursive=True) for row in state.collect()]
    Path(parameters["result"]).write_text(json.dumps(rows), encoding="utf-8")
    return 0


def _append_of(_log: Any, record: Any) -> str:
    """A start's record is no batch's; there is one for each epoch that begins before the first batch."""
    return "append.start" if record.kind_detail == "start" else "append"


def _through_python(faults: Any, point: str) -> Any:
    """Rows as they are, through a Python worker of Spark that comes to a point."""

    def same(batches: Any) -> Any:
        for batch in batches:
            faults.at(point)
            yield batch

    return same


if __name__ == "__main__":
    sys.exit(main())
