"""Random lives of clients of an S3 server over a line that loses, cuts, refuses and delays single requests, beside a
plain dict."""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from math import inf
from random import Random
from unittest.mock import patch
from urllib.parse import unquote, urlsplit

import pytest

from penstock.errors import ConfigError, NotFoundError, RetryableError
from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore
from tests.support.jobs.home import wait_until
from tests.support.stores.faulty_s3 import OF_READS, OF_WRITES, FaultyS3, Weather, hurry
from tests.support.stores.random_life import live, no_pauses
from tests.support.stores.s3 import S3, environment
from tests.support.streams.line import Asked, Fault, LateRequest, Reply

KEYS = ("a", "b/1", "b/2", "b/c/3", "d é+%&/4")
LARGE = 1_100_000


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch, 0.015)


class ClientLife:
    """A client's calls, one after the other. `known` is what they did, by their results; a second client, whose
    requests meet no faults, looks where a result leaves it open."""

    def __init__(self, s3: S3, seed: int, *, late: bool) -> None:
        self.weather = Weather(s3, seed, late=late)
        self.random = Random(seed)
        url = s3.fresh_url()
        self.store = open_store(url)
        with patch.dict(os.environ, environment(f"http://127.0.0.1:{s3.port}")):
            self.direct = open_store(url)
        self._folder = urlsplit(url).path.strip("/")
        self._s3 = s3
        self._number = 0
        self._tags: list[tuple[str, str]] = []
        self.known: dict[str, bytes] = {}
        self.results: Counter[str] = Counter()

    def run(self, steps: int, rate: float, until: Callable[[], bool]) -> None:
        """At least `steps` calls, and more until a condition holds: a client gives up by the clock, so the number of
        its requests depends on the machine."""
        done: list[Asked] = []

        def note(asked: Asked, reply: Reply) -> Reply:
            assert "uploads" not in asked.target, "an object is written in one request"
            if reply.status == 200:
                done.append(asked)
            return reply

        self._s3.line.changed = note
        calls = [self._create, self._replace] * 2 + [self._get, self._list, self._delete]
        for step in count():
            if step >= steps and until():
                break
            assert step < 20 * steps, "a condition of the test does not come true"
            while self.random.random() < 0.3 and (late := self.weather.late()) is not None:
                self._arrives(late)
            self.weather.rate = rate
            done.clear()
            try:
                self.random.choice(calls)()
            finally:
                self.weather.rate = 0.0
            assert sum(each.method == "PUT" for each in done) <= 1, "a call wrote twice"
            if self.random.random() < 0.2:
                self._look()
        self._look()

    def _look(self) -> None:
        assert {key: self.direct.get(key) for key in self.direct.list("")} == self.known

    def _data(self) -> bytes:
        """No two of them are equal."""
        self._number += 1
        return b"%d" % self._number + b"." * self.random.choice((0, 0, 0, 100, LARGE if self._number % 10 == 0 else 1))

    def _create(self) -> None:
        key, data = self.random.choice(KEYS), self._data()
        self._written(key, data, lambda: self.store.put_if_absent(key, data), may=key not in self.known)

    def _replace(self) -> None:
        key, data = self.random.choice(KEYS), self._data()
        try:
            found, tag = self.store.get_with_tag(key)
        except NotFoundError:
            assert key not in self.known
            return
        except RetryableError:
            self.results["unread"] += 1
            return
        assert found == self.known[key]
        self._tags.append((key, tag))
        key, tag = self.random.choice((self._tags[-1], self.random.choice(self._tags)))
        is_current = key in self.known and _etag(self.known[key]) in tag
        self._written(key, data, lambda: self.store.put_if_match(key, data, tag), may=is_current)

    def _written(self, key: str, data: bytes, call: Callable[[], bool], *, may: bool) -> None:
        """Call until its outcome is known. `may`: the condition of the write holds."""
        before = self.known.get(key)
        for _ in range(100):
            try:
                result = "written" if call() else "refused"
            except RetryableError:
                result = "unknown"
            self.results[result] += 1
            found = self._found(key)
            assert found in ((before, data) if may and result == "unknown" else (data,) if may else (before,)), result
            assert may or result != "written"
            if result != "unknown" or found == data:
                break
        if may:
            assert found == data
            self.known[key] = data

    def _get(self) -> None:
        key = self.random.choice(KEYS)
        try:
            assert self.store.get(key) == self.known[key]
        except NotFoundError:
            assert key not in self.known
        except RetryableError:
            self.results["unread"] += 1

    def _list(self) -> None:
        folder = self.random.choice(("", "b", "b/c", "nothing"))
        sizes = {key: len(self.known[key]) for key in sorted(self.known) if key.startswith(f"{folder}/") or not folder}
        folders = sorted({key.partition("/")[0] for key in self.known if "/" in key})
        try:
            assert self.store.list(folder) == list(sizes)
            assert self.store.sizes(folder) == sizes
            assert self.store.folders() == folders
        except RetryableError:
            self.results["unread"] += 1

    def _delete(self) -> None:
        key = self.random.choice(KEYS)
        for _ in range(100):
            try:
                self.store.delete(key)
                break
            except RetryableError:
                self.results["unknown"] += 1
                assert self._found(key) in (self.known.get(key), None)
        assert self._found(key) is None
        self.known.pop(key, None)

    def _found(self, key: str) -> bytes | None:
        try:
            return self.direct.get(key)
        except NotFoundError:
            return None

    def _arrives(self, late: LateRequest) -> None:
        """A request that was sent again comes now: its condition decides, and what has none has its effect."""
        asked, reply = late.asked, late.send()
        if asked.method == "POST":
            assert reply.status == 200
            for key in re.findall("<Key>([^<]*)</Key>", asked.body.decode()):
                self.known.pop(self._key(html.unescape(key)), None)
            return
        key = self._key(unquote(urlsplit(asked.target).path).split("/", 2)[2])
        headers = {name.lower(): value for name, value in asked.headers.items()}
        if "if-none-match" in headers:
            counts = key not in self.known
        else:
            counts = key in self.known and headers["if-match"].strip('"') == _etag(self.known[key])
        assert (reply.status == 200) == counts, reply
        if counts:
            self.known[key] = asked.body

    def _key(self, path: str) -> str:
        return path.removeprefix(f"{self._folder}/")


