"""The metrics of a job's last run, in its folder, for commands to show."""

from __future__ import annotations

import time

import orjson

from penstock.errors import CorruptError, NotFoundError
from penstock.metadata.object_store import ObjectStore
from penstock.metadata.paths import JobPaths
from penstock.metrics.snapshot import Snapshot


class ShownMetrics:
    """One object, which the driver replaces from time to time."""

    def __init__(self, objects: ObjectStore, paths: JobPaths) -> None:
        self._objects = objects
        self._key = paths.metadata("metrics", "last-run")

    def put(self, run_id: str, snapshot: Snapshot) -> None:
        """Replace what is shown. If another driver does so at the same time, one of both is shown. Raises
        RetryableError."""
        try:
            _, tag = self._objects.get_with_tag(self._key)
        except NotFoundError:
            tag = None
        shown = {"run_id": run_id, "time_ms": time.time_ns() // 1_000_000, "metrics": snapshot.rows()}
        self._objects.put_if_match(self._key, orjson.dumps(shown), tag)

    def get(self) -> Snapshot | None:
        """The metrics as they were some seconds ago, or at the end of the last run; None if no run had any. Raises
        CorruptError, RetryableError."""
        try:
            return Snapshot.of_rows(orjson.loads(self._objects.get(self._key))["metrics"])
        except NotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(
                f"`{self._key}` does not hold metrics: {error}. Delete it: the next run writes it"
            ) from error
