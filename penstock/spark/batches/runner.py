"""The runner of a job on Spark, by its configuration."""

from __future__ import annotations

import threading
from functools import partial

from pyspark import SparkContext

from penstock.direct.two_ways import TwoWays
from penstock.direct.worker import DirectWorker
from penstock.spark.batches.spark_runner import SparkRunner
from penstock.spark.containers.directory import ContainerDirectory
from penstock.spark.workers.packages import Shipment
from penstock.start.job import JobPlan


def runner_for(
    context: SparkContext,
    job: JobPlan,
    shipment: Shipment,
    directory: ContainerDirectory,
    stop: threading.Event,
) -> SparkRunner | TwoWays:
    """Arguments as of `SparkRunner`. The direct worker has the variables that Spark gives to its Python workers."""
    spark = SparkRunner(context, job, shipment, directory, stop)
    if job.config.job.latency_target_ms is None:
        return spark
    limits = job.config.container
    silence_s, standstill_s = limits.lost_ms / 1000, limits.attempt_timeout_ms / 1000
    start = partial(DirectWorker, shipment.worker_package, silence_s, standstill_s, context.environment)
    return TwoWays(spark, job, directory, shipment.secret, start)
