"""`penstock state` beside a job that runs on a real Spark, and after it, each command in a process of its own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_cli_run import (
    RUN,
    await_file,
    call,
    call_json,
    parcels,
    project,
    publish,
    start,
)

__all__ = ["project"]
pytestmark = pytest.mark.spark
DEADLINE_S = 180.0
STORE = ("weigh", "totals")


def scanned(project: Path, *options: str) -> dict[str, int]:
    lines = call(project, "state", "scan", *STORE, "--json", *options)[0].splitlines()
    return {entry["key"]: entry["value"] for entry in map(json.loads, lines)}


def totals(some: list[dict[str, Any]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for parcel in some:
        found[parcel["to"]] += parcel["kg"]
    return dict(found)


def test_state_is_read_while_the_job_runs_and_afterwards(project: Path) -> None:
    gate, reached = project / "gate", project / "reached"
    publish(project, parcels())
    call(project, *RUN, "--until", "latest")
    first = call_json(project, "state", "list", "weigh")["versions"][-1]["checkpoint"]
    assert scanned(project) == totals(parcels())

    more = [{"to": "town-1", "kg": 5, "waits for": str(gate), "reached": str(reached)}, {"to": "new", "kg": 1}]
    (project / "more.jsonl").write_text("\n".join(json.dumps(parcel) for parcel in more))
    call(project, "stream", "publish", "parcels", "--file", "more.jsonl", "--key", "to")
    with start(project, *RUN, "--until", "latest") as process:
        try:
            await_file(reached)
            assert scanned(project) == totals(parcels()), "a batch that has not ended is in no version"
            assert call(project, "state", "get", *STORE, "town-1")[0] == f"{totals(parcels())['town-1']}\n"
            assert "there is no key `new`" in call(project, "state", "get", *STORE, "new", status=1)[1]
            gate.touch()
            process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0
        finally:
            process.kill()

    assert scanned(project) == totals([*parcels(), *more])
    assert scanned(project, "--version", first) == totals(parcels())
    *changes, counts = call(project, "state", "diff", *STORE, "--json", "--from", first)[0].splitlines()
    town = totals(parcels())["town-1"]
    assert [{name: each[name] for name in each if name != "task"} for each in map(json.loads, changes)] == [
        {"change": "added", "key": "new", "to": 1},
        {"change": "changed", "key": "town-1", "from": town, "to": town + 5},
    ]
    assert json.loads(counts)["counts"] == {"added": 1, "removed": 0, "changed": 1}
    deltas = [each for each in call_json(project, "state", "list", "weigh")["objects"] if each["kind"] == "deltas"]
    assert all(each["count"] and each["sizeBytes"] for each in deltas)
