"""What a job's run waits for: one object in the job's folder, for commands."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import orjson

from penstock.documents import decode_format, decoding
from penstock.errors import NotFoundError
from penstock.job.paths import JobPaths
from penstock.job.shown import show
from penstock.objects.store import ObjectStore
from penstock.wording import utc_text

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Outage:
    """A system that a run waits for."""

    since_ms: int
    """When it first did not answer, in epoch milliseconds."""
    reason: str
    """Which system, where, what it was asked for, and why there is no answer, as of the last try."""

    def __str__(self) -> str:
        return f"waits since {utc_text(self.since_ms)}: {self.reason}"


class _Written(msgspec.Struct):
    run_id: str
    outage: Outage | None


class ShownOutage:
    """The object, which the driver replaces whenever something has changed."""

    def __init__(self, objects: ObjectStore, paths: JobPaths) -> None:
        """
        Args:
            objects: the object store of the job root.
            paths: the keys of the job's objects.
        """
        self._objects = objects
        self._key = paths.metadata("outage", "last-run")

    def put(self, run_id: str, outage: Outage | None) -> None:
        """Replace what is shown; None: the run waits for nothing. If another process does so at the same time, one of
        both is shown. Raises RetryableError."""
        written = {"format": FORMAT, "run_id": run_id, "outage": msgspec.to_builtins(outage)}
        show(self._objects, self._key, orjson.dumps(written))

    def get(self, run_id: str) -> Outage | None:
        """What a run waits for, as of a few seconds ago; None if for nothing.

        Raises:
            CorruptError: it cannot be read.
            IncompatibleError: a newer Penstock wrote it.
            RetryableError: the object store failed.
        """
        try:
            data = self._objects.get(self._key)
        except NotFoundError:
            return None
        what = f"`{self._key}` does not hold what a run waits for. Delete it: nothing depends on it. The cause"
        with decoding(what):
            written = decode_format(_Written, data, what, f"`{self._key}`", FORMAT)
        return written.outage if written.run_id == run_id else None
