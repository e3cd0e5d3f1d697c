"""The messages of a checkpoint that are a job's own."""

from __future__ import annotations

import logging

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.job.paths import JobPaths
from penstock.outbox.start import warn_of_copy
from penstock.outbox.wing import OutboxObject, OutputPart, OwedOutput, UnpublishedObjects, own_debt

PATHS = JobPaths("visits", "1")
ROWS, SENT = SystemStreamPartition("spark", "out", 0), SystemStreamPartition("kafka", "out", 0)


def left(slot: int, *parts: SystemStreamPartition) -> UnpublishedObjects:
    """A record that left an object with two messages for each of these."""
    key = PATHS.outbox(f"7-{slot}-0")
    return UnpublishedObjects(slot, (OutboxObject(key, 0, 10, "hash", dict.fromkeys(parts, OutputPart(1, 2))),))


OWED = OwedOutput((left(1, SENT), left(2, ROWS, SENT), left(3, ROWS)), ("kafka",), "visits-1-abc")


def test_the_job_itself_owes_everything(caplog: pytest.LogCaptureFixture) -> None:
    assert own_debt(OWED, "abc", PATHS) == OWED
    with caplog.at_level(logging.WARNING):
        warn_of_copy(OWED, own_debt(OWED, "abc", PATHS))
    assert not caplog.messages


def test_a_copy_owes_the_rows_of_its_dataframes(caplog: pytest.LogCaptureFixture) -> None:
    own = own_debt(OWED, "xyz", PATHS)
    assert [(each.slot, [*each.objects[0].parts]) for each in own.unpublished] == [(2, [ROWS]), (3, [ROWS])]
    assert (own.keepers, own.publisher) == ((), "")
    with caplog.at_level(logging.WARNING):
        warn_of_copy(OWED, own)
    (told,) = caplog.messages
    assert "up to 4 messages" in told
