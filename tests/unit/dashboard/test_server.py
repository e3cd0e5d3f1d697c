"""The dashboard's server over a real job that does not run: pages, look-ups, actions, and who may do what."""

from __future__ import annotations

import http.client
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from penstock import admin
from penstock.dashboard import access as dashboard_connections
from penstock.dashboard import server, watch
from penstock.dashboard.requests import ACTIONS, LOOKUPS
from penstock.dashboard.server import Dashboard
from penstock.dashboard.watch import Watches
from penstock.errors import ConfigError
from tests.support.jobs.dashboards import TOKEN, dashboard, events, request
from tests.support.jobs.example_job import ExampleJob, publish
from tests.support.jobs.home import wait_until
from tests.support.tools.fixtures import fixture_of

JOB = "flights-1"


def change(served: Dashboard, what: str, **given: object) -> tuple[int, Any]:
    """Ask what a change would do, and confirm it."""
    asked = {"job": JOB, **given}
    status, planned, _ = request(served, f"/api/do/{quote(what)}", asked)
    if status != 200:
        return status, planned
    confirmed = {**asked, "confirmed": True, "plan": planned["lines"]}
    status, done, _ = request(served, f"/api/do/{quote(what)}", confirmed)
    return status, done


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


served = fixture_of(dashboard, using=())


def test_the_page_of_a_job_follows_the_job(served: Dashboard) -> None:
    with events(served, JOB) as pages:
        first = next(pages)
        assert first["status"] == "not running"
        assert first["verdict"]["level"] == "idle"
        assert first["stores"] == ["miles"]
        publish([("N1", 5), ("N1", 6), ("N2", 7)])
        second = next(pages)
    inputs = next(table for table in second["tables"] if table["title"].startswith("Input"))
    *lags, total = [row[inputs["columns"].index("lag")] for row in inputs["rows"]]
    assert sum(map(int, lags)) == int(total) == 3
    assert lags == sorted(lags, reverse=True)
    assert "It has 3 to read." in second["next"]


def test_the_list_of_jobs_and_a_job_that_is_not_there(served: Dashboard) -> None:
    with events(served, "") as pages:
        assert [each["job"] for each in next(pages)["jobs"]] == [JOB]
    status, answer, _ = request(served, "/api/events?job=other")
    assert (status, "there is no job `other`" in answer["error"]) == (404, True)


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
    _, planned, _ = request(served, "/api/do/startpoint", asked)
    assert "local.trips partition 0: from 3 to 0" in planned["lines"]
    assert not planned["done"]
    with admin.open_job("flights") as job:
        assert admin.startpoints(job) == ()
    blind = {**asked, "confirmed": True, "plan": ["something else"]}
    status, refused, _ = request(served, "/api/do/startpoint", blind)
    assert (status, "nothing was done" in refused["error"]) == (409, True)
    _, done = change(served, "startpoint", **asked)
    assert done["done"]
    with admin.open_job("flights") as job:
        assert [(each.partition, each.with_state) for each in admin.startpoints(job)] == [(0, "clear")]
        assert [each.program for each in admin.audit(job) if isinstance(each, admin.AuditRecord)][-1] == "dashboard"
    assert change(served, "delete startpoints")[1]["lines"] == ["1 deleted."]
    status, none = change(served, "delete startpoints")
    assert (status, "no startpoint" in none["error"]) == (409, True)
    with admin.open_job("flights") as job:
        assert admin.startpoints(job) == ()


def test_a_drain_is_asked_for_and_cancelled(served: Dashboard) -> None:
    status, refused = change(served, "cancel drain")
    assert (status, "nobody has asked" in refused["error"]) == (409, True)
    assert change(served, "drain")[1]["done"]
    with events(served, JOB) as pages:
        assert "cancel drain" in next(pages)["actions"]
    with admin.open_job("flights") as job:
        assert len(admin.status(job).drain.awaiting) == 1
    assert change(served, "cancel drain")[1]["done"]
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
    status, found = change(served, "startpoint", **given)
    assert status == 409
    assert says in found["error"]
    with admin.open_job("flights") as job:
        assert admin.startpoints(job) == ()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"token": None}, 401),
        ({"token": "another"}, 401),
        ({"Content_Type": "text/plain"}, 415),
        ({"Origin": "http://elsewhere.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Host": "elsewhere.example"}, 421),
    ],
)
def test_requests_of_others_change_nothing(served: Dashboard, headers: dict[str, Any], status: int) -> None:
    found, answer, _ = request(served, "/api/do/drain", {"job": JOB}, **headers)
    assert found == status
    assert answer["error"]
    with admin.open_job("flights") as job:
        assert admin.status(job).drain.awaiting == ()


