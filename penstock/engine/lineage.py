"""A batch as one Spark job with one lineage: read, exchange, process, ... , write; the action collects the reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from penstock.engine.worker import ContainerStage, Lane, SinkStage, SourceStage, lane_of_tasks
from penstock.errors import PenstockError
from penstock.runtime.attempt import Report
from penstock.runtime.packet import REPORT_STAGE, SPARK_SCHEMA
from penstock.runtime.topology import Topology


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The callables of one execution of one batch."""

    source: SourceStage
    containers: tuple[ContainerStage, ...]
    sink: SinkStage | None


def run_batch(spark: SparkSession, topology: Topology, lanes: Sequence[Lane], plan: BatchPlan) -> list[Report]:
    """Run the job and return its reports. Raises what Spark raises.

    The DataFrame is new for every run: Spark would skip the finished stages of an old one, and with them the
    containers.
    """
    count = len(lanes)
    lane = expr(f"element_at(array({','.join(map(str, lane_of_tasks(lanes)))}), dest + 1)")
    frame: DataFrame = spark.range(0, count, 1, count).mapInArrow(plan.source, SPARK_SCHEMA)
    for stage in plan.containers:
        if topology.is_shuffled(stage.stage):
            frame = frame.repartitionById(count, lane)
        frame = frame.mapInArrow(stage, SPARK_SCHEMA)
    if plan.sink is not None:
        frame = frame.repartitionById(count, lane).mapInArrow(plan.sink, SPARK_SCHEMA)
    rows: list[Any] = frame.select("stage", "payload").collect()
    if any(row.stage != REPORT_STAGE for row in rows):
        raise PenstockError("rows for a stage came out at the end of the job: the topology and the lineage differ")
    return [Report.from_payload(bytes(row.payload)) for row in rows]
