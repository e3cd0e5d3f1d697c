"""Checkpoints of both versions, of which the first is read, and an output of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow.json

import penstock as ps
from tests.compat.kept.job import TASKS, Given, KeptHome, KeptJob, Results, State

KEYS = ("k0", "k1", "k2")


class SamzaJob(KeptJob):
    """A running sum for each key."""

    name = "samza"
    streams: Mapping[str, int] = {"events": TASKS, "sums": TASKS}

    def app(self) -> ps.StreamApplication:
        app = ps.StreamApplication("samza")
        events = app.input("local.events", id="events").partition_by(lambda event: event["k"], id="by-key")
        sums = events.map(lambda event: event["n"], id="numbers").reduce(lambda one, other: one + other, id="sum")
        sums.send_to(app.output("local.sums"), id="sums-out")
        rows = sums.map(lambda envelope: {"k": envelope.key, "sum": envelope.value}, envelope=True, id="rows")
        rows.send_to(app.output("out.rows"), id="rows-out")
        return app

    def keys(self, home: Path) -> Mapping[str, object]:
        return {
            "task.checkpoint.write.versions": "1,2",
            "task.checkpoint.read.versions": "1",
            "stores.backup.factories": "changelog-stream",
            "systems.out.samza.factory": "files",
            "systems.out.folder": str(home / "files"),
            "systems.out.format": "json",
            "systems.out.partitions": TASKS,
            "systems.out.schema": "k STRING, sum BIGINT",
            "streams.out.rows.output.guarantee": "exactly-once",
            "streams.local.sums.output.guarantee": "exactly-once",
        }

    def parts(self) -> tuple[list[Given], list[Given], list[Given], list[Given]]:
        def part(first: int, end: int) -> list[Given]:
            return [Given("events", n % 3 % TASKS, 0, None, {"k": KEYS[n % 3], "n": n}) for n in range(first, end)]

        return part(0, 8), part(8, 14), part(14, 17), part(17, 26)

    def results(self, committed: Sequence[Given], rest: Sequence[Given]) -> Results:
        return {"sums": [total for own in _sums([*committed, *rest]).values() for total in own]}

    def state(self, committed: Sequence[Given], rest: Sequence[Given]) -> State:
        return {"sum": {key: own[-1] for key, own in _sums([*committed, *rest]).items()}}

    def in_the_end(self, home: KeptHome) -> None:
        """Every row is in one file."""
        rows: list[dict[str, Any]] = []
        for file in (home.folder / "files").rglob("*.json"):
            rows += pyarrow.json.read_json(file).to_pylist()
        given = [each for part in self.parts() for each in part]
        expected = [(key, total) for key, own in _sums(given).items() for total in own]
        assert sorted((row["k"], row["sum"]) for row in rows) == sorted(expected)


def _sums(messages: Sequence[Given]) -> dict[str, list[int]]:
    return {key: list(accumulate(each.value["n"] for each in messages if each.value["k"] == key)) for key in KEYS}
