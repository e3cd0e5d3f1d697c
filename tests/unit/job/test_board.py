"""Documents in a job's folder: boards, which drivers replace and commands read, and requests, written once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import TypeVar

import pytest

from penstock.base.retry import Retry
from penstock.errors import CorruptError, IncompatibleError, PenstockError, RetryableError
from penstock.job import commands
from penstock.job.board import Board
from penstock.job.commands import write_request
from penstock.job.paths import JobPaths
from penstock.job.shown import Failure, Outage, RunFailure, RunOutage, failure_board, outage_board
from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore
from penstock.side.wing import RunSideStores, SideStoreFacts, put_side_stores, side_store_board
from penstock.standby.wing import RunStandbys, StandbyFacts, standby_board
from penstock.testing.faulty_store import ForwardingStore

PATHS = JobPaths("flights", "1")
KEY = PATHS.metadata("outage", "last-run")
OUTAGE = RunOutage("run", Outage(5, "no broker"))
OTHER = RunOutage("other", None)


@pytest.fixture
def objects() -> Iterator[ObjectStore]:
    with closing(open_store("memory://boards")) as store:
        for key in store.list(""):
            store.delete(key)
        yield store


def test_a_document_replaces_the_one_before(objects: ObjectStore) -> None:
    board = outage_board(objects, PATHS)
    assert board.get() is None
    assert board.put(OTHER)
    assert board.put(OUTAGE)
    assert board.put(OUTAGE)
    assert board.get() == OUTAGE
    assert (board.get_of("run"), board.get_of("other")) == (OUTAGE, None)
    board.remove()
    board.remove()
    assert board.get() is None


def test_a_document_may_stay(objects: ObjectStore) -> None:
    board = outage_board(objects, PATHS)
    board.put(OUTAGE)
    assert board.put(OTHER, unless=lambda found: found.run_id == "run")
    assert board.get() == OUTAGE
    assert board.put(OTHER, unless=lambda found: found.run_id == "another")
    assert board.get() == OTHER


class OvertakenStore(ForwardingStore):
    """Before each conditional write, another writer puts its data."""

    def __init__(self, inner: ObjectStore, data: bytes) -> None:
        super().__init__(inner)
        self.data = data

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        _, now = super().get_with_tag(key) if super().list(key.rpartition("/")[0]) else (b"", None)
        super().put_if_match(key, self.data, now)
        return super().put_if_match(key, data, tag)


def test_of_two_writers_at_once_one_is_told_that_the_other_was_first(objects: ObjectStore) -> None:
    board = outage_board(objects, PATHS)
    overtaken = outage_board(OvertakenStore(objects, board.encode(OTHER)), PATHS)
    assert not overtaken.put(OUTAGE)
    assert board.get() == OTHER
    lost_reply = outage_board(OvertakenStore(objects, board.encode(OUTAGE)), PATHS)
    assert lost_reply.put(OUTAGE), "the write landed, only its reply was lost"


@pytest.mark.parametrize("data", [b"", b"{}", b'{"format":1,"run_id":7,"outage":null}', b'{"format":1,"run_id":"r"}'])
def test_damage_names_the_object(objects: ObjectStore, data: bytes) -> None:
    objects.put_if_absent(KEY, data)
    board = outage_board(objects, PATHS)
    with pytest.raises(CorruptError, match=f"`{KEY}` does not hold what a run waits for. Delete it"):
        board.get()
    with pytest.raises(CorruptError, match="Delete it"):
        board.put(OUTAGE, unless=lambda _: False)
    assert board.put(OUTAGE), "it is replaced unread"
    assert board.get() == OUTAGE


def test_a_newer_document_is_not_read(objects: ObjectStore) -> None:
    objects.put_if_absent(KEY, b'{"format":2}')
    with pytest.raises(IncompatibleError, match=f"`{KEY}` has format 2"):
        outage_board(objects, PATHS).get()


T = TypeVar("T")


def same(board: Board[T], document: T, written: bytes) -> None:
    assert board.encode(document) == written
    assert board.decode(written) == document


def test_stored_forms(objects: ObjectStore) -> None:
    outages, failures = outage_board(objects, PATHS), failure_board(objects, PATHS)
    standbys, sides = standby_board(objects, PATHS), side_store_board(objects, PATHS)

    same(outages, OTHER, b'{"format":1,"run_id":"other","outage":null}')
    same(outages, OUTAGE, b'{"format":1,"run_id":"run","outage":{"since_ms":5,"reason":"no broker"}}')
    same(
        failures,
        RunFailure(7, Failure(5, "no disk", "operator `totals`"), "t0k3n"),
        b'{"format":1,"epoch":7,"failure":{"since_ms":5,"error":"no disk","place":"operator `totals`",'
        b'"traceback":null},"driver":"t0k3n"}',
    )
    earlier = b'{"format":1,"epoch":7,"failure":{"since_ms":5,"error":"no disk","place":null,"traceback":null}}'
    assert failures.decode(earlier) == RunFailure(7, Failure(5, "no disk"))
    same(
        standbys,
        RunStandbys("run", (StandbyFacts(1, "0-1", None, None, "copies"),)),
        b'{"format":1,"run_id":"run","standbys":[{"task":1,"container":"0-1","checkpoint_id":null,"behind_ms":null,'
        b'"doing":"copies"}]}',
    )
    same(
        sides,
        RunSideStores((SideStoreFacts("planes", side_inputs=("local.planes",)),)),
        b'{"format":1,"stores":[{"store":"planes","side_inputs":["local.planes"],"processor":"","pushed":"",'
        b'"broadcast":false}]}',
    )


def test_a_run_without_side_stores_leaves_no_object(objects: ObjectStore) -> None:
    board = side_store_board(objects, PATHS)
    put_side_stores(board, (SideStoreFacts("planes"),))
    assert objects.list("flights-1")
    put_side_stores(board, ())
    assert objects.list("flights-1") == []


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
