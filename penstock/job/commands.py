"""Documents that commands write into a job's folder.

Requests to the job are separate objects under random names, and never overwritten. A request to stop reaches a
running driver from anywhere that reaches the job root. The audit log has one object for each command that changed
something of the job.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import msgspec
import orjson

from penstock.base.documents import Count, decode_format
from penstock.base.retry import Retry, retry
from penstock.errors import CorruptError, IncompatibleError, NotFoundError, PenstockError, RetryableError
from penstock.job.paths import JobPaths
from penstock.objects.forwarding import UntrustedError
from penstock.objects.store import ObjectStore

_WRITE = Retry(pause_s=0.2, tries=5)
_TICKS_PER_MS = 4096
"""A uuid has room for so many beside its time in milliseconds."""
_ticking = threading.Lock()
_last_tick = 0
"""The time of the newest uuid, in ticks since 1970."""


def new_uuid() -> UUID:
    """A uuid that is larger than all that this process has made: version 7 (RFC 9562), with a counter in its time."""
    global _last_tick
    with _ticking:
        _last_tick = max(_last_tick + 1, time.time_ns() * _TICKS_PER_MS // 1_000_000)
        milliseconds, tick = divmod(_last_tick, _TICKS_PER_MS)
    return UUID(int=milliseconds << 80 | 7 << 76 | tick << 64 | 2 << 62 | secrets.randbits(62))


def write_request(objects: ObjectStore, path: str, data: bytes, *, what: str, look: str) -> None:
    """Store a request, durably. Failures that may pass are retried. Idempotent.

    Args:
        objects: the object store of the job root.
        path: the key of the object. If it exists, the reply to this or an earlier call was lost.
        data: the request.
        what: the beginning of the error: the action that failed.
        look: the command that shows if the request is there.

    Raises:
        PenstockError: the store failed again and again.
    """
    try:
        retry(lambda: objects.put_if_absent(path, data), _WRITE)
    except RetryableError as error:
        raise PenstockError(
            f"{what} in {_WRITE.tries} tries: {error}. `{look}` shows whether it was written nevertheless"
        ) from error


logger = logging.getLogger(__name__)
_NAMESPACE = "stop"
_POLL_SECONDS = 1.0
_JOIN_SECONDS = 5.0


class StopRequests:
    """Requests to stop, each named by the token of the lease of one driver. No other driver has that token, so an
    unanswered request stops no later run."""

    def __init__(self, objects: ObjectStore, paths: JobPaths) -> None:
        self._objects = objects
        self._paths = paths

    def ask(self, token: str, who: str) -> bool:
        """Ask the driver with this lease to stop after its current batch; False if that was done before. Raises
        RetryableError."""
        return self._objects.put_if_absent(self._key(token), who.encode())

    def asked_by(self, token: str) -> str | None:
        """The person who asked the driver with this lease to stop, if there is one. Raises RetryableError."""
        try:
            return self._objects.get(self._key(token)).decode(errors="replace")
        except NotFoundError:
            return None

    def clear(self) -> None:
        """Delete all requests. The holder of the lease calls it: its own requests are answered, and the drivers of the
        others are gone. Raises RetryableError."""
        for key in self._objects.list(self._paths.metadata_folder(_NAMESPACE)):
            self._objects.delete(key)

    def _key(self, token: str) -> str:
        return self._paths.metadata(_NAMESPACE, token)


class StopRequestWatch:
    """Looks for a request to stop every second, on a separate thread, until it is closed or has found one."""

    def __init__(self, requests: StopRequests, token: str, stop: Callable[[], None]) -> None:
        """`stop` is called once, from that thread or from `close`."""
        self._requests = requests
        self._token = token
        self._stop = stop
        self._found = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-stop-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look a last time, end the watch and delete the requests. A failure to delete is only logged: requests that
        stay harm nobody."""
        self._closing.set()
        self._thread.join(_JOIN_SECONDS)
        if not self._found:
            self._look()
        try:
            self._requests.clear()
        except PenstockError as error:
            logger.debug("requests to stop were not deleted: %s", error)

    def _run(self) -> None:
        while not (self._found or self._closing.wait(_POLL_SECONDS)):
            self._look()

    def _look(self) -> None:
        try:
            who = self._requests.asked_by(self._token)
        except PenstockError as error:
            logger.debug("requests to stop could not be read: %s", error)
            return
        if who is not None:
            self._found = True
            logger.info("%s asked this job to stop: it ends after the current batch, with a last commit", who)
            self._stop()


FORMAT = 1
MOST_RECORDS = 10_000
_MOST_CHANGES = 20
_NUMBERS = itertools.count()
_LONGEST = 500
_THREADS = 16


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
        name = f"{next(_NUMBERS):08x}{secrets.token_hex(12)}"  # one process's records of a millisecond keep their order
        key = self._paths.audit_record(entry.time_ms, name)
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
