"""Small objects about one table in the job's metadata store: the version that somebody chose with `penstock table use`,
and the version of the source that was refused last."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

import orjson

from penstock.documents import Count, Positive, decode_format, decoding
from penstock.errors import NotFoundError, RetryableError
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.retry import Retry, retry

FORMAT = 1
_WRITE = Retry(pause_s=0.2, tries=5)


@dataclass(frozen=True, slots=True)
class Pin:
    """A version to use until another one is chosen."""

    version: Positive
    who: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A version that did not become one of the table, and why."""

    source_version: str
    reason: str
    time_ms: Count
    """In epoch milliseconds."""


V = TypeVar("V", Pin, Refusal)


class TableNote(Generic[V]):
    """Reads and writes one note of one table. Every method raises RetryableError if the store fails."""

    def __init__(self, objects: ObjectStore, key: str, form: type[V], says: str, *, retries: Retry) -> None:
        """
        Args:
            objects: the object store of the job root.
            key: where the note is.
            form: what it is read as; its fields are what is written.
            says: what a damaged note does not do, for the error.
            retries: how often a write is tried.
        """
        self._objects = objects
        self._key = key
        self._form: Any = form
        self._damage = f"`{key}` is damaged, it does not {says}"
        self._retries = retries

    def read(self) -> V | None:
        """The note; None if there is none.

        Raises:
            CorruptError: it is damaged.
            IncompatibleError: a newer Penstock wrote it.
        """
        try:
            data = self._objects.get(self._key)
        except NotFoundError:
            return None
        with decoding(self._damage):
            note: V = decode_format(self._form, data, self._damage, f"`{self._key}`", FORMAT)
            return note

    def write(self, note: V) -> None:
        """Replace the note. Of two writers at once the last one counts."""
        data = orjson.dumps({"format": FORMAT, **asdict(note)})
        retry(lambda: self._replace(data), self._retries)

    def remove(self) -> None:
        """Remove the note. Idempotent, and durable when it returns."""
        retry(lambda: self._objects.delete_durably(self._key), self._retries)

    def _replace(self, data: bytes) -> None:
        try:
            found, tag = self._objects.get_with_tag(self._key)
        except NotFoundError:
            done = self._objects.put_if_absent(self._key, data)
        else:
            done = found == data or self._objects.put_if_match(self._key, data, tag)
        if not done and self._objects.get(self._key) != data:
            raise RetryableError(f"`{self._key}` was changed by another process at the same time; try again")


def pin_of(objects: ObjectStore, paths: JobPaths, table: str) -> TableNote[Pin]:
    """The version to use; without it, the newest one is used."""
    says = "name the version of a table; set it with `penstock table use`"
    return TableNote(objects, paths.metadata("table-use", table), Pin, says, retries=_WRITE)


def refusal_of(objects: ObjectStore, paths: JobPaths, table: str) -> TableNote[Refusal]:
    """What was refused last, unless a later version was not. It only informs: a write that fails is not tried again."""
    key = paths.metadata("table-refused", table)
    return TableNote(objects, key, Refusal, "say why a table was refused", retries=Retry(pause_s=0, tries=1))
