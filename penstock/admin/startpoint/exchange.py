"""Startpoints as messages of Samza's coordinator stream, out and in. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import orjson

from penstock.checkpoint.topic import read_topic_message
from penstock.errors import ConfigError, CorruptError
from penstock.startpoint.request import RequestKey, StartpointRequest, task_number
from penstock.startpoint.serde import (
    NAMESPACE,
    NAMESPACE_FAN_OUT,
    coordinator_key,
    decode_fan_out,
    decode_startpoint,
    encode_startpoint,
    parse_coordinator_key,
)
from penstock.wording import argument, counted, flag


def exported_lines(live: Iterable[StartpointRequest]) -> tuple[list[str], list[str]]:
    """For each key an object `key`, `value`: two texts, the very bytes of Samza's message; and what they leave out."""
    newest: dict[str, StartpointRequest] = {}
    for request in sorted(live, key=lambda each: each.rank):
        newest[str(request.key)] = request
    lines, notes = [], []
    for key, request in sorted(newest.items()):
        value = encode_startpoint(request.startpoint)
        lines.append(orjson.dumps({"key": coordinator_key(NAMESPACE, key), "value": value}).decode())
        if request.with_state is not None or request.clamp:
            notes.append(f"`{key}`: {argument('with_state')} and {flag('clamp')} are left out")
    return lines, notes


def imported_requests(lines: Iterable[str]) -> tuple[list[StartpointRequest], list[str]]:
    """The requests in lines of `{"key": ..., "value": ...}`, in the order of the stream, and what was passed over.

    Of equal keys the last one counts; one without a value deletes it. What Samza has fanned out to a task is a request
    of that task.

    Raises:
        CorruptError: a line cannot be read; it is named by its number.
    """
    last: dict[tuple[str, str], tuple[int, str | None]] = {}
    passed_over = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            namespace, key, value = _message(line)
        except CorruptError as error:
            raise CorruptError(f"line {number}: {error}") from error
        if namespace in {NAMESPACE, NAMESPACE_FAN_OUT}:
            last[namespace, key] = number, value
        else:
            passed_over += 1
    found: list[StartpointRequest] = []
    for (namespace, key), (number, value) in last.items():
        if value is None:
            continue
        try:
            found += _requests(namespace, key, value)
        except (CorruptError, ConfigError) as error:
            raise CorruptError(f"line {number}: {error}") from error
    return found, _notes(passed_over)


def _notes(passed_over: int) -> list[str]:
    return [f"skipped: {counted(passed_over, 'message')} without a startpoint"] if passed_over else []


def _message(line: str) -> tuple[str, str, str | None]:
    message = read_topic_message(line)
    return *parse_coordinator_key(message.key), message.value


def _requests(namespace: str, key: str, value: str) -> list[StartpointRequest]:
    if namespace == NAMESPACE:
        return [StartpointRequest(RequestKey.parse(key), uuid.uuid4().hex, decode_startpoint(value))]
    task_number(key)  # Penstock's tasks are those of GroupByPartition
    return [
        StartpointRequest(RequestKey(ssp, key), uuid.uuid4().hex, startpoint)
        for ssp, startpoint in decode_fan_out(value).items()
    ]
