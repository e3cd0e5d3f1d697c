"""The written form of drain notifications, which is Samza's."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterable

import orjson
from msgspec import Struct

from penstock.api.drain import DrainMode, DrainNotification
from penstock.base.documents import decode, decoding
from penstock.errors import CorruptError

NAMESPACE = "samza-drain-v1"
"""The namespace of notifications in the metadata store; their type in Samza's coordinator stream."""


class _WrittenNotification(Struct, rename="camel"):
    uuid: str
    run_id: str
    drain_mode: str
    operators: tuple[str, ...] = ()


def encode_notification(notification: DrainNotification) -> bytes:
    """Encode a notification exactly as Samza does, if Samza has its mode."""
    written: dict[str, object] = {
        "uuid": str(notification.uuid),
        "runId": notification.run_id,
        "drainMode": notification.drain_mode.value,
    }
    return orjson.dumps(written | ({"operators": notification.operators} if notification.operators else {}))


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
            known = " and ".join(DrainMode.__members__)
            raise CorruptError(f"{what}: its mode is `{written.drain_mode}`, known are {known}")
        return DrainNotification(uuids.UUID(written.uuid), written.run_id, mode, written.operators)


def drained_together(notifications: Iterable[DrainNotification]) -> frozenset[str] | None:
    """The operators that a run drains if it obeys all of these; None: all of them.

    Example:
        >>> import uuid
        >>> from penstock.drain.notification import drained_together
        >>> asked = [ps.DrainNotification(uuid.UUID(int=7), "3f2a", ps.DrainMode.OPERATORS, ("hours",))]
        >>> drained_together(asked)
        frozenset({'hours'})
    """
    named: frozenset[str] = frozenset()
    for each in notifications:
        if not each.operators:
            return None
        named |= set(each.operators)
    return named or None


def asked_ms(name: uuids.UUID) -> int | None:
    """The time of a request in epoch milliseconds, by its writer's clock; None if its UUID is not of version 7.

    Example:
        >>> import uuid
        >>> from penstock.drain.notification import asked_ms
        >>> asked_ms(uuid.UUID("018bcfe5-6800-7000-8000-000000000000"))
        1700000000000
    """
    return name.int >> 80 if name.version == 7 else None
