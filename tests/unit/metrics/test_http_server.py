"""The server of small pages, as strangers meet it."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from penstock.config.load import load_config
from penstock.errors import ConfigError
from penstock.metrics.prometheus import PrometheusEndpoint, ServedPage, SmallServer, tls_context
from penstock.metrics.snapshot import Snapshot
from penstock.testing.kafka_certificates import new_certificates
from tests.support.tools.fixtures import fixture_of

PAGE = ServedPage(lambda accept: ("text/plain", b"content"))


server = fixture_of(lambda: SmallServer("127.0.0.1", 0, PAGE, connections=4, seconds=0.5))


def get(port: int, headers: dict[str, str] | None = None, tls: ssl.SSLContext | None = None) -> tuple[int, bytes]:
    make = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    if tls is not None:
        make = http.client.HTTPSConnection("localhost", port, timeout=20, context=tls)
    make.request("GET", "/metrics", headers=headers or {})
    answer = make.getresponse()
    return answer.status, answer.read()


def handlers() -> int:
    return sum("process_request_thread" in each.name for each in threading.enumerate())


@pytest.mark.attack
def test_half_requests_hold_few_threads_and_each_for_a_short_time(server: SmallServer) -> None:
    before = handlers()
    halves = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(60)]
    try:
        for each in halves:
            try:
                each.sendall(b"GET /metrics HTTP/1.1\r\nHost")
            except OSError:
                continue  # it is one too many
        deadline = time.monotonic() + 20
        while handlers() - before < 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert handlers() - before <= 4
        for each in halves:
            each.settimeout(20)
            try:
                assert each.recv(10) == b"", "it is cut off"
            except ConnectionError:
                continue
        while (found := _answer(server.server_port)) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert found == (200, b"content")
    finally:
        for each in halves:
            each.close()


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nHost"])
def test_connections_that_wait_do_not_keep_a_scrape_out(sent: bytes) -> None:
    server = SmallServer("127.0.0.1", 0, PAGE, connections=4, seconds=60)
    held = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(20)]
    try:
        for each in held:
            with suppress(OSError):
                each.sendall(sent)
        for _ in range(5):
            assert get(server.server_port) == (200, b"content")
        assert handlers() <= 4
    finally:
        for each in held:
            each.close()
        server.close()


def test_a_scrape_that_is_being_answered_keeps_its_place() -> None:
    begun, ended = threading.Event(), threading.Event()

    def answer(accept: str) -> tuple[str, bytes]:
        begun.set()
        ended.wait(20)
        return "text/plain", b"late"

    server = SmallServer("127.0.0.1", 0, ServedPage(answer), connections=1, seconds=60)
    found: list[tuple[int, bytes]] = []
    scrape = threading.Thread(target=lambda: found.append(get(server.server_port)))
    scrape.start()
    try:
        assert begun.wait(20)
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as other:
            assert other.recv(10) == b"", "it is one too many"
    finally:
        ended.set()
        scrape.join()
        server.close()
    assert found == [(200, b"late")]


def test_a_name_of_another_site_that_points_to_this_host_gets_nothing() -> None:
    server, guarded = (SmallServer("127.0.0.1", 0, each) for each in (PAGE, ServedPage(PAGE.answer, "a-token")))
    try:
        for host in (
            "evil.example",
            f"127.0.0.1:{server.server_port}.evil.example",
            "localhost.evil",
            "[::1].evil",
            "",
        ):
            assert get(server.server_port, {"Host": host}) == (421, b"")
        for host in ("127.0.0.1", "localhost:9108", "[::1]:9108"):
            assert get(server.server_port, {"Host": host})[0] == 200
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as two:
            two.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n")
            assert b" 421 " in two.recv(100)
        behind_a_proxy = {"Host": "metrics.example", "Authorization": "Bearer a-token"}
        assert get(guarded.server_port, behind_a_proxy)[0] == 200, "whoever has the token may come by any name"
    finally:
        server.close()
        guarded.close()


def _answer(port: int) -> tuple[int, bytes] | None:
    try:
        return get(port)
    except OSError:
        return None


@pytest.mark.attack
def test_whoever_holds_all_places_keeps_nobody_out() -> None:
    server = SmallServer("127.0.0.1", 0, PAGE, connections=4, seconds=60)
    with ExitStack() as undo:
        undo.callback(server.close)
        for _ in range(3):
            for _ in range(20):
                undo.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=20))
            assert get(server.server_port) == (200, b"content")
        assert handlers() <= 4


@pytest.mark.attack
def test_a_request_that_drips_is_cut_off(server: SmallServer) -> None:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")
        with pytest.raises(OSError):  # noqa: PT012 - which byte is one too many is not known
            while time.monotonic() - began < 20:
                slow.sendall(b"a: b\r\n" if time.monotonic() - began < 0.4 else b"c")
                time.sleep(0.05)
    assert time.monotonic() - began < 10


@pytest.mark.attack
@pytest.mark.parametrize("sent", [b"\x00" * 1000, b"GET " + b"/" * 100_000, b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 1000])
def test_garbage_harms_nobody(server: SmallServer, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as stranger:
        with suppress(OSError):  # the server may have cut it off
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while stranger.recv(65536):
                pass
    assert get(server.server_port) == (200, b"content")


@pytest.mark.attack
def test_a_token_is_asked_for() -> None:
    endpoint = PrometheusEndpoint("a-1", "127.0.0.1", 0, Snapshot, token="a-token")
    try:
        assert get(endpoint.port) == (401, b"")
        for wrong in ("Bearer a-toke", "Bearer a-token2", "a-token", "Basic a-token", "Bearer \u00e9"):
            assert get(endpoint.port, {"Authorization": wrong})[0] == 401
        assert get(endpoint.port, {"Authorization": "Bearer a-token"})[0] == 200
    finally:
        endpoint.close()


def test_tls(tmp_path: Path) -> None:
    made = new_certificates(tmp_path)
    server = SmallServer(
        "127.0.0.1", 0, PAGE, tls_context(str(made.server), str(made.server)), connections=2, seconds=0.5
    )
    try:
        trusting = ssl.create_default_context(cafile=str(made.authority))
        assert get(server.server_port, tls=trusting) == (200, b"content")
        with pytest.raises((OSError, http.client.HTTPException)):
            get(server.server_port)
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as mute:
            assert mute.recv(10) == b"", "a handshake that does not begin is cut off"
        assert get(server.server_port, tls=trusting) == (200, b"content")
    finally:
        server.close()


def test_files_that_are_no_certificates_are_refused(tmp_path: Path) -> None:
    made = new_certificates(tmp_path)
    for files in ((str(tmp_path / "none"), str(made.server)), (str(made.authority), str(made.authority))):
        with pytest.raises(ConfigError, match="Give two PEM files that belong together"):
            PrometheusEndpoint("a-1", "127.0.0.1", 0, Snapshot, tls=files)
    with pytest.raises(ConfigError, match=r"TLS needs `metrics\.prometheus\.tls\.key\.file` too"):
        load_config(overrides={"metrics.prometheus.tls.certificate.file": "c.pem"}, environ={}, default_job_name="a")
