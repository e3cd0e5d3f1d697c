"""Spark's dynamic allocation: executors come and go with the load of Spark's tasks. Those with containers stay."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pyspark import SparkContext, StorageLevel
from pyspark.core.rdd import RDD

from penstock.spark.session.executors import live_executors
from penstock.spark.session.spark_conf import is_true, seconds

logger = logging.getLogger(__name__)
ENABLED = "spark.dynamicAllocation.enabled"
MINIMUM = "spark.dynamicAllocation.minExecutors"
_CACHED_IDLE = "spark.dynamicAllocation.cachedExecutorIdleTimeout"
_FETCH_CACHED = "spark.shuffle.service.fetch.rdd.enabled"
_EVER_SECONDS = 2**31 - 1
"""Spark's text for "never" as the time after which executors with cached blocks go, which is its default."""


def is_dynamic(conf: Mapping[str, str]) -> bool:
    """True if Spark adds and removes executors. With a local master, there are none, and it ignores the key."""
    master = conf.get("spark.master", "local[*]")
    return is_true(conf, ENABLED) and not (master == "local" or master.startswith("local["))


def fault_in_allocation(conf: Mapping[str, str]) -> str | None:
    """The reason why executors with containers would not stay, and the remedy; None if they do."""
    if not is_dynamic(conf):
        return None
    if kept_executors(conf) < 1:
        minimum = conf.get(MINIMUM, "not set")
        return (
            f"`{ENABLED}` is true, and `{MINIMUM}` is {minimum}. Containers, and the state in them, live and die with "
            f"executors, so a job keeps a fixed number of them. Set `{MINIMUM}` to that number, or `{ENABLED}` to false"
        )
    if _CACHED_IDLE in conf and seconds(conf[_CACHED_IDLE]) < _EVER_SECONDS:
        return (
            f"`{ENABLED}` is true, and `{_CACHED_IDLE}` is {conf[_CACHED_IDLE]}: Spark would remove executors with "
            "containers, and the state in them, once no data has come for that long. Leave the key out, or set it to "
            f"{_EVER_SECONDS}s"
        )
    if is_true(conf, _FETCH_CACHED):
        return (
            f"`{ENABLED}` and `{_FETCH_CACHED}` are true: Spark would remove executors with containers, and the state "
            f"in them, as idle. Set `{_FETCH_CACHED}` to false"
        )
    return None


def kept_executors(conf: Mapping[str, str]) -> int:
    """The number of executors that Spark always keeps, and replaces if they are lost."""
    number = conf.get(MINIMUM, "0")
    return int(number) if number.isdecimal() else 0


def default_minimum(conf: Mapping[str, str]) -> dict[str, str]:
    """The `spark.*` key that makes Spark keep as many executors as the session began with."""
    begins = conf.get("spark.executor.instances")
    return {MINIMUM: begins} if begins and is_dynamic(conf) else {}


class KeptExecutors:
    """Keeps executors that Spark does not take for idle, because each has a cached block: the answer of the task that
    started the containers there. Used by several threads."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        conf = dict(context.getConf().getAll())
        self.number = kept_executors(conf) if is_dynamic(conf) else None
        """The number of executors that get containers. None: all, since Spark removes none."""
        self._blocks: dict[str, RDD[Any]] = {}

    def __contains__(self, executor_id: str) -> bool:
        return executor_id in self._blocks

    def caching(self, answers: RDD[Any]) -> RDD[Any]:
        """The same answers, cached where they are made."""
        if self.number is None:
            return answers
        # On disk, because other blocks cannot push it out there.
        return answers.setName("Penstock containers").persist(StorageLevel.DISK_ONLY)

    def keep(self, executor_ids: Collection[str], answers: RDD[Any]) -> None:
        """Keep these executors, from which the answers have come. The answers of lost executors are forgotten."""
        if self.number is None:
            return
        here = {*executor_ids, *(each.id for each in live_executors(self._context))}
        self._blocks.update(dict.fromkeys(executor_ids, answers))
        self._forget(self._blocks.keys() - here)

    def release(self) -> None:
        self._forget(list(self._blocks))  # a late launch may add one

    def _forget(self, executor_ids: Iterable[str]) -> None:
        for each in executor_ids:
            if (answers := self._blocks.pop(each, None)) is None:
                continue
            try:
                answers.unpersist()
            except Exception as error:  # Spark is ending or dead
                logger.debug("Spark was not told that executor %s is no longer needed: %s", each, error)
