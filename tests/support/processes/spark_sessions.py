"""Spark sessions of the test process: a context and its first workers take longer than most tests."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from penstock.spark.session.session import create_session
from tests.support.jobs.fault_jobs import executor_env


class Sessions:
    """One Spark session at a time. It stays for the next test file, unless that needs one with other keys."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}
        self._session: SparkSession | None = None

    def get(self, keys: Mapping[str, str] | None = None) -> SparkSession:
        """The session with these `spark.*` keys."""
        few = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"}  # and not one task for each of 200
        wanted = {**few, **executor_env(), **(keys or {})}
        if self._session is None or wanted != self._keys:
            self.close()
            self._keys, self._session = wanted, create_session("tests", wanted)
        return self._session

    def close(self) -> None:
        """Stop it; the JVM stays."""
        if self._session is not None:
            self._session.stop()
            self._session = None
