"""A processor on a streaming DataFrame, through PySpark's transformWithState and through Penstock: what runs in the
side's own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own name for it

import penstock.spark as pss
from benchmarks.keyed_fold.spark import session, to_the_end
from benchmarks.pyspark.processors import (
    SESSIONS,
    TOTALS,
    Fold,
    LastTen,
    PandasFold,
    PandasLastTen,
    PandasSessions,
    Sessions,
)
from benchmarks.pyspark.workload import DELAY_MS, FILES

PROCESSORS: dict[str, tuple[type[Any], str, str, str]] = {
    "fold": (Fold, TOTALS, "None", "Update"),
    "fold-pandas": (PandasFold, TOTALS, "None", "Update"),
    "last-ten": (LastTen, TOTALS, "None", "Update"),
    "last-ten-pandas": (PandasLastTen, TOTALS, "None", "Update"),
    "sessions": (Sessions, SESSIONS, "EventTime", "Append"),
    "sessions-pandas": (PandasSessions, SESSIONS, "EventTime", "Append"),
}
"""By kind: the processor, the schema of its rows, the time mode, the output mode."""


def query(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the query over all files; one entry for each batch."""
    work, engine = Path(parameters["work"]), parameters["engine"]
    processor, output, mode, output_mode = PROCESSORS[parameters["kind"]]
    spark = session(work, parameters["threads"], parameters["partitions"], parameters["more"])
    events = (
        spark.readStream.schema("key string, amount long, time long")
        .option("maxFilesPerTrigger", FILES)
        .parquet(parameters["files"])
        .withColumn("at", F.timestamp_millis("time"))
        .withWatermark("at", f"{DELAY_MS} milliseconds")
    )

    def write(rows: DataFrame, batch: int) -> None:
        rows.write.mode("overwrite").parquet(str(work / "output" / f"batch={batch}"))

    if engine == "penstock":
        transformed = pss.transform_with_state(
            events,
            processor=processor(),
            key="key",
            output=output,
            time_mode=mode,
            root=str(work / "root"),
            partitions=parameters["partitions"],
            form="pandas" if parameters["kind"].endswith("pandas") else "row",
        )
        writer: Any = transformed.for_each_batch(write)
    else:
        grouped = events.groupBy("key")
        transform = (
            grouped.transformWithStateInPandas if parameters["kind"].endswith("pandas") else grouped.transformWithState
        )
        made = transform(processor(), output, output_mode, mode)
        writer = made.writeStream.outputMode(output_mode.lower()).foreachBatch(write)
    running = writer.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
    batches = to_the_end(running)
    spark.stop()
    return {"batches": batches}
