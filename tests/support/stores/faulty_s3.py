"""An S3 server whose requests meet faults by chance, and the store of a client of it."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from penstock.objects import open as open_module
from penstock.objects.open import open_store
from penstock.testing.faulty_store import ForwardingStore
from tests.support.stores.s3 import S3
from tests.support.streams.line import Asked, Fault, LateRequest, Reply

ANY = (Fault.UNAVAILABLE, Fault.FAILED, Fault.LOST_REQUEST)
"""Faults of each request."""
OF_READS = (*ANY, Fault.LOST_REPLY, Fault.CUT_REPLY)
OF_WRITES = (*ANY, Fault.CUT_REQUEST, Fault.LOST_REPLY, Fault.UNAVAILABLE_AFTER, Fault.FAILED_AFTER, Fault.CUT_REPLY)
_ENTRY = re.compile(rb"<Contents><Key>([^<]*)</Key>.*?</Contents>", re.DOTALL)
_MAY_LAG = 3
_REQUESTS = 4


def hurry(monkeypatch: pytest.MonkeyPatch, within_s: float) -> None:
    """Clients that are opened from now on ask again at once, and for so long."""
    pauses = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=4), "base": 2}
    again = {"max_retries": 1000, "retry_timeout": timedelta(seconds=within_s), "backoff": pauses}
    monkeypatch.setattr(open_module, "_retries", lambda: again)
    monkeypatch.setattr(open_module, "_AGAIN", replace(open_module._AGAIN, pause_s=0.001, within_s=within_s))


class Weather:
    """Draws the fate of each request on the line of a server from a seed. It is fair until `rate` is set.

    With `late`, a request to write may reach the server long after the client has sent it again. With `lags`, listings
    leave out objects that were put lately, and have some that were deleted lately.
    """

    def __init__(self, s3: S3, seed: int, *, late: bool = False, lags: bool = False) -> None:
        self.rate = 0.0
        self.random = Random(seed)
        self.lagged = 0
        """The entries that were left out or added."""
        self._line = s3.line
        self._late = late
        self._drawn: Counter[tuple[int, Fault]] = Counter()
        self._entries: dict[bytes, bytes] = {}
        self._lately: list[tuple[str, bytes]] = []
        self._lock = threading.Lock()
        self._line.draw = self._draw
        if lags:
            self._line.changed = self._changed

    def late(self) -> LateRequest | None:
        """Any one of the requests that have not reached the server, which is the caller's from then on."""
        with self._lock:
            late = self._line.late
            return late.pop(self.random.randrange(len(late))) if late else None

    def _draw(self, method: str, target: str) -> Fault | None:
        if self.random.random() >= self.rate:
            return None
        if method in {"GET", "HEAD"}:
            kinds: Sequence[Fault] = OF_READS
        else:
            kinds = (*OF_WRITES, *((Fault.LATE,) * 3 * self._late), *((Fault.CONFLICT,) * (method == "PUT")))
        fault = self.random.choice(kinds)
        if self.random.random() < 0.5:  # so that none is left out
            fault = min(kinds, key=lambda each: self._drawn[len(kinds), each])
        self._drawn[len(kinds), fault] += 1
        return fault

    def _changed(self, asked: Asked, reply: Reply) -> Reply:
        """A listing as it was some changes ago."""
        with self._lock:
            if asked.method == "PUT" and reply.status == 200:
                self._lately.append(("put", unquote(urlsplit(asked.target).path).split("/", 2)[2].encode()))
            elif asked.method == "POST" and reply.status == 200:
                self._lately += [("deleted", key) for key in re.findall(rb"<Key>([^<]*)</Key>", asked.body)]
            if asked.method != "GET" or "list-type=2" not in asked.target:
                return reply
            self._entries |= {found[1]: found[0] for found in _ENTRY.finditer(reply.body)}
            lately = self._lately[max(0, len(self._lately) - self.random.randint(0, _MAY_LAG)) :]
            hidden = {key for what, key in lately if what == "put"}
            body, kept = _ENTRY.subn(lambda found: b"" if found[1] in hidden else found[0], reply.body), b""
            prefix = parse_qs(urlsplit(asked.target).query).get("prefix", [""])[0].encode()
            if b"<IsTruncated>false" in reply.body:
                kept = b"".join(
                    self._entries.get(key, b"")
                    for what, key in lately
                    if what == "deleted" and key.startswith(prefix) and b"<Key>%s</Key>" % key not in reply.body
                )
            self.lagged += kept.count(b"<Key>") + reply.body.count(b"<Key>") - body[0].count(b"<Key>")
            return replace(reply, body=body[0].replace(b"</ListBucketResult>", kept + b"</ListBucketResult>"))


class FaultyS3(ForwardingStore):
    """A client of the server. Late requests arrive between its calls, or while these are under way."""

    def __init__(self, s3: S3, weather: Weather) -> None:
        super().__init__(open_store(s3.fresh_url()))
        self._weather = weather
        self.arrived = 0
        """The late requests that the server has got."""

    @property
    def rate(self) -> float:
        """The share of calls that meet a fault, about: obstore asks again where it can."""
        return self._weather.rate / _REQUESTS

    @rate.setter
    def rate(self, rate: float) -> None:
        self._weather.rate = rate * _REQUESTS

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._arrive()
        return self._inner.put_if_absent(key, data)

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        self._arrive()
        return self._inner.put_if_match(key, data, tag)

    def get(self, key: str) -> bytes:
        self._arrive()
        return self._inner.get(key)

    def list(self, prefix: str, after: str | None = None) -> list[str]:
        self._arrive()
        return self._inner.list(prefix, after)

    def delete(self, key: str) -> None:
        self._arrive()
        self._inner.delete(key)

    def _arrive(self) -> None:
        if self._weather.random.random() < 0.1 and (late := self._weather.late()) is not None:
            late.send()
            self.arrived += 1
