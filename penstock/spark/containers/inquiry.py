"""The end of a container on another host: a Spark task reads the log there, which has its exit status and last
words."""

from __future__ import annotations

import logging
import threading

from pyspark import SparkContext

from penstock.spark.session.executors import job_group, live_executors, rdd_on
from penstock.spark.session.spark_errors import cause_of
from penstock.wire.client import ContainerClient
from penstock.wire.endings import Ending, UnknownEnd, ending_of

logger = logging.getLogger(__name__)
ANSWER_SECONDS = 5.0
"""Longest wait for Spark's answer. The executor's slot is free once the cancelled batch has left it."""


def inquire(context: SparkContext, client: ContainerClient) -> Ending:
    """The host's knowledge of a container's end, or the reason why it is unknown. Takes a few seconds at most."""
    address = client.address
    if not client.host_answers():
        return UnknownEnd("its host does not answer")
    executor = next((e for e in live_executors(context) if e.id == address.executor_id), None)
    if executor is None:
        return UnknownEnd(f"Spark has lost its executor {address.executor_id}, too")
    group = f"penstock-inquiry-{address.incarnation}"
    patience = threading.Timer(ANSWER_SECONDS, context.cancelJobGroup, [group])
    patience.daemon = True
    patience.start()
    try:
        with job_group(context, group, "Asking how a Penstock container ended"):
            found: list[Ending] = (
                rdd_on(context, executor).mapPartitions(lambda _: iter([ending_of(address)])).collect()
            )
        return found[0]
    except Exception as error:  # the answer is for the reader of the log: nothing depends on it
        logger.debug("executor %s did not answer: %s", executor, error)
        return UnknownEnd(f"{executor} could not report how it ended: {cause_of(error)}")
    finally:
        patience.cancel()
