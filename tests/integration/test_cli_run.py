"""`penstock run` and what the other commands say of it afterwards, each in a process of its own, on a real Spark."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark

DEADLINE_S = 180.0
PARTITIONS = 2
COUNT = 200
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
def project(tmp_path: Path) -> Path:
    """A folder with an application and its neighbour; the working directory of every command."""
    (tmp_path / "weigh.py").write_text(APPLICATION)
    (tmp_path / "weights.py").write_text("def weight(parcel):\n    return parcel['kg']\n")
    return tmp_path


def start(project: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", *arguments],
        cwd=project,
        env={**os.environ, "PENSTOCK_HOME": str(project / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def call(project: Path, *arguments: str, status: int = 0) -> tuple[str, str]:
    with start(project, *arguments) as process:
        try:
            out, error = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == status, out + error
    return out, error


def call_json(project: Path, *arguments: str) -> Any:
    return json.loads(call(project, *arguments, "--json")[0])


def publish(project: Path, parcels: list[dict[str, Any]]) -> None:
    (project / "parcels.jsonl").write_text("\n".join(json.dumps(parcel) for parcel in parcels))
    call(project, "stream", "create", "parcels", "--partitions", str(PARTITIONS))
    call(project, "stream", "publish", "parcels", "--file", "parcels.jsonl", "--key", "to")


def parcels() -> list[dict[str, Any]]:
    return [{"to": f"town-{n % 7}", "kg": n} for n in range(COUNT)]


def last_totals(project: Path) -> dict[str, int]:
    """The last total of every town in the output stream."""
    out = call(project, "stream", "tail", "totals", "--from-beginning", "--json")[0]
    newest: dict[str, int] = {}
    for line in out.splitlines():
        message = json.loads(line)
        newest[message["key"]] = max(newest.get(message["key"], 0), int(message["value"]))
    return newest


def expected_totals() -> dict[str, int]:
    totals: Counter[str] = Counter()
    for parcel in parcels():
        totals[parcel["to"]] += parcel["kg"]
    return dict(totals)


RUN = ("run", "weigh.py:build", "-c", "spark.master=local[2]", "-c", "task.commit.ms=500")


def test_publish_run_status_checkpoints(project: Path) -> None:
    publish(project, parcels())
    out, log = call(project, *RUN, "--until", "latest")
    assert not out, "progress and log lines belong to standard error"
    assert f"{COUNT} messages" in log
    assert last_totals(project) == expected_totals()

    facts = call_json(project, "status", "weigh")
    assert (facts["job"], facts["status"]) == ("weigh-1", "not running")
    assert facts["lastCheckpoint"]["ended"] is not None
    assert facts["inputs"][0]["lag"] == 0

    records = call_json(project, "checkpoint", "list", "weigh-1")
    assert records[0]["kind"] == "start"
    assert records[-1]["id"] == facts["lastCheckpoint"]["id"]
    shown = call_json(project, "checkpoint", "show", "weigh", records[-1]["id"])
    offsets = [offset for task in shown["tasks"] for offset in task["nextOffsets"].values()]
    assert sum(offsets) == COUNT
    assert all("totals" in stores for task in shown["tasks"] for stores in task["markers"].values())


def test_an_error_of_the_users_code_comes_first(project: Path) -> None:
    publish(project, [*parcels(), {"to": "nowhere", "kg": 1, "poison": True}])
    out, error = call(project, *RUN, "--until", "latest", status=1)
    assert not out
    told = error.index("ValueError: the message is poisoned")
    place = re.search(r"stream `local\.parcels` partition \d offset \d+ key .*nowhere", error)
    assert place is not None, error
    assert error.index("Traceback") < told < place.start()
    assert "weigh.py" in error
    assert "The state is as of checkpoint" in error
    assert "penstock/cli" not in error
    assert call_json(project, "status", "weigh")["lastCheckpoint"]["ended"] is None


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


def test_sigterm_ends_after_the_batch_with_a_commit(project: Path) -> None:
    publish(project, parcels())
    with start(project, *RUN) as process:
        try:
            lines = lines_of(process)
            await_line(lines, "starting Spark for job weigh-1")
            await_line(lines, r"running, .*batch \d")
            running = call_json(project, "status", "weigh")
            assert running["status"] == "running"
            assert running["holder"]["pid"] == process.pid
            process.send_signal(signal.SIGTERM)
            await_line(lines, "stopping after the current batch")
            await_line(lines, "ended: ")
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()
    facts = call_json(project, "status", "weigh")
    assert facts["status"] == "not running"
    assert facts["lastCheckpoint"]["ended"] == "stopped"
    assert facts["inputs"][0]["lag"] == 0
    assert last_totals(project) == expected_totals()


@pytest.mark.slow
def test_a_second_sigterm_drops_the_batch_and_loses_nothing(project: Path) -> None:
    first, *others = parcels()
    gate, reached = project / "gate", project / "reached"
    publish(project, [{**first, "waits for": str(gate), "reached": str(reached)}, *others])
    with start(project, *RUN) as process:
        try:
            lines = lines_of(process)
            await_file(reached)
            process.send_signal(signal.SIGTERM)
            await_line(lines, "stopping after the current batch")
            time.sleep(0.6)  # signals within half a second are one
            process.send_signal(signal.SIGTERM)
            await_line(lines, "was stopped at once: 0 messages")
            assert process.wait(DEADLINE_S) == 1
        finally:
            process.kill()
    facts = call_json(project, "status", "weigh")
    assert (facts["status"], facts["lastCheckpoint"]["ended"]) == ("not running", None)
    gate.touch()
    call(project, *RUN, "--until", "latest")
    assert call_json(project, "status", "weigh")["inputs"][0]["lag"] == 0
    assert last_totals(project) == expected_totals()
