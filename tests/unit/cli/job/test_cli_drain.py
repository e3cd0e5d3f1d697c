"""`penstock drain`, beside a driver of this process that answers."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock as ps
from penstock.api.requests import DrainNotification
from penstock.base.wording import utc_text
from penstock.checkpoint.log import CheckpointLog
from penstock.config.load import load_config
from penstock.drain.requests import DRAIN, NAMESPACE, DrainRequests, decode_notification
from penstock.job.commands import StopRequests, StopRequestWatch
from penstock.job.lease import LeaseHolder, acquire
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from penstock.system.memory import MemorySystem
from penstock.testing.in_process import InProcessDriver
from tests.support.tools.cli import call, call_json, own_home
from tests.support.tools.leases import LONG_MS, EagerKeeper
from tests.support.tools.places import GOLDEN

PATHS = JobPaths("visits", "1")
DEADLINE_S = 60.0


class Running:
    """A run of a job whose window never closes by itself."""

    def __init__(self, folder: Path, objects: FileObjectStore, lease_ms: int = LONG_MS) -> None:
        self.system = MemorySystem("local")
        for stream in ("visits", "counts"):
            self.system.admin().create_stream(stream, 1)
        self.write()
        app = ps.StreamApplication("visits")
        counts = app.input("local.visits").window(ps.Windows.count(1000, aggregates={"n": ps.Count()}), id="all")
        counts.map(lambda pane: pane.message).send_to(app.output("local.counts"))
        config = load_config(
            overrides={
                "job.name": "visits",
                "job.root": str(objects.root),
                "job.logged.store.base.dir": str(folder / "state"),
                "job.batch.interval.ms": 5,
                "job.drain-monitor.poll.interval.ms": 5,
                "task.commit.ms": 0,
                "stores.all.window.factory": "memory",
            },
            environ={},
        )
        self.driver = InProcessDriver(app.graph(), config, objects, {"local": self.system})
        holder = LeaseHolder.of_this_process(self.driver.job.claim.run_id)
        self.keeper = EagerKeeper(acquire(objects, PATHS, holder, lease_ms, time.monotonic() + DEADLINE_S))
        self.keeper.start()
        self.gate = threading.Event()
        self.gate.set()
        self.driver.fleet.at = lambda step: None if step != "snapshot" else _wait(self.gate)
        self.thread = threading.Thread(target=self._run, daemon=True)

    def write(self) -> None:
        self.system.writer(None).append(ps.SystemStreamPartition("local", "visits", 0), [(0, b"N1", b"1")])

    def start(self) -> None:
        """Run the job until its first batch has ended."""
        self.thread.start()
        deadline = time.monotonic() + DEADLINE_S
        while self.driver.board.last is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def _run(self) -> None:
        self.driver.loop.run()
        self.keeper.stop(DEADLINE_S)
        self.keeper.lease.release()

    def counts(self) -> int:
        return self.system.admin().offsets("counts")[0].upcoming

    def close(self) -> None:
        self.gate.set()
        self.driver.stop.request()
        if self.thread.is_alive():
            self.thread.join(DEADLINE_S)
        self.keeper.stop(DEADLINE_S)
        self.driver.close()


def _wait(event: threading.Event) -> None:
    assert event.wait(DEADLINE_S)


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileObjectStore:
    return FileObjectStore(own_home(tmp_path, monkeypatch) / "jobs")


@pytest.fixture
def running(tmp_path: Path, objects: FileObjectStore) -> Iterator[Running]:
    running = Running(tmp_path, objects)
    running.start()
    yield running
    running.close()


@pytest.fixture
def killed(tmp_path: Path, objects: FileObjectStore) -> Running:
    """A run that has a checkpoint, and that nobody has any more."""
    killed = Running(tmp_path, objects)
    killed.driver.loop.start()
    killed.driver.loop.step()
    killed.driver.loop.commit()
    killed.keeper.stop(DEADLINE_S)
    killed.keeper.lease.release()
    killed.driver.close()
    return killed


def test_a_running_job_drains_and_its_end_is_awaited(running: Running, objects: FileObjectStore) -> None:
    assert running.counts() == 0
    found = call_json("drain", "visits", "--wait", "--timeout", str(DEADLINE_S))
    assert (found["job"], found["status"]) == ("visits-1", "drained")
    assert not found["isRunning"]
    assert call_json("status", "visits", "--no-wait")["status"] == "not running", "the next start may follow at once"
    assert running.counts() == 1
    latest = CheckpointLog(objects, PATHS).read().latest
    assert latest is not None
    assert (latest.ended, list(latest.section(DRAIN).answered)) == ("drained", found["requests"])
    assert latest.stores == {}, "nothing of the window is left"
    stages = [(each["names"], each["messages"], each["panes"]) for each in found["summary"]["stages"]]
    assert stages == [(["input-1"], 0, 0), (["all", "map-1", "send_to-1"], 0, 1), (["local.counts"], 1, 0)]
    assert found["summary"]["phase"] == "drained"
    status = call_json("status", "visits")
    assert (status["drain"]["progress"], status["drain"]["late"]) == (found["summary"], [])
    assert (status["drains"], status["drain"]["step"]) == ([], "drained")
    assert [each["uuid"] for each in status["drain"]["requests"]] == found["requests"]
    shown = call("status", "visits")[0]
    assert "drained: nothing is in flight" in shown
    assert "Drained: what was processed since the request" in shown
    assert objects.list(PATHS.metadata_folder(NAMESPACE)) == []
    assert "has no run that could drain: its last run has drained" in call("drain", "visits", status=1)[1]


def test_a_stop_says_that_the_run_drains_first(running: Running, objects: FileObjectStore) -> None:
    watch = StopRequestWatch(StopRequests(objects, PATHS), running.keeper.lease.state.token, running.driver.stop.ask)
    running.gate.clear()
    call("drain", "visits")
    assert "was asked to stop after its current batch; it was asked to drain" in call("stop", "visits", "--no-wait")[0]
    running.gate.set()
    said = call("stop", "visits")[0]
    watch.close()
    assert "has drained; the last checkpoint is" in said or "is not running" in said


def test_a_second_request_says_so(running: Running, objects: FileObjectStore) -> None:
    running.gate.clear()
    assert "was asked to drain" in call("drain", "visits")[0]
    assert "has already been asked" in call("drain", "visits")[0]
    (asked,) = DrainRequests(objects, PATHS).find().notifications
    assert call_json("status", "visits")["drains"] == [str(asked.uuid)]


def test_export_and_import_are_inverse(killed: Running, objects: FileObjectStore) -> None:
    """The coordinator stream of Samza; a request for another run is exported, and not imported."""
    requests = DrainRequests(objects, PATHS)
    golden = json.loads((GOLDEN / "drain-coordinator-message.json").read_text())
    other = decode_notification(golden["value"], "golden")
    requests.write(other)
    call("drain", "visits")
    objects.put_if_absent(PATHS.metadata(NAMESPACE, "bad"), b"{")
    (own,) = requests.find().of_run(killed.driver.job.claim.run_id)
    out, err = call("drain", "visits", "--export")
    lines = {json.loads(line)["key"]: json.loads(line)["value"] for line in out.splitlines()}
    assert lines[golden["key"]] == golden["value"]
    assert json.loads(lines[f'[1,"{NAMESPACE}","{own.uuid}"]'])["runId"] == own.run_id
    assert len(lines) == 2
    assert f"left out: `{PATHS.metadata(NAMESPACE, 'bad')}` is not a drain notification" in " ".join(err.split())
    requests.delete([own, other])
    for status in ("asked", "asked before"):
        found = json.loads(call("drain", "visits", "--import", "-", "--json", stdin=out.encode())[0])
        assert (found["status"], found["requests"]) == (status, [str(own.uuid)])
        assert found["notes"] == [f"skipped: {other.uuid} is for run {other.run_id}"]
    assert requests.find().notifications == (own,)
    nothing = json.dumps(golden).encode()
    assert "no request asks run" in call("drain", "visits", "--import", "-", stdin=nothing, status=1)[1]
    call("drain", "visits", "--import", "-", "--cancel", stdin=nothing, status=2)


def test_a_drain_is_not_waited_for_and_cancelled_at_once(killed: Running, objects: FileObjectStore) -> None:
    """The request that is there stays."""
    requests = DrainRequests(objects, PATHS)
    call("drain", "visits")
    asked = requests.find()
    said = call("drain", "visits", "--wait", "--cancel", status=2)[1]
    assert "at most one of --wait, --cancel, --export and --import FILE" in " ".join(said.split())
    assert requests.find() == asked


def test_a_job_that_nobody_runs_drains_at_its_next_start(killed: Running, objects: FileObjectStore) -> None:
    assert "it drains at its next start" in call("drain", "visits")[0]
    assert "start the job, and it drains" in call("drain", "visits", "--wait", status=1)[1]
    assert "no longer drains" in call("drain", "visits", "--cancel")[0]
    assert DrainRequests(objects, PATHS).find().notifications == ()


def test_a_drain_is_cancelled(running: Running, objects: FileObjectStore) -> None:
    drains, cancelled = threading.Event(), threading.Event()

    def at(step: str) -> None:
        if step == "stage 1" and running.driver.board.phase == "draining" and not cancelled.is_set():
            drains.set()
            _wait(cancelled)

    running.driver.runner.at = at
    call("drain", "visits")
    _wait(drains)
    found: list[str] = []
    cancelling = threading.Thread(target=lambda: found.append(call("drain", "visits", "--cancel")[0]))
    cancelling.start()
    deadline = time.monotonic() + DEADLINE_S
    while not objects.list(PATHS.metadata_folder("drain-cancel")):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    cancelled.set()
    cancelling.join(DEADLINE_S)
    assert "no longer drains; it continues from checkpoint" in found[0]
    assert running.driver.board.phase in {"restoring", "running"}


def test_nothing_to_cancel(running: Running) -> None:
    assert "nobody has asked job visits-1 to drain" in call("drain", "visits", "--cancel", status=1)[1]


def test_it_is_too_late_to_cancel(running: Running, objects: FileObjectStore) -> None:
    running.gate.clear()
    call("drain", "visits")
    deadline = time.monotonic() + DEADLINE_S
    while running.driver.board.phase != "stopping":
        assert time.monotonic() < deadline
        time.sleep(0.005)
    errors: list[str] = []
    cancelling = threading.Thread(target=lambda: errors.append(call("drain", "visits", "--cancel", status=1)[1]))
    cancelling.start()
    running.gate.set()
    cancelling.join(DEADLINE_S)
    assert "has drained" in errors[0] or "drained already" in errors[0]
    running.thread.join(DEADLINE_S)
    assert objects.list(PATHS.metadata_folder("drain-cancel")) == []


def test_a_run_that_was_killed_before_its_start_checkpoint_never_comes_again(
    tmp_path: Path, objects: FileObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start is another run: the request is for that one."""
    killed = Running(tmp_path, objects, lease_ms=300)
    killed.keeper.stop(DEADLINE_S)  # the lease runs out
    killed.driver.close()
    monkeypatch.setattr(LeaseHolder, "known_alive", lambda _: None)  # it is this process, which lives
    assert "the next run, was asked to drain; it is not running" in call("drain", "visits")[0]
    (asked,) = DrainRequests(objects, PATHS).find().notifications
    assert asked.run_id == "*"
    assert call_json("drain", "visits")["status"] == "asked before"
    assert "asked: the job is not running, and its next start drains" in call("status", "visits")[0]
    assert call_json("drain", "visits", "--cancel")["runId"] is None
    assert DrainRequests(objects, PATHS).find().notifications == ()