def _etag(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


@pytest.mark.parametrize(
    ("seed", "late", "steps"),
    [(0, True, 60), *(pytest.param(seed, seed % 2 == 0, 200, marks=pytest.mark.slow) for seed in range(1, 21))],
)
def test_a_call_is_done_once_or_its_outcome_is_told_to_be_unknown(s3: S3, seed: int, late: bool, steps: int) -> None:
    """Most requests meet a fault, and clients give up soon."""
    life = ClientLife(s3, seed, late=late)
    faults = {*OF_READS, *OF_WRITES, Fault.CONFLICT, *((Fault.LATE,) if late else ())}
    results = {"written", "refused", "unknown", "unread"}
    life.run(steps, rate=0.8, until=lambda: faults <= set(s3.line.met) and results <= set(life.results))
    print(dict(life.results), {fault.name: times for fault, times in s3.line.met.items()})


def test_clients_that_count_together_lose_nothing(s3: S3) -> None:
    """Each appends its tokens to one object, and finds out by reading whether an unclear write was done."""
    weather, url = Weather(s3, 1, late=True), s3.fresh_url()
    open_store(url).put_if_absent("tokens", b"[]")
    weather.rate = 0.5

    def append(token: str, store: ObjectStore) -> None:
        while True:
            try:
                data, tag = store.get_with_tag("tokens")
                if token in json.loads(data) or store.put_if_match(
                    "tokens", json.dumps([*json.loads(data), token]).encode(), tag
                ):
                    return
            except RetryableError:
                continue

    def count(client: int) -> None:
        store = open_store(url)
        for number in range(6):
            append(f"{client}-{number}", store)
            if (late := weather.late()) is not None:
                late.send()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    weather.rate = 0.0
    while (late := weather.late()) is not None:
        late.send()
    tokens = json.loads(open_store(url).get("tokens"))
    assert sorted(tokens) == sorted(f"{client}-{number}" for client in range(4) for number in range(6))
    assert [each for each in tokens if each.startswith("0-")] == [f"0-{number}" for number in range(6)]
    assert s3.line.met[Fault.LATE] > 0


def test_a_conflict_is_no_answer(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 answers with 409 while another write is in flight, which may fail."""
    hurry(monkeypatch, 5)
    url = s3.fresh_url()
    store = open_store(url)
    s3.line.plan(Fault.CONFLICT, method="PUT", times=3)
    assert store.put_if_absent("k", b"1")
    _, tag = store.get_with_tag("k")
    s3.line.plan(Fault.CONFLICT, method="PUT", times=inf)
    hurry(monkeypatch, 0.03)
    store = open_store(url)
    with pytest.raises(RetryableError, match="a conflicting write was in flight"):
        store.put_if_match("k", b"2", tag)
    with pytest.raises(RetryableError, match="a conflicting write was in flight"):
        store.put_if_absent("new", b"2")
    assert not store.put_if_absent("k", b"2")
    assert store.get("k") == b"1"


@pytest.mark.parametrize("key", ["k", "a b/é (code: None)"])
def test_a_deletion_that_is_not_allowed_is_told(s3: S3, key: str) -> None:
    """S3 answers it with 200, and the error in the body."""

    def denied(asked: Asked, reply: Reply) -> Reply:
        name = re.findall(b"<Key>[^<]*</Key>", asked.body)
        error = b"<Error>%s<Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        body = b"<DeleteResult>%s</DeleteResult>" % b"".join(error % each for each in name)
        return Reply(200, [("Content-Type", "application/xml")], body) if asked.method == "POST" else reply

    s3.line.changed = denied
    with pytest.raises(ConfigError, match=r"could not delete.*AccessDenied.*Check the credentials"):
        open_store(s3.fresh_url()).delete(key)
    assert s3.line.requests["POST"] == 1


def test_a_request_that_is_done_after_its_client_gave_it_up(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client has asked again meanwhile; the late one finds its condition broken."""
    monkeypatch.setenv("AWS_READ_TIMEOUT", "100ms")
    hurry(monkeypatch, 5)
    store = open_store(s3.fresh_url())
    s3.line.plan(Fault.HELD_UP, method="PUT")
    assert store.put_if_absent("k", b"1")
    _, tag = store.get_with_tag("k")
    s3.line.plan(Fault.HELD_UP, method="PUT")
    assert store.put_if_match("k", b"2", tag)
    _, tag = store.get_with_tag("k")
    assert store.put_if_match("k", b"3", tag)
    wait_until(lambda: s3.line.answered == s3.line.requests.total(), "the late requests")
    assert store.get("k") == b"3"


@pytest.mark.parametrize(
    ("seed", "starts", "lags"),
    [(18, 3, False), *(pytest.param(seed, 4, seed % 2 == 0, marks=pytest.mark.slow) for seed in range(100, 140))],
)
def test_a_life_of_a_jobs_storage(s3: S3, seed: int, starts: int, lags: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers die, and requests of theirs arrive while their successors run. Whatever is retained can be restored, also
    where listings lag."""
    no_pauses(monkeypatch)
    weather = Weather(s3, seed, late=True, lags=lags)
    live(seed, starts, FaultyS3(s3, weather))
    print({fault.name: count for fault, count in s3.line.met.items()}, weather.lagged)
    assert s3.line.met.total() > 0 or seed != 18
    assert weather.lagged > 0 or not lags
