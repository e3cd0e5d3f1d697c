"""How far a drain is, or what it came to: one object in the job's folder, for commands."""

from __future__ import annotations

import msgspec
import orjson

from penstock.documents import decode_format, decoding
from penstock.drain.progress import DrainProgress
from penstock.errors import NotFoundError
from penstock.job.paths import JobPaths
from penstock.job.shown import show
from penstock.objects.store import ObjectStore

FORMAT = 1


def encode_progress(progress: DrainProgress) -> bytes:
    """The written form."""
    return orjson.dumps({"format": FORMAT, **msgspec.to_builtins(progress)})


def decode_progress(data: bytes, key: str) -> DrainProgress:
    """Read it.

    Raises:
        CorruptError: it is damaged; names the key.
        IncompatibleError: a newer Penstock wrote it.
    """
    what = f"`{key}` does not hold the progress of a drain. Delete it: nothing depends on it. The cause"
    with decoding(what):
        return decode_format(DrainProgress, data, what, f"`{key}`", FORMAT)


class ShownDrain:
    """The object, which the driver replaces from time to time. It is of the last run that drained, or began to."""

    def __init__(self, objects: ObjectStore, paths: JobPaths) -> None:
        """
        Args:
            objects: the object store of the job root.
            paths: the keys of the job's objects.
        """
        self._objects = objects
        self._key = paths.metadata("drain-progress", "last-run")

    def put(self, progress: DrainProgress) -> None:
        """Replace what is shown. If another process does so at the same time, one of both is shown. Raises
        RetryableError."""
        show(self._objects, self._key, encode_progress(progress))

    def get(self, run_id: str) -> DrainProgress | None:
        """The drain of one run, as of a few seconds ago, or at its end; None if there is none.

        Raises:
            CorruptError: it cannot be read.
            IncompatibleError: a newer Penstock wrote it.
            RetryableError: the object store failed.
        """
        try:
            found = decode_progress(self._objects.get(self._key), self._key)
        except NotFoundError:
            return None
        return found if found.run_id == run_id else None
