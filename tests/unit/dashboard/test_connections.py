"""Strangers at the port of a dashboard: what they can hold, and whether they keep others out."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from penstock.dashboard import access as connections
from penstock.dashboard.server import Dashboard
from tests.support.jobs.dashboards import TOKEN, dashboard, events, request
from tests.support.jobs.home import wait_until

pytestmark = pytest.mark.attack

HEAD = "GET /api/events?job= HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))


def held(served: Dashboard) -> int:
    """The connections that the server has."""
    own = psutil.Process().net_connections(kind="tcp")
    return sum(bool(each.laddr) and each.laddr[1] == served.port and each.status == "ESTABLISHED" for each in own)


@contextmanager
def strangers(served: Dashboard, sent: str, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            each = stack.enter_context(socket.socket())
            each.connect(("127.0.0.1", served.port))
            with suppress(OSError):  # it has been cut off
                each.sendall(sent.encode())
            made.append(each)
        yield made


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param("", id="silent"),
        pytest.param(HEAD, id="half a request"),
        pytest.param(f"{HEAD}\r\n", id="a stream without a token"),
        pytest.param(f"{HEAD}Authorization: Bearer x\r\n\r\n", id="a stream with another token"),
    ],
)
def test_strangers_hold_few_places_and_none_of_who_has_the_token(sent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STRANGERS", 10)
    with dashboard() as served, events(served, "") as before:
        next(before)
        with strangers(served, sent, 200):
            wait_until(lambda: held(served) <= 11, "the end of strangers beyond their places")
            with events(served, "") as after:
                assert "jobs" in next(after)
                assert request(served, "/api/home")[0] == 200
                assert served._application.streams == 2


def test_a_flood_of_new_connections_does_not_keep_the_operator_out() -> None:
    ended, made = threading.Event(), []
    stay = 2 * connections.STRANGERS

    def flood(port: int) -> None:
        """New connections all the time. The first ones stay."""
        while not ended.is_set():
            with suppress(OSError):
                made.append(socket.create_connection(("127.0.0.1", port), timeout=5))
            if len(made) > stay:
                made.pop().close()

    with dashboard() as served, events(served, "") as pages:
        thread = threading.Thread(target=flood, args=(served.port,))
        thread.start()
        try:
            wait_until(lambda: len(made) >= stay, "the flood")
            answers = []
            for _ in range(20):
                with suppress(OSError, http.client.HTTPException):
                    answers.append(request(served, "/api/home")[0])
            assert answers.count(200) >= 15
            assert "jobs" in next(pages)
        finally:
            ended.set()
            thread.join()
            for each in made:
                each.close()


def test_a_request_that_drips_is_cut_off_only_if_a_stranger_sends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STRANGER_S", 0.4)
    with dashboard() as served, socket.create_connection(("127.0.0.1", served.port)) as slow:
        slow.sendall(HEAD.encode())

        def drips() -> bool:
            try:
                slow.sendall(b"a: b\r\n")
            except OSError:
                return False
            return True

        began = time.monotonic()
        wait_until(lambda: not drips(), "the end of the connection")
        assert time.monotonic() - began < 20
        known = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
        for _ in range(2):
            known.request("GET", "/api/home", headers={"Authorization": f"Bearer {TOKEN}"})
            assert known.getresponse().read() == b'{"job":""}'
        known.close()


def test_a_body_without_a_token_is_not_read() -> None:
    with dashboard() as served, socket.create_connection(("127.0.0.1", served.port), timeout=20) as stranger:
        head = "POST /api/look/sizes HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        stranger.sendall(f"{head}Content-Length: 1000000000\r\n\r\n".encode())
        assert b" 401 " in stranger.recv(100), "the answer does not wait for the body"


def test_connections_beyond_the_places_of_who_has_the_token_still_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS", 1)
    with dashboard() as served, events(served, "") as first, events(served, "") as second:
        assert "jobs" in next(first)
        assert "jobs" in next(second)
