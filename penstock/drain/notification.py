"""The written form of drain notifications, which is Samza's."""

from __future__ import annotations

import uuid as uuids

import orjson
from msgspec import Struct

from penstock.api.drain import DrainMode, DrainNotification
from penstock.documents import decode, decoding
from penstock.errors import CorruptError

NAMESPACE = "samza-drain-v1"
"""The namespace of notifications in the metadata store; their type in Samza's coordinator stream."""


class _WrittenNotification(Struct, rename="camel"):
    uuid: str
    run_id: str
    drain_mode: str


def encode_notification(notification: DrainNotification) -> bytes:
    """Encode a notification exactly as Samza does."""
    return orjson.dumps(
        {
            "uuid": str(notification.uuid),
            "runId": notification.run_id,
            "drainMode": notification.drain_mode.value,
        }
    )


def decode_notification(data: str | bytes, name: str) -> DrainNotification:
    """Decode a notification of Samza or Penstock. The mode may be in any case; unknown fields are ignored.

    Raises:
        CorruptError: it is no notification, or its mode is not known.
    """
    what = f"`{name}` is not a drain notification"
    written = decode(_WrittenNotification, data, what)
    with decoding(what):
        mode = DrainMode.__members__.get(written.drain_mode.upper())
        if mode is None:
            raise CorruptError(f"{what}: its mode is `{written.drain_mode}`, known is DEFAULT")
        return DrainNotification(uuids.UUID(written.uuid), written.run_id, mode)


def asked_ms(name: uuids.UUID) -> int | None:
    """The time of a request in epoch milliseconds, by its writer's clock; None if its UUID is not of version 7.

    Example:
        >>> import uuid
        >>> from penstock.drain.notification import asked_ms
        >>> asked_ms(uuid.UUID("018bcfe5-6800-7000-8000-000000000000"))
        1700000000000
    """
    return name.int >> 80 if name.version == 7 else None
