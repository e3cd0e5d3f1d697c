"""The dashboard's server over a real job that does not run: pages, look-ups, actions, and who may do what."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import admin
from penstock.dashboard import server, watch
from penstock.dashboard.server import Dashboard
from penstock.dashboard.watch import Watches
from penstock.errors import ConfigError
from tests.support.jobs.dashboards import TOKEN, dashboard, events, request
from tests.support.jobs.example_job import ExampleJob, publish
from tests.support.jobs.home import wait_until

JOB = "flights-1"
CHANGE = {"job": JOB, "confirmed": True}


@pytest.fixture(scope="module")
def _example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExampleJob]:
    folder = tmp_path_factory.mktemp("job")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_HOME", str(folder / "home"))
        yield ExampleJob(folder / "home", folder / "kept")


@pytest.fixture(autouse=True)
def home(_example: ExampleJob) -> Path:
    _example.restore()
    return Path(os.environ["PENSTOCK_HOME"])


@pytest.fixture
def served() -> Iterator[Dashboard]:
    with dashboard() as found:
        yield found


def test_the_page_of_a_job_follows_the_job(served: Dashboard) -> None:
    with events(served, JOB) as pages:
        first = next(pages)
        assert first["status"] == "not running"
        assert first["verdict"]["level"] == "idle"
        assert first["stores"] == ["miles"]
        publish([("N1", 5), ("N1", 6), ("N2", 7)])
        second = next(pages)
    inputs = next(table for table in second["tables"] if table["title"].startswith("Input"))
    lags = [row[inputs["columns"].index("lag")] for row in inputs["rows"]]
    assert sum(map(int, lags)) == 3
    assert lags == sorted(lags, reverse=True)
    assert "It has 3 to read." in second["next"]


def test_the_list_of_jobs_and_a_job_that_is_not_there(served: Dashboard) -> None:
    with events(served, "") as pages:
        assert [each["job"] for each in next(pages)["jobs"]] == [JOB]
    with events(served, "other") as pages:
        assert "there is no job `other`" in next(pages)["error"]


def test_entries_of_a_store(served: Dashboard) -> None:
    asked = {"job": JOB, "store": "miles"}
    _, found, _ = request(served, "/api/look/entries", asked)
    assert sorted((key, value) for key, value, _ in found["rows"]) == [("N1", "1200"), ("N14", "90"), ("N2", "200")]
    _, one, _ = request(served, "/api/look/entries", {**asked, "key": "N2"})
    assert [row[:2] for row in one["rows"]] == [["N2", "200"]]
    _, none, _ = request(served, "/api/look/entries", {**asked, "key": "N3"})
    assert (none["rows"], none["note"]) == ([], "There is no such entry.")
    status, wrong, _ = request(served, "/api/look/entries", {**asked, "store": "mils"})
    assert status == 409
    assert "mils" in wrong["error"]


def test_sizes_of_objects(served: Dashboard) -> None:
    _, found, _ = request(served, "/api/look/sizes", {"job": JOB})
    assert {row[0] for row in found["rows"]} == {"miles"}
    assert found["note"] == "All objects are needed."


def test_an_action_says_what_it_does_and_then_does_it(served: Dashboard) -> None:
    asked = {"job": JOB, "stream": "local.trips", "kind": "oldest", "partitions": "0", "state": "clear"}
    _, planned, _ = request(served, "/api/do/startpoint", asked, token=TOKEN)
    assert "local.trips partition 0: from 3 to 0" in planned["lines"]
    assert not planned["done"]
    with admin.open_job("flights") as job:
        assert admin.startpoints(job) == ()
    _, done, _ = request(served, "/api/do/startpoint", {**asked, "confirmed": True}, token=TOKEN)
    assert done["done"]
    with admin.open_job("flights") as job:
        assert [(each.partition, each.with_state) for each in admin.startpoints(job)] == [(0, "clear")]
        assert [each.program for each in admin.audit(job) if isinstance(each, admin.AuditRecord)][-1] == "dashboard"
    _, deleted, _ = request(served, "/api/do/delete%20startpoints", CHANGE, token=TOKEN)
    assert deleted["lines"] == ["1 deleted."]
    with admin.open_job("flights") as job:
        assert admin.startpoints(job) == ()


def test_a_drain_is_asked_for_and_cancelled(served: Dashboard) -> None:
    request(served, "/api/do/drain", CHANGE, token=TOKEN)
    with events(served, JOB) as pages:
        assert "cancel drain" in next(pages)["actions"]
    with admin.open_job("flights") as job:
        assert len(admin.status(job).drain.awaiting) == 1
    request(served, "/api/do/cancel%20drain", CHANGE, token=TOKEN)
    with admin.open_job("flights") as job:
        assert admin.status(job).drain.awaiting == ()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"stream": "local.trips", "kind": "soon"}, "not 'soon'"),
        ({"stream": "local.trips", "kind": "offset", "value": "x"}, "not a whole number"),
        ({"stream": "local.trips", "kind": "oldest", "partitions": "9"}, "partition"),
        ({"stream": "local.trip", "kind": "oldest"}, "local.trip"),
        ({"stream": "local.trips", "kind": "oldest", "state": "some"}, "not 'some'"),
    ],
)
def test_a_wrong_startpoint_is_refused_in_words(served: Dashboard, given: dict[str, str], says: str) -> None:
    status, found, _ = request(served, "/api/do/startpoint", {**CHANGE, **given}, token=TOKEN)
    assert status == 409
    assert says in found["error"]
    with admin.open_job("flights") as job:
        assert admin.startpoints(job) == ()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"token": "another"}, 401),
        ({"token": TOKEN, "Content_Type": "text/plain"}, 415),
        ({"token": TOKEN, "Origin": "http://elsewhere.example"}, 403),
        ({"token": TOKEN, "Origin": "null"}, 403),
        ({"token": TOKEN, "Sec_Fetch_Site": "cross-site"}, 403),
        ({"token": TOKEN, "Host": "elsewhere.example"}, 421),
    ],
)
def test_requests_of_others_change_nothing(served: Dashboard, headers: dict[str, str], status: int) -> None:
    found, answer, _ = request(served, "/api/do/drain", CHANGE, **headers)
    assert found == status
    assert answer["error"]
    with admin.open_job("flights") as job:
        assert admin.status(job).drain.awaiting == ()


def test_reading_needs_the_token_only_from_elsewhere(served: Dashboard) -> None:
    assert request(served, "/api/home")[0] == 200
    assert request(served, "/api/home", Host="elsewhere.example:80")[0] == 421
    with dashboard("0.0.0.0") as open_to_all:
        assert request(open_to_all, "/api/home")[0] == 401
        assert request(open_to_all, "/api/look/sizes", {"job": JOB})[0] == 401
        assert request(open_to_all, "/api/events?job=")[0] == 401
        assert request(open_to_all, "/api/home", token=TOKEN)[0] == 200
        assert request(open_to_all, "/")[0] == 200  # it has nothing of a job in it


def test_bodies_that_are_none(served: Dashboard) -> None:
    bodies: list[object] = [[], {}, "text", {"job": JOB, "more": "x" * 70_000}]
    for body in bodies:
        assert request(served, "/api/look/sizes", body)[0] == 400
    assert request(served, "/api/look/other", {"job": JOB})[0] == 404
    assert request(served, "/static/..%2f__init__.py")[0] == 404


def test_every_answer_has_the_headers_that_protect_it(served: Dashboard) -> None:
    for path in ("/", "/static/page.js", "/api/home", "/plotly.js"):
        _, _, headers = request(served, path)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_a_client_that_takes_nothing_is_cut_off_and_others_go_on(
    served: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PATIENCE_S", 0.5)
    monkeypatch.setattr(server, "LOOK_S", 0.001)
    page = served._watches.page(JOB)
    assert page is not None
    wait_until(lambda: page.version, "the first page")
    with socket.create_connection(("127.0.0.1", served.port)) as slow, events(served, JOB) as pages:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(f"GET /api/events?job={JOB} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        next(pages)

        def grow() -> bool:
            page.document = {"more": "x" * 200_000, "version": page.version}
            page.version += 1
            return served._application.streams == 1  # the slow one is gone

        wait_until(grow, "the end of the slow client")
        assert next(pages)["more"]


def test_a_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATIENCE_S", 0.2)
    with dashboard() as served, socket.create_connection(("127.0.0.1", served.port)) as silent:
        silent.settimeout(30)
        assert silent.recv(1) == b""


def test_too_many_pages_are_refused(served: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STREAMS", 1)
    with events(served, JOB) as pages:
        next(pages)
        assert request(served, f"/api/events?job={JOB}")[0] == 503
    wait_until(lambda: served._application.streams == 0, "the end of the first client")
    monkeypatch.setattr(watch, "WATCHES", 1)
    assert request(served, "/api/events?job=another")[0] == 503


def test_a_page_that_nobody_asks_for_is_forgotten(served: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    monkeypatch.setattr(watch, "FORGOTTEN_S", 0.2)
    page = served._watches.page(JOB)
    assert page is not None
    wait_until(lambda: not page.is_alive, "the end of the thread")
    with events(served, JOB) as pages:
        assert next(pages)["job"] == JOB


def test_nothing_is_left_after_the_end() -> None:
    before = set(threading.enumerate())
    with dashboard() as served, events(served, JOB) as pages:
        next(pages)
        port = served.port
    wait_until(lambda: not set(threading.enumerate()) - before, "the end of all threads")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port)).close()


def test_a_port_that_is_taken() -> None:
    with (
        dashboard() as first,
        pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{first.port}: .* free port"),
    ):
        Dashboard(Watches(admin.open_job, admin.open_all_jobs), admin.open_job, host="127.0.0.1", port=first.port)


def test_a_damaged_log_is_the_page(home: Path, served: Dashboard) -> None:
    log = home / "jobs" / JOB / "checkpoints"
    newest = max(log.rglob("*"))
    newest.write_bytes(b"{}")
    with events(served, JOB) as pages:
        began = time.monotonic()
        assert str(newest.name) in next(pages)["error"]
        assert time.monotonic() - began < 60
