"""The version of a table that somebody chose with `penstock table use`, in the job's metadata store."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from msgspec import Struct

from penstock.documents import Positive, decode_format, decoding
from penstock.errors import NotFoundError, RetryableError
from penstock.metadata.object_store import ObjectStore
from penstock.metadata.paths import JobPaths
from penstock.retry import Retry, retry

FORMAT = 1
_NAMESPACE = "table-use"
_WRITE = Retry(pause_s=0.2, tries=5)


@dataclass(frozen=True, slots=True)
class Pin:
    """A version to use until another one is chosen."""

    version: int
    who: str = ""


class Pins:
    """Reads and writes the pin of one table. Every method raises RetryableError if the store fails."""

    def __init__(self, objects: ObjectStore, paths: JobPaths, table: str) -> None:
        self._objects = objects
        self._key = paths.metadata(_NAMESPACE, table)

    def read(self) -> Pin | None:
        """The pin; None: there is none, so the newest version is used.

        Raises:
            CorruptError: it is damaged.
            IncompatibleError: a newer Penstock wrote it.
        """
        try:
            data = self._objects.get(self._key)
        except NotFoundError:
            return None
        what = f"`{self._key}` is damaged, it does not name the version of a table; set it with `penstock table use`"
        with decoding(what):
            written = decode_format(_Written, data, what, f"`{self._key}`", FORMAT)
            return Pin(written.version, written.who)

    def write(self, pin: Pin) -> None:
        """Replace the pin. Of two writers at once the last one counts."""
        data = orjson.dumps({"format": FORMAT, "version": pin.version, "who": pin.who})
        retry(lambda: self._replace(data), _WRITE)

    def remove(self) -> None:
        """Remove the pin. Idempotent, and durable when it returns."""
        retry(lambda: self._objects.delete_durably(self._key), _WRITE)

    def _replace(self, data: bytes) -> None:
        try:
            found, tag = self._objects.get_with_tag(self._key)
        except NotFoundError:
            done = self._objects.put_if_absent(self._key, data)
        else:
            done = found == data or self._objects.put_if_match(self._key, data, tag)
        if not done and self._objects.get(self._key) != data:
            raise RetryableError(f"`{self._key}` was changed by somebody else at the same time")


class _Written(Struct):
    format: Positive
    version: Positive
    who: str = ""