@pytest.mark.attack
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_user_of_this_host_reads_nothing_of_a_job_without_the_token(host: str) -> None:
    with dashboard(host) as served:
        routes = served._application.routes().routes
        about_jobs = {each.path for each in routes if each.path.startswith("/api/")}
        requests: list[tuple[str, object]] = [("/api/home", None), ("/api/events?job=", None)]
        requests += [(f"/api/events?job={JOB}", None), ("/api/events?job=other", None)]
        requests += [(f"/api/look/{what}", {"job": JOB, "store": "miles"}) for what in (*LOOKUPS, "other")]
        requests += [(f"/api/do/{quote(what)}", {"job": JOB}) for what in (*ACTIONS, "other")]
        assert {path.partition("?")[0].rpartition("/")[0] for path, _ in requests} == {
            each.rpartition("/")[0] for each in about_jobs
        }, "every way to a job is tried"
        for path, body in requests:
            for token in (None, "another", f"{TOKEN}x", ""):
                status, answer, headers = request(served, path, body, token=token)
                assert status == 401, path
                assert headers["www-authenticate"] == "Bearer"
                assert "`Authorization: Bearer TOKEN`" in answer["error"]
                assert JOB not in str(answer)
        assert request(served, "/api/home")[0] == 200
        for path in ("/", "/static/page.js", "/plotly.js"):
            status, content, _ = request(served, path, token=None)
            assert status == 200
            assert JOB.encode() not in content, "it is the same for every job"


@pytest.mark.attack
def test_the_token_is_in_no_place_but_its_header(served: Dashboard) -> None:
    for path in (f"/api/home?token={TOKEN}", f"/api/home?authorization=Bearer%20{TOKEN}"):
        assert request(served, path, token=None)[0] == 401
    assert request(served, "/api/home", token=None, Cookie=f"token={TOKEN}")[0] == 401
    for path in ("/", "/api/home", "/static/page.js"):
        _, content, headers = request(served, path)
        assert "set-cookie" not in headers
        assert TOKEN not in str(content)
        assert headers["referrer-policy"] == "no-referrer"


def test_a_token_that_can_be_guessed_is_refused() -> None:
    for token in ("", "short", "fifteen-letters", "with blanks in it, but long", "schön-und-lang-genug"):
        with pytest.raises(ConfigError, match="openssl rand -hex 16"):
            Dashboard(
                Watches(admin.open_job, admin.open_all_jobs), admin.open_job, host="127.0.0.1", port=0, token=token
            )


@pytest.mark.attack
def test_no_path_is_made_of_the_name_of_a_page(served: Dashboard) -> None:
    names = [
        "x" * 250,
        "x" * 5_000,
        "x" * 5_000 + ".js",
        "%00",
        "a%00.js",
        "%ff%fe",
        "..%2f__init__.py",
        "../server.py",
    ]
    names += [".", "%2e%2e", "..%5cpage.js", "page.js%2f", "page.js/", "%ed%a0%80.js", "page.JS", ""]
    for name in names:
        assert request(served, f"/static/{name}", token=None)[0] == 404, name


@pytest.mark.attack
def test_hostile_names_are_refused_in_words(served: Dashboard) -> None:
    for name in ("x" * 250, "x" * 5_000, "a\0b", "../../etc", "..", "/", "\n", "é" * 300, "%00"):
        status, answer, _ = request(served, f"/api/events?job={quote(name)}")
        assert (status, bool(answer["error"])) == (404, True)
        for asked in ({"job": name}, {"job": JOB, "store": name}):
            status, answer, _ = request(served, "/api/look/entries", asked)
            assert (status, bool(answer["error"])) == (409, True)
        startpoint = {"job": JOB, "stream": "local.trips", "kind": "offset"}
        wrong = [{"job": name}, {"stream": name}, {"stream": f"local.{name}"}, {"partitions": name}, {"value": name}]
        for each in wrong:
            status, answer, _ = request(served, "/api/do/startpoint", {**startpoint, **each})
            assert (status, bool(answer["error"])) == (409, True)


