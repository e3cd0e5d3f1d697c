"""A driver of a streaming query with a job of Penstock inside, which may be killed at every step of a batch:
`python query_driver.py <parameters.json>`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

STEPS = ("end", "start-run")
"""Calls to containers that are points, as well as those of a commit."""


def main() -> int:
    """Process the files there are, unless a fault ends it before."""
    parameters = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.path.insert(0, parameters["path"])
    folder = Path(parameters["folder"])

    import penstock.spark as pss
    from penstock.engine.query.job import QueryJob
    from penstock.engine.query.outputs import OutputRows
    from penstock.engine.session import create_session
    from tests.support import driver_faults
    from tests.support.counted_visits import OUTPUT, CountVisits
    from tests.support.killer import Killer

    killer = Killer(folder / "faults")
    killer.is_driver()
    driver_faults.CALLS += STEPS
    driver_faults.arm(
        killer,
        (QueryJob, "__init__", "open"),
        (QueryJob, "run", "batch"),
        (QueryJob, "close", "close"),
        (OutputRows, "frame", "frame"),
    )
    spark = create_session("query", parameters["spark"])
    killing = _through_python(killer)

    def handler(rows: Any, batch: int) -> None:
        killer.at("handler.before")
        rows.write.mode("overwrite").parquet(str(folder / "out" / f"b={batch}"))
        killer.at("handler.after")

    events = spark.readStream.schema("user STRING, id LONG").option("maxFilesPerTrigger", parameters["files"])
    query = (
        pss.transform_with_state(
            events.parquet(str(folder / "in")).mapInArrow(killing, "user STRING, id LONG"),
            processor=CountVisits(killer),
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
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    if parameters["result"]:
        state = [row.asDict(recursive=True) for row in pss.read_state(spark, str(folder / "root"), "visits").collect()]
        Path(parameters["result"]).write_text(json.dumps(state), encoding="utf-8")
    return 0


def _through_python(killer: Any) -> Any:
    """Rows as they are, through a Python worker of Spark that comes to a point."""

    def same(batches: Any) -> Any:
        for batch in batches:
            killer.at("source")
            yield batch

    return same


if __name__ == "__main__":
    sys.exit(main())
