"""How far the standbys of a job's run are: one object in the job's folder, for commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import orjson
from msgspec import Struct

from penstock.documents import decode_format, decoding
from penstock.errors import NotFoundError
from penstock.job.paths import JobPaths
from penstock.job.shown import show
from penstock.objects.store import ObjectStore

FORMAT = 1


@dataclass(frozen=True, slots=True)
class StandbyFacts:
    """A standby of one task."""

    task: int
    container: str
    checkpoint_id: str | None
    """The checkpoint that it is at; None as long as it has no copy of every store."""
    behind_ms: int | None
    """The time between that checkpoint and the last one."""
    doing: str
    """What it does, or its last failure; empty if it waits for the next checkpoint."""


class ShownStandbys:
    """The object, which the driver replaces whenever something has changed."""

    def __init__(self, objects: ObjectStore, paths: JobPaths) -> None:
        """
        Args:
            objects: the object store of the job root.
            paths: the keys of the job's objects.
        """
        self._objects = objects
        self._key = paths.metadata("standbys", "last-run")

    def put(self, run_id: str, standbys: Sequence[StandbyFacts]) -> None:
        """Replace what is shown. If another process does so at the same time, one of both is shown. Raises
        RetryableError."""
        written = {"format": FORMAT, "run_id": run_id, "standbys": msgspec.to_builtins(standbys)}
        show(self._objects, self._key, orjson.dumps(written))

    def get(self, run_id: str) -> tuple[StandbyFacts, ...]:
        """The standbys of one run, as of a few seconds ago; empty if it has none.

        Raises:
            CorruptError: it cannot be read.
            IncompatibleError: a newer Penstock wrote it.
            RetryableError: the object store failed.
        """
        try:
            data = self._objects.get(self._key)
        except NotFoundError:
            return ()
        what = f"`{self._key}` does not hold the standbys of a run. Delete it: nothing depends on it. The cause"
        with decoding(what):
            written = decode_format(_Written, data, what, f"`{self._key}`", FORMAT)
        return written.standbys if written.run_id == run_id else ()


class _Written(Struct):
    run_id: str
    standbys: tuple[StandbyFacts, ...]