@pytest.mark.attack
def test_bodies_that_are_none(served: Dashboard) -> None:
    bodies: list[object] = [[], {}, "text", {"job": JOB, "more": "x" * 70_000}]
    bodies += [{"job": "\ud800"}, {"job": JOB, "store": ["x", 1]}, {"job": 7}]
    for body in bodies:
        assert request(served, "/api/look/sizes", body)[0] == 400
    assert request(served, "/api/look/other", {"job": JOB})[0] == 404


def test_every_answer_has_the_headers_that_protect_it(served: Dashboard) -> None:
    for path in ("/", "/static/page.js", "/api/home", "/plotly.js"):
        _, _, headers = request(served, path)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def connections(served: Dashboard) -> int:
    """The connections that the server still has."""
    own = psutil.Process().net_connections(kind="tcp")
    return sum(each.laddr[1] == served.port and each.status == "ESTABLISHED" for each in own if each.laddr)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param("", id="no request"),
        pytest.param("GET /api/home HTTP/1.1\r\nHost: 127", id="half a request"),
        pytest.param(
            f"POST /api/look/sizes HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{",
            id="half a body",
        ),
        pytest.param(
            f"GET /api/events?job={JOB} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n",
            id="events",
        ),
        pytest.param("GET /plotly.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 20, id="answers"),
    ],
)
def test_a_client_that_takes_or_sends_nothing_alone_is_cut_off(sent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_connections, "PATIENCE_S", 0.5)
    monkeypatch.setattr(dashboard_connections, "STRANGER_S", 0.5)
    monkeypatch.setattr(server, "LOOK_S", 0.01)
    with dashboard() as served, socket.socket() as slow, events(served, JOB) as pages:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", served.port))
        slow.sendall(sent.encode())
        next(pages)
        page = served._watches.page(JOB)
        assert page is not None

        def grow() -> bool:
            page.document = {"more": "x" * 500_000, "version": page.version}
            page.version += 1
            next(pages)
            return connections(served) == 1  # that of the one that reads

        wait_until(lambda: connections(served) == 2, "both connections")
        wait_until(grow, "the end of the slow client")
        assert served._application.streams == 1


def test_too_many_pages_are_refused(served: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STREAMS", 1)
    with events(served, JOB) as pages:
        next(pages)
        assert request(served, f"/api/events?job={JOB}")[0] == 503
    wait_until(lambda: served._application.streams == 0, "the end of the first client")
    monkeypatch.setattr(watch, "WATCHES", 1)
    assert request(served, "/api/events?job=")[0] == 503


def test_no_thread_looks_at_a_job_that_is_not_there(served: Dashboard) -> None:
    before = threading.active_count()
    for number in range(20):
        assert request(served, f"/api/events?job=x{number}")[0] == 404
        assert request(served, f"/api/events?job={JOB}", Sec_Fetch_Site="cross-site")[0] == 403
    assert threading.active_count() <= before + 2


def test_a_look_up_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    def look_up(job: object, given: object) -> dict[str, Any]:
        begun.set()
        ended.wait(60)
        return {}

    monkeypatch.setitem(LOOKUPS, "sizes", look_up)
    with dashboard() as served:
        asking = threading.Thread(target=lambda: ask_in_vain(served))
        asking.start()
        assert begun.wait(30)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    ended.set()
    asking.join(30)
    assert not asking.is_alive()


def ask_in_vain(served: Dashboard) -> None:
    with suppress(OSError, http.client.HTTPException):
        request(served, "/api/look/sizes", {"job": JOB})


def test_damaged_boards_do_not_hide_the_page(home: Path, served: Dashboard) -> None:
    for name in ("graph", "metrics", "phase"):
        place = home / "jobs" / JOB / "metadata" / name / "last-run"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"{}")
    with events(served, JOB) as pages:
        assert next(pages)["status"] == "not running"


def test_a_page_that_nobody_asks_for_is_forgotten(served: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    monkeypatch.setattr(watch, "FORGOTTEN_S", 0.5)
    monkeypatch.setattr(server, "LOOK_S", 0.02)
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