def test_a_run_that_is_still_to_come_is_named(killed: Running, objects: FileObjectStore) -> None:
    found = call_json("drain", "visits", "--run", "v7")
    assert (found["status"], found["runId"], found["isRunning"]) == ("asked", "v7", False)
    assert call_json("drain", "visits", "--run", "v7")["status"] == "asked before"
    (waits,) = call_json("status", "visits")["drain"]["awaiting"]
    assert (waits["uuid"], waits["runId"]) == (found["requests"][0], "v7")
    assert "run v7 drains as it starts" in " ".join(call("status", "visits")[1].split())
    exported = call("drain", "visits", "--export")[0]
    assert call_json("drain", "visits", "--cancel")["requests"] == found["requests"]
    assert DrainRequests(objects, PATHS).find().notifications == ()
    said = call("drain", "visits", "--import", "-", stdin=exported.encode(), status=1)[1]
    assert "is for run v7" in said, "the present run is another one"
    call("drain", "visits", "--run", "v7", "--cancel", status=2)
    assert "no run has the id `a b`" in call("drain", "visits", "--run", "a b", status=2)[1]


class TestStatus:
    """`penstock status` during and after a drain."""

    def test_several_requests_are_one_drain(self, killed: Running, objects: FileObjectStore) -> None:
        before = time.time_ns() // 1_000_000
        call("drain", "visits")
        requests = DrainRequests(objects, PATHS)
        requests.write(DrainNotification.create(uuid.uuid4(), killed.driver.job.claim.run_id))
        found = call_json("status", "visits")
        drain = found["drain"]
        assert drain["step"] == "asked"
        assert [each["uuid"] for each in drain["requests"]] == found["drains"]
        assert {each["mode"] for each in drain["requests"]} == {"DEFAULT"}
        of_penstock, of_samza = sorted(drain["requests"], key=lambda each: each["askedMs"] is None)
        assert before <= of_penstock["askedMs"] <= time.time_ns() // 1_000_000
        assert of_samza["askedMs"] is None
        shown = call("status", "visits")[0]
        assert "asked: the job is not running, and its next start drains" in shown
        assert f"{of_penstock['uuid']}, asked at {utc_text(of_penstock['askedMs'])}, mode DEFAULT" in shown
        assert f"{of_samza['uuid']}, mode DEFAULT" in shown

    def test_the_steps_of_a_drain(self, running: Running) -> None:
        """The run stops before it looks again, in the drain's batch, and in its last commit."""
        reached, gates = threading.Semaphore(0), {step: threading.Event() for step in ("source", "stage 1", "snapshot")}

        def at(step: str) -> None:
            begun = step == "source" or running.driver.board.phase in {"draining", "stopping"}
            if step in gates and begun and not gates[step].is_set():
                reached.release()
                _wait(gates[step])

        running.driver.runner.at = running.driver.fleet.at = at
        running.write()  # a batch, in which the run sees no request
        for step, shown in (("source", "asked"), ("stage 1", "draining"), ("snapshot", "last commit")):
            assert reached.acquire(timeout=DEADLINE_S)
            if step == "source":
                asked = call_json("drain", "visits")["requests"]
            drain = call_json("status", "visits")["drain"]
            assert (drain["step"], [each["uuid"] for each in drain["requests"]]) == (shown, asked)
            assert f"{shown}: " in call("status", "visits")[0]
            gates[step].set()
        running.thread.join(DEADLINE_S)
        assert call_json("status", "visits")["drain"]["step"] == "drained"

    def test_what_cannot_be_read(self, killed: Running, objects: FileObjectStore) -> None:
        path = PATHS.metadata(NAMESPACE, "not-a-uuid")
        objects.put_if_absent(path, b"{")
        (found,) = call_json("status", "visits")["drain"]["unreadable"]
        assert found["name"] == path
        assert found["problem"].startswith(f"`{path}` is not a drain notification: it is not JSON")
        assert f"warning: `{path}` is not a drain notification" in " ".join(call("status", "visits")[1].split())
        assert call_json("status", "visits")["drain"]["step"] is None


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_a_run_is_watched_until_it_has_drained(running: Running, options: tuple[str, ...]) -> None:
    running.gate.clear()
    call("drain", "visits")
    deadline = time.monotonic() + DEADLINE_S
    while running.driver.board.phase != "stopping":
        assert time.monotonic() < deadline
        time.sleep(0.005)
    watched: list[str] = []
    watching = threading.Thread(target=lambda: watched.append(call("status", "visits", "--watch", *options)[0]))
    watching.start()
    watching.join(2)  # it goes on while the run does
    assert watching.is_alive()
    running.gate.set()
    watching.join(DEADLINE_S)
    (shown,) = watched
    if not options:
        assert "the last commit is under way" in shown
        assert "Drained: what was processed since the request" in shown
        assert "name it" in call("status", "--watch", status=2)[1]
        assert "exclude each other" in call("status", "visits", "--watch", "--metrics", status=2)[1]
        return
    first, *_, last = [json.loads(line) for line in shown.splitlines()]
    assert (first["status"], first["drain"]["step"]) == ("running", "last commit")
    assert (last["status"], last["drain"]["step"]) == ("not running", "drained")
    assert first["drain"]["progress"]["stages"] == last["drain"]["progress"]["stages"] != []


def test_a_request_of_a_run_that_is_over_is_shown(running: Running, objects: FileObjectStore) -> None:
    """As if it had not been deleted."""
    asked = call_json("drain", "visits", "--wait")["requests"]
    running.thread.join(DEADLINE_S)
    notification = DrainNotification.create(uuid.UUID(asked[0]), running.driver.job.claim.run_id)
    DrainRequests(objects, PATHS).write(notification)
    found = call_json("status", "visits")["drain"]
    assert ([each["uuid"] for each in found["late"]], found["step"]) == (asked, "drained")
    said = " ".join(call("status", "visits")[1].split())
    assert f"note: the run that request {asked[0]} was to drain has ended; the next start deletes the request" in said
