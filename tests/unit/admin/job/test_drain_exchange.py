"""Drain notifications as messages of Samza's coordinator stream: what a line holds, and which lines count."""

from __future__ import annotations

import json
import uuid

import pytest

from penstock.admin.samza import imported_notifications
from penstock.api.requests import DrainNotification
from penstock.errors import CorruptError
from tests.support.tools.places import GOLDEN

UUID = uuid.UUID("9c3f0b6e-2c1d-4d8e-9f3a-5b7c1e2d3f40")
MESSAGE = (GOLDEN / "drain-coordinator-message.json").read_text()


def message(key: object, value: object, namespace: str = "samza-drain-v1") -> str:
    return json.dumps({"key": json.dumps([1, namespace, key]), "value": None if value is None else json.dumps(value)})


def value(name: uuid.UUID, run_id: str = "3f2a") -> dict[str, str]:
    return {"uuid": str(name), "runId": run_id, "drainMode": "default"}


def test_samzas_message() -> None:
    assert imported_notifications([MESSAGE]) == ([DrainNotification.create(UUID, "3f2a")], [])


def test_the_last_of_a_key_counts_and_null_deletes() -> None:
    gone = uuid.UUID(int=7)
    lines = [
        message("job.name", {"value": "flights"}, "set-config"),
        "",
        message(str(gone), value(gone)),
        message(str(UUID), value(UUID, "first")),
        message(str(gone), None),
        message(str(UUID), value(UUID, "second")),
    ]
    found, notes = imported_notifications(lines)
    assert found == [DrainNotification.create(UUID, "second")]
    assert notes == ["skipped: 1 message without a drain notification"]


@pytest.mark.parametrize(
    "line",
    [
        "x",
        '{"key":"x","value":null}',
        message(str(UUID), {**value(UUID), "drainMode": "SUDDEN"}),
        message(str(UUID), {"uuid": str(UUID)}),
        message(str(uuid.UUID(int=7)), value(UUID)),
    ],
)
def test_damage_names_the_line(line: str) -> None:
    with pytest.raises(CorruptError, match=r"^line 2: "):
        imported_notifications([MESSAGE, line])
