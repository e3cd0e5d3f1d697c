"""The work of Spark's Python workers that have ended, as their hosts know it."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark import SparkContext

from penstock.batch.batch import Batch
from penstock.host.position_page import Spot, pages_of_ended
from penstock.spark.session.executors import Executor, job_group, live_executors, rdd_on
from penstock.wire.address import Lane
from penstock.wire.endings import ProcessDeath

logger = logging.getLogger(__name__)
_CRASHED = "Python worker exited unexpectedly"
_FAILED_TASK = re.compile(r"Task (\d+) in stage [\d.]+ failed \d+ times?")
_ANSWER_SECONDS = 5.0


def worker_deaths(
    context: SparkContext,
    error: str,
    folder: str,
    epoch: int,
    batch: Batch,
    lanes: Sequence[Lane],
    idle_limit_s: float,
) -> list[ProcessDeath]:
    """The worker whose end has ended a run of a batch, if that was it, and what it was doing.

    Args:
        error: what Spark says about the run.
        folder: the pages of the workers on each host.
        epoch, batch: of the run.
        lanes: the tasks by partition of Spark; empty if its partitions are not known.
        idle_limit_s: Spark kills a worker that has sent nothing for this long. That is no doing of a message: what it
            waited for may come.
    """
    if _CRASHED not in error:
        return []
    own_run = (epoch, batch.number, batch.run)
    spots = [each for each in _all_spots(context, folder) if (each.epoch, each.batch, each.run) == own_run]
    failed = _FAILED_TASK.search(error)
    if failed is not None and int(failed[1]) < len(lanes):  # Spark has killed the workers of the others then
        own = set(lanes[int(failed[1])].tasks)
        spots = [spot for spot in spots if spot.task in own]
    now = time.time()
    spots = [spot for spot in spots if now - spot.since < idle_limit_s]
    places = {(spot.task, spot.span, spot.message) for spot in spots}
    if not spots:
        return []
    name = f"Spark's worker in {batch}"
    # Spark has tried the task several times: its workers all ended at one place, or nobody knows at which.
    found = [max(spots, key=lambda spot: spot.since)] if len(places) == 1 else spots
    return [ProcessDeath(f"{name}, since {found[0].since:.3f},", _status(error), tuple(found))]


def _status(error: str) -> int | None:
    """Spark does not know exit statuses. Python's faulthandler has told it of a crash, if it was one."""
    return -11 if "Fatal Python error" in error or "Segmentation fault" in error else None


def _all_spots(context: SparkContext, folder: str) -> list[Spot]:
    found: list[Spot] = []
    for executor in live_executors(context):
        found.extend(pages_of_ended(Path(folder)) if executor.is_local else _ask(context, executor, folder))
    return found


def _ask(context: SparkContext, executor: Executor, folder: str) -> list[Spot]:
    group = f"penstock-pages-{executor.id}"
    patience = threading.Timer(_ANSWER_SECONDS, context.cancelJobGroup, [group])
    patience.daemon = True
    patience.start()
    try:
        with job_group(context, group, "Asking what a Python worker did"):
            asked = rdd_on(context, executor).mapPartitions(lambda _: iter([pages_of_ended(Path(folder))]))
            found: list[tuple[Spot, ...]] = asked.collect()
        return [spot for spots in found for spot in spots]
    except Exception as error:  # the batch is run again all the same
        logger.debug("executor %s did not answer: %s", executor, error)
        return []
    finally:
        patience.cancel()
