"""The audit log of a job: one object for each command that changed something of the job."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import orjson

from penstock.base.documents import Count, decode_format
from penstock.base.retry import Retry, retry
from penstock.errors import CorruptError, IncompatibleError, NotFoundError, RetryableError
from penstock.job.paths import JobPaths
from penstock.objects.signed import UntrustedError
from penstock.objects.store import ObjectStore

FORMAT = 1
MOST_RECORDS = 10_000
_MOST_CHANGES = 20
_LONGEST = 500
_THREADS = 16
_WRITE = Retry(pause_s=0.2, tries=5)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A change of a job by an operator. `ended_ms` is None until the command has ended, `error` unless it failed."""

    time_ms: Count
    user: str
    host: str
    program: str
    action: str
    changes: Mapping[str, str]
    ended_ms: Count | None = None
    error: str | None = None

    def encode(self) -> bytes:
        """JSON of a few KB at most: long texts and long lists of changes are cut."""
        document = msgspec.to_builtins(self)
        texts = {name: _cut(text) if isinstance(text, str) else text for name, text in document.items()}
        return orjson.dumps({"format": FORMAT, **texts, "changes": _cut_changes(self.changes)})


class AuditLog:
    """The records of a job, each in a separate object, so commands at the same time do not disturb each other."""

    def __init__(self, objects: ObjectStore, paths: JobPaths) -> None:
        self._objects = objects
        self._paths = paths

    def begin(self, entry: AuditEntry) -> str:
        """Write a new record and return its key. Durable when it returns.

        Raises:
            ConfigError: the root is signed with another key, or may not be written to. Nothing was written.
            RetryableError: the object store failed.
        """
        # A record written without the root's key would not be trusted.
        with suppress(NotFoundError, CorruptError):
            retry(lambda: self._objects.get(self._paths.uid), _WRITE)
        key = self._paths.audit_record(entry.time_ms, uuid.uuid4().hex)
        retry(lambda: self._objects.put_if_absent(key, entry.encode()), _WRITE)
        return key

    def end(self, key: str, entry: AuditEntry) -> None:
        """Replace the record by one with the outcome, and delete the oldest records beyond `MOST_RECORDS`. Raises
        PenstockError if the object store failed, or the record was deleted or damaged."""
        retry(lambda: self._replace(key, entry.encode()), _WRITE)
        for old in self._objects.list(self._paths.audit_log)[:-MOST_RECORDS]:
            self._objects.delete(old)

    def read(self, newest: int | None = None) -> Iterator[tuple[str, AuditEntry | str]]:
        """The newest records, or all, oldest first: the key and the entry, or the reason why it cannot be read. Raises
        RetryableError."""
        keys = self._objects.list(self._paths.audit_log)
        keys = keys if newest is None else keys[max(0, len(keys) - newest) :]
        with ThreadPoolExecutor(_THREADS) as pool:
            for key, found in zip(keys, pool.map(self._entry, keys), strict=True):
                if found is not None:
                    yield key, found

    def _replace(self, key: str, data: bytes) -> None:
        _, tag = self._objects.get_with_tag(key)
        if not self._objects.put_if_match(key, data, tag):
            raise RetryableError(f"`{key}` was changed meanwhile")

    def _entry(self, key: str) -> AuditEntry | str | None:
        try:
            data = self._objects.get(key)
            return decode_format(AuditEntry, data, f"`{key}` is damaged", f"`{key}`", FORMAT)
        except NotFoundError:
            return None  # pruned meanwhile
        except (CorruptError, IncompatibleError, UntrustedError) as error:
            return str(error)


def _cut(text: str) -> str:
    """The text without lone surrogates, cut to `_LONGEST`."""
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _cut_changes(changes: Mapping[str, str]) -> dict[str, str]:
    shown = list(changes.items())[:_MOST_CHANGES]
    more = {"...": f"{len(changes) - len(shown)} more"} if len(shown) < len(changes) else {}
    return {_cut(name): _cut(text) for name, text in shown} | more
