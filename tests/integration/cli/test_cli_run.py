"""`penstock run` in a separate process, on a real Spark, and the reports of other commands on the job and its state,
while it runs and afterwards."""

from __future__ import annotations

import json
import queue
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs.home import wait_until
from tests.support.oracles.tracebacks import frames_of_penstock
from tests.support.tools.cli import call, call_json, command, own_home

pytestmark = pytest.mark.spark

DEADLINE_S = 180.0
PARTITIONS = 2
COUNT = 200
STORE = ("weigh", "totals")
APPLICATION = """
import time
from pathlib import Path

import penstock as ps
from weights import weight  # a neighbour that no worker can import


class Totals(ps.StreamTask):
    def init(self, context):
        self.totals = context.store("totals")

    def process(self, envelope, collector, coordinator):
        if envelope.value.get("poison"):
            raise ValueError("the message is poisoned")
        if "waits for" in envelope.value:
            print("waits for", envelope.value["to"])
            Path(envelope.value["reached"]).touch()
            while not Path(envelope.value["waits for"]).exists():
                time.sleep(0.05)
        total = (self.totals.get(envelope.key) or 0) + weight(envelope.value)
        self.totals.put(envelope.key, total)
        collector.send("totals", key=envelope.key, value=total)


def build():
    app = ps.StreamApplication("weigh")
    app.store("totals", key=ps.String(), value=ps.Json())
    app.output("local.totals", key=ps.String(), value=ps.Json())
    (app.input("local.parcels")
        .partition_by(lambda parcel: parcel["to"], key=ps.String())
        .process(Totals, stores=["totals"]))
    return app
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an application and its neighbour; the working directory of every command."""
    own_home(tmp_path, monkeypatch)
    (tmp_path / "weigh.py").write_text(APPLICATION)
    (tmp_path / "weights.py").write_text("def weight(parcel):\n    return parcel['kg']\n")
    call("stream", "create", "parcels", "--partitions", str(PARTITIONS))
    return tmp_path


RUN = ("run", "weigh.py:build", "-c", "spark.master=local[2]", "-c", "task.commit.ms=500")


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_to_the_end(*arguments: str, status: int = 0) -> tuple[str, str]:
    """Run the application over what is there; its standard output and error."""
    with start(*RUN, *arguments, "--until", "latest") as process:
        try:
            out, error = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == status, out + error
    return out, error


def publish(some: list[dict[str, Any]]) -> None:
    Path("parcels.jsonl").write_text("\n".join(json.dumps(parcel) for parcel in some))
    call("stream", "publish", "parcels", "--file", "parcels.jsonl", "--key", "to")


def parcels() -> list[dict[str, Any]]:
    return [{"to": f"town-{n % 7}", "kg": n} for n in range(COUNT)]


def last_totals() -> dict[str, int]:
    """The last total of every town in the output stream."""
    newest: dict[str, int] = {}
    for line in call("stream", "tail", "totals", "--from-beginning", "--json")[0].splitlines():
        message = json.loads(line)
        newest[message["key"]] = max(newest.get(message["key"], 0), int(message["value"]))
    return newest


