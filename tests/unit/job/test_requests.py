"""Requests to a job are written once, whatever the store does meanwhile."""

from __future__ import annotations

import uuid

import pytest

from penstock.base.retry import Retry
from penstock.errors import PenstockError, RetryableError
from penstock.job import commands
from penstock.job.commands import write_request
from penstock.objects.open import open_store
from penstock.testing.forwarding_store import ForwardingStore


class Flaky(ForwardingStore):
    """Loses the replies to its first writes."""

    lost = 0

    def put_if_absent(self, key: str, data: bytes) -> bool:
        done = super().put_if_absent(key, data)
        self.lost -= 1
        if self.lost >= 0:
            raise RetryableError("no reply")
        return done


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Flaky:
    monkeypatch.setattr(commands, "_WRITE", Retry(pause_s=0.001, tries=3))
    return Flaky(open_store(f"memory://{uuid.uuid4().hex}"))


def test_a_lost_reply_is_not_a_failure(store: Flaky) -> None:
    store.lost = 2
    write_request(store, "a/b", b"asked", what="it could not be asked for", look="penstock status a")
    assert store.get("a/b") == b"asked"


def test_a_store_that_stays_away_is_reported_with_where_to_look(store: Flaky) -> None:
    store.lost = 3
    with pytest.raises(PenstockError) as failed:
        write_request(store, "a/b", b"asked", what="it could not be asked for", look="penstock status a")
    assert str(failed.value) == (
        "it could not be asked for in 3 tries: no reply. `penstock status a` shows whether it was written nevertheless"
    )
    assert not isinstance(failed.value, RetryableError)
