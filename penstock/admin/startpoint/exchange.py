"""Startpoints as messages of Samza's coordinator stream, out and in. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.admin.coordinator_stream import coordinator_line, last_messages
from penstock.base.wording import argument, counted, flag, listed
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