def totals(some: list[dict[str, Any]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for parcel in some:
        found[parcel["to"]] += parcel["kg"]
    return dict(found)


def scanned(*options: str) -> dict[str, int]:
    lines = call("state", "scan", *STORE, "--json", *options)[0].splitlines()
    return {entry["key"]: entry["value"] for entry in map(json.loads, lines)}


def await_line(lines: queue.Queue[str | None], pattern: str) -> None:
    """Wait until the process has written a line with the pattern."""
    seen: list[str] = []
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            pytest.fail(f"no line with `{pattern}` in time:\n" + "".join(seen))
        assert line is not None, f"ended before a line with `{pattern}`:\n" + "".join(seen)
        seen.append(line)
        if re.search(pattern, line):
            return


def await_file(path: Path) -> None:
    """Wait until the application has made a file."""
    deadline = time.monotonic() + DEADLINE_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not made in time"
        time.sleep(0.02)


def lines_of(process: subprocess.Popen[str]) -> queue.Queue[str | None]:
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def test_a_run_its_state_and_its_stop(project: Path) -> None:
    """SIGTERM ends it after the batch, with a commit. The state is read while it runs and afterwards."""
    gate, reached = project / "gate", project / "reached"
    publish(parcels())
    # Both in one partition, which gets them at once: they are of one batch.
    more = [{"to": "town-1", "kg": 5, "waits for": str(gate), "reached": str(reached)}, {"to": "fresh", "kg": 1}]
    with start(*RUN) as process:
        try:
            lines = lines_of(process)
            await_line(lines, "starting Spark for job weigh-1")
            await_line(lines, r"running, .*batch \d")
            running = call_json("status", "weigh")
            assert running["status"] == "running"
            assert running["holder"]["pid"] == process.pid
            wait_until(lambda: scanned() == totals(parcels()), "a commit of the first messages", DEADLINE_S)
            first = call_json("state", "list", "weigh")["versions"][-1]["checkpoint"]
            publish(more)
            await_file(reached)
            await_line(lines, r" INFO \[epoch 1 batch \d+ task \d\] waits for town-1\n")
            assert scanned() == totals(parcels()), "a batch that has not ended is in no version"
            assert call("state", "get", *STORE, "town-1")[0] == f"{totals(parcels())['town-1']}\n"
            assert "there is no key `fresh`" in call("state", "get", *STORE, "fresh", status=1)[1]
            process.send_signal(signal.SIGTERM)
            await_line(lines, "stopping after the current batch")
            gate.touch()
            await_line(lines, f"ended: {COUNT + 2} messages")
            assert process.wait(DEADLINE_S) == 0
            assert process.stdout is not None
            assert not process.stdout.read(), "progress and log lines belong to standard error"
        finally:
            process.kill()

    facts = call_json("status", "weigh")
    assert (facts["job"], facts["status"]) == ("weigh-1", "not running")
    assert facts["lastCheckpoint"]["ended"] == "stopped"
    assert facts["inputs"][0]["lag"] == 0
    assert last_totals() == totals([*parcels(), *more])
    records = call_json("checkpoint", "list", "weigh-1")
    assert records[0]["kind"] == "start"
    assert records[-1]["id"] == facts["lastCheckpoint"]["id"]
    shown = call_json("checkpoint", "show", "weigh", records[-1]["id"])
    offsets = [offset for task in shown["tasks"] for offset in task["nextOffsets"].values()]
    assert sum(offsets) == COUNT + 2
    assert all("totals" in stores for task in shown["tasks"] for stores in task["markers"].values())

    assert scanned() == totals([*parcels(), *more])
    assert scanned("--version", first) == totals(parcels())
    *changes, counts = call("state", "diff", *STORE, "--json", "--from", first)[0].splitlines()
    town = totals(parcels())["town-1"]
    assert [{name: each[name] for name in each if name != "task"} for each in map(json.loads, changes)] == [
        {"change": "added", "key": "fresh", "to": 1},
        {"change": "changed", "key": "town-1", "from": town, "to": town + 5},
    ]
    assert json.loads(counts)["counts"] == {"added": 1, "removed": 0, "changed": 1}
    deltas = [each for each in call_json("state", "list", "weigh")["objects"] if each["kind"] == "deltas"]
    assert all(each["count"] and each["sizeBytes"] for each in deltas)


@pytest.mark.slow
def test_an_error_of_the_users_code_comes_first(project: Path) -> None:
    publish([*parcels(), {"to": "nowhere", "kg": 1, "poison": True}])
    out, error = run_to_the_end(status=1)
    assert not out
    told = error.index("ValueError: the message is poisoned")
    place = re.search(r"stream `local\.parcels` partition \d offset \d+ key .*nowhere", error)
    assert place is not None, error
    assert error.index("Traceback") < told < place.start()
    assert "weigh.py" in error
    assert "The state is as of checkpoint" in error
    assert frames_of_penstock(error) == []
    assert call_json("status", "weigh")["lastCheckpoint"]["ended"] is None


@pytest.mark.slow
def test_a_second_sigterm_drops_the_batch_and_loses_nothing(project: Path) -> None:
    first, *others = parcels()
    gate, reached = project / "gate", project / "reached"
    publish([{**first, "waits for": str(gate), "reached": str(reached)}, *others])
    with start(*RUN) as process:
        try:
            lines = lines_of(process)
            await_file(reached)
            await_line(lines, rf" INFO \[epoch 1 batch \d+ task \d\] waits for {first['to']}\n")
            process.send_signal(signal.SIGTERM)
            await_line(lines, "stopping after the current batch")
            time.sleep(0.6)  # signals within half a second are one
            process.send_signal(signal.SIGTERM)
            await_line(lines, "was stopped at once: 0 messages")
            assert process.wait(DEADLINE_S) == 1
        finally:
            process.kill()
    facts = call_json("status", "weigh")
    assert (facts["status"], facts["lastCheckpoint"]["ended"]) == ("not running", None)
    gate.touch()
    assert f"{COUNT} messages" in run_to_the_end()[1]
    assert call_json("status", "weigh")["inputs"][0]["lag"] == 0
    assert last_totals() == totals(parcels())
