"""The version of a source that was refused last, for `penstock status` and `penstock table versions`."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from msgspec import Struct

from penstock.documents import Count, Positive, decode_format, decoding
from penstock.errors import NotFoundError, RetryableError
from penstock.metadata.object_store import ObjectStore
from penstock.metadata.paths import JobPaths

FORMAT = 1
_NAMESPACE = "table-refused"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A version that did not become one of the table, and why."""

    source_version: str
    reason: str
    time_ms: int
    """In epoch milliseconds."""


class Refusals:
    """Reads and writes the last refusal of one table. Every method raises RetryableError if the store fails."""

    def __init__(self, objects: ObjectStore, paths: JobPaths, table: str) -> None:
        self._objects = objects
        self._key = paths.metadata(_NAMESPACE, table)

    def read(self) -> Refusal | None:
        """The last one; None if a later version was not refused.

        Raises:
            CorruptError: it is damaged.
            IncompatibleError: a newer Penstock wrote it.
        """
        try:
            data = self._objects.get(self._key)
        except NotFoundError:
            return None
        what = f"`{self._key}` is damaged, it does not say why a table was refused"
        with decoding(what):
            written = decode_format(_Written, data, what, f"`{self._key}`", FORMAT)
            return Refusal(written.source_version, written.reason, written.time_ms)

    def write(self, refusal: Refusal) -> None:
        """Replace it. It only informs: of two writers at once any one counts."""
        data = orjson.dumps(
            {
                "format": FORMAT,
                "source_version": refusal.source_version,
                "reason": refusal.reason,
                "time_ms": refusal.time_ms,
            }
        )
        try:
            _, tag = self._objects.get_with_tag(self._key)
        except NotFoundError:
            done = self._objects.put_if_absent(self._key, data)
        else:
            done = self._objects.put_if_match(self._key, data, tag)
        if not done:
            raise RetryableError(f"`{self._key}` was changed by somebody else at the same time")

    def clear(self) -> None:
        """There is none. Idempotent."""
        self._objects.delete(self._key)


class _Written(Struct):
    format: Positive
    source_version: str
    reason: str
    time_ms: Count
