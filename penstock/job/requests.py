"""Requests to a job in its metadata store. Each is a separate object under a random name, and is never overwritten."""

from __future__ import annotations

import secrets
import threading
import time
from uuid import UUID

from penstock.base.retry import Retry, retry
from penstock.errors import PenstockError, RetryableError
from penstock.objects.store import ObjectStore

_WRITE = Retry(pause_s=0.2, tries=5)
_TICKS_PER_MS = 4096
"""As many as a uuid has room for beside its time."""
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
