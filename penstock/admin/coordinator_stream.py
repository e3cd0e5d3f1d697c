"""Requests to a job as messages of Samza's coordinator stream, in lines of text, out and in. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import orjson

from penstock.api.requests import DrainNotification
from penstock.base.documents import decode
from penstock.base.wording import argument, counted, flag, listed
from penstock.checkpoint.samza import numbered_messages
from penstock.drain.requests import NAMESPACE as NAMESPACE_DRAINS
from penstock.drain.requests import decode_notification
from penstock.errors import ConfigError, CorruptError
from penstock.job.commands import new_uuid
from penstock.start.startpoints.decide import newest_of_keys
from penstock.start.startpoints.request import (
    NAMESPACE,
    NAMESPACE_FAN_OUT,
    RequestKey,
    StartpointRequest,
    decode_fan_out,
    decode_startpoint,
    encode_startpoint,
    task_number,
)

_VERSION = 1


class CoordinatorMessage(NamedTuple):
    """The last message of a key that is not a deletion, and the number of its line."""

    line: int
    namespace: str
    key: str
    value: str


def coordinator_line(namespace: str, key: str, value: str) -> str:
    """An object `key`, `value`: two texts, the very bytes of Samza's message."""
    return orjson.dumps({"key": coordinator_key(namespace, key), "value": value}).decode()


def last_messages(lines: Iterable[str], namespaces: Collection[str]) -> tuple[list[CoordinatorMessage], int]:
    """The messages of these namespaces, and how many others there are. Of equal keys the last one counts; one without a
    value deletes it.

    Raises:
        CorruptError: a line cannot be read; it is named by its number.
    """
    last: dict[tuple[str, str], tuple[int, str | None]] = {}
    others = 0
    for number, at, value in numbered_messages(lines, parse_coordinator_key):
        if at[0] in namespaces:
            last[at] = number, value
        else:
            others += 1
    found = [CoordinatorMessage(line, *at, value) for at, (line, value) in last.items() if value is not None]
    return found, others


def coordinator_key(namespace: str, key: str) -> str:
    """The key of a message in Samza's coordinator stream, which is compacted by these bytes."""
    return orjson.dumps([_VERSION, namespace, key]).decode()


def parse_coordinator_key(data: str) -> tuple[str, str]:
    """Namespace and key of a message of the coordinator stream. Raises CorruptError if it is no such key."""
    _, namespace, key = decode(tuple[Any, str, str], data, f"not a key of a coordinator stream, {data[:200]!r}")
    return namespace, key


def exported_lines(live: Iterable[StartpointRequest]) -> tuple[list[str], list[str]]:
    """A message for each key, and what they leave out."""
    newest = {str(key): request for key, request in newest_of_keys(live).items()}
    lines, notes = [], []
    for key, request in sorted(newest.items()):
        lines.append(coordinator_line(NAMESPACE, key, encode_startpoint(request.startpoint)))
        if request.with_state or request.with_output or request.clamp or request.accept_state:
            choices = [argument("with_state"), argument("with_output"), flag("clamp"), flag("accept_state")]
            notes.append(f"`{key}`: {listed(choices)} are left out")
    return lines, notes


def imported_requests(lines: Iterable[str]) -> tuple[list[StartpointRequest], list[str]]:
    """The requests in lines of `{"key": ..., "value": ...}`, in the order of the stream, and what was passed over.

    Of equal keys the last one counts; one without a value deletes it. What Samza has fanned out to a task is a request
    of that task.

    Raises:
        CorruptError: a line cannot be read; it is named by its number.
    """
    messages, others = last_messages(lines, {NAMESPACE, NAMESPACE_FAN_OUT})
    found: list[StartpointRequest] = []
    for line, namespace, key, value in messages:
        try:
            found += _requests(namespace, key, value)
        except (CorruptError, ConfigError) as error:
            raise CorruptError(f"line {line}: {error}") from error
    return found, [f"skipped: {counted(others, 'message')} without a startpoint"] if others else []


def _requests(namespace: str, key: str, value: str) -> list[StartpointRequest]:
    if namespace == NAMESPACE:
        return [StartpointRequest(RequestKey.parse(key), new_uuid().hex, decode_startpoint(value))]
    task_number(key)  # Penstock's tasks are those of GroupByPartition
    return [
        StartpointRequest(RequestKey(ssp, key), new_uuid().hex, startpoint)
        for ssp, startpoint in decode_fan_out(value).items()
    ]


def imported_notifications(lines: Iterable[str]) -> tuple[list[DrainNotification], list[str]]:
    """The notifications in lines of `{"key": ..., "value": ...}`, and what was passed over.

    Raises:
        CorruptError: a line cannot be read; it is named by its number.
    """
    messages, others = last_messages(lines, {NAMESPACE_DRAINS})
    found = []
    for line, _, key, value in messages:
        try:
            notification = decode_notification(value, key)
        except CorruptError as error:
            raise CorruptError(f"line {line}: {error}") from error
        if str(notification.uuid) != key:
            raise CorruptError(f"line {line}: the key is `{key}`, but the notification is {notification.uuid}")
        found.append(notification)
    return found, [f"skipped: {counted(others, 'message')} without a drain notification"] if others else []
