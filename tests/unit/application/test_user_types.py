"""A type checker accepts correct programs of users and finds their mistakes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tools.places import ROOT

PROGRAM = """
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import penstock as ps

app = ps.StreamApplication("typed")
until: Literal["latest"] | None = None
job: ps.Job = app.run({"spark.master": "local[2]"}, until=until)
app.run("job.yaml", spark=None, until="latest", from_checkpoint="1-1")
app.run(Path("job.properties"))
app.run(untill="latest")  # error: call-arg
app.run(until="yesterday")  # error: arg-type
app.run(from_checkpoint=5)  # error: arg-type
app.run(5)  # error: arg-type

texts: ps.MessageStream[str] = app.input("local.texts", value=ps.String())
texts.map(len).filter(lambda length: length > 5).partition_by(lambda length: length % 2, key=ps.Long())
texts.map(lambda text: text.missing)  # error: attr-defined
texts.filter(lambda message: message.timestamp > 5, envelope=True).map(str.upper)
texts.filter(lambda message: message.timestmp > 5, envelope=True)  # error: call-overload
app.input("local.json").map(lambda value: value["a"]).flat_map(lambda value: [value]).merge(texts)


@dataclass
class Trip:
    tail: str
    miles: int = 0


trips: ps.MessageStream[Trip] = app.input("local.trips", value=ps.Struct(Trip))
trips.filter(lambda trip: trip.miles > 5).map(lambda trip: trip.tail.upper()).map(len)
trips.map(lambda trip: trip.mils)  # error: attr-defined
trips.map(str.upper)  # error: arg-type


class Doubled(ps.StreamTask):
    def process(
        self,
        envelope: ps.IncomingMessageEnvelope[Trip],
        collector: ps.MessageCollector,
        coordinator: ps.TaskCoordinator,
    ) -> None:
        miles: int = envelope.value.miles * 2
        envelope.value.mils  # error: attr-defined


trips.process(Doubled)


class Count(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        self.counts: ps.KeyValueStore[str, int] = context.store("counts")
        self.limit = int(context.config.get("app.limit", "5"))

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        self.counts["a"] = self.counts.get("a", 0) + 1
        self.counts["a"] = self.counts.get("a") + 1  # error: operator
        self.counts.put("a", "one")  # error: arg-type
        total: int = sum(value for key, value in self.counts.items(prefix="a") if key in self.counts)


texts.process(Count, stores=["counts"])


class Trips(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        self.trips: ps.KeyValueStore[tuple[str, int], float] = context.store("trips")
        self.counts: ps.KeyValueStore[str, int] = context.store("counts")

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        for (tail, number), miles in self.trips.range(("N1",), ("N2", 5)):
            self.trips.put((tail, number + 1), miles / 2)
            self.trips.put((tail, miles), number)  # error: arg-type
        first: tuple[tuple[str, int], float] = self.trips.snapshot(("N1",), ("N2",))[0]
        self.trips.range("N1", "N2")  # error: call-overload
        self.counts.range(("N1",), ("N2",))  # error: arg-type
        self.counts.snapshot("N1", "N2")
"""


@pytest.mark.slow
def test_mypy_finds_the_mistakes_and_nothing_else(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    found = {
        (int(line), code)
        for line, code in re.findall(r"program\.py:(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE)
    }
    expected = {
        (number, line.rpartition("# error: ")[2])
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if "# error: " in line
    }
    assert found == expected, done.stdout + done.stderr
