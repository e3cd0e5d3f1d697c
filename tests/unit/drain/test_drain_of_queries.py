"""A job inside a streaming query is not drained, and nothing is left behind that its next start would find."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.api.ssp import SystemStream
from penstock.checkpoint.log import CheckpointLog
from penstock.drain.requests import DrainRequests
from penstock.drain.utils import write_drain_notification
from penstock.errors import IncompatibleError
from penstock.metadata.open import open_store
from penstock.metadata.paths import JobPaths
from penstock.system.query import NO_DRAIN
from tests.support.checkpoints import checkpoint


def test_a_request_that_was_there_before_the_query_keeps_it_from_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A job without a checkpoint may be of any kind."""
    objects, paths = open_store(str(tmp_path)), JobPaths("visits", "1")
    asked = write_drain_notification(objects, paths)
    DrainRequests(objects, paths).refuse(NO_DRAIN)
    assert not DrainRequests(objects, paths).find().notifications
    assert f"the request {asked.uuid} to drain is deleted: {NO_DRAIN}" in caplog.text


def test_a_request_to_drain_a_query_is_refused(tmp_path: Path) -> None:
    objects, paths = open_store(str(tmp_path)), JobPaths("visits", "1")
    log = CheckpointLog(objects, paths)
    record = checkpoint(log.claim("run"), 1)
    log.append(replace(record, identities={SystemStream("spark", "rows"): "query"}))
    with pytest.raises(IncompatibleError, match="Stop the query"):
        write_drain_notification(objects, paths)
    assert not DrainRequests(objects, paths).find().notifications
