"""Stores that are filled from outside, standbys, a signed root, and requests that wait: a startpoint and a drain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import penstock as ps
from penstock import admin
from penstock.system.partitioner import partition_of
from penstock.testing.runner.sides import TablesInProcess
from tests.compat.kept.job import TASKS, Given, KeptHome, KeptJob, Results, State

KEYS = tuple(f"k{n}" for n in range(6))
AGAIN = 2
"""So many messages of partition 0 are read again, because a startpoint asks for it."""


class Look(ps.StreamTask):
    """Looks the key up everywhere, and counts it."""

    def init(self, context: ps.TaskContext) -> None:
        self.seen: Any = context.store("seen")
        self.tables = [context.store(name) for name in ("planes", "names", "prices", "rates")]

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        seen = self.seen[envelope.key] = self.seen.get(envelope.key, 0) + 1
        found = [
            store.get(key) for store, key in zip(self.tables, [envelope.key, "all", envelope.key, "all"], strict=True)
        ]
        collector.emit(key=envelope.key, value=[envelope.value, seen, *found])


class OutsideJob(KeptJob):
    """Each message has a key, and what the stores had for it."""

    name = "outside"
    streams: Mapping[str, int] = {"events": TASKS, "planes": TASKS, "names": 1, "looked": TASKS}

    def app(self) -> ps.StreamApplication:
        app = ps.StreamApplication("outside")
        app.store("seen", value=ps.Long())
        app.store("planes", side_inputs=["local.planes"])
        app.store("names", side_inputs=["local.names"], broadcast=True)
        app.store("prices", pushed=ps.PushedTable("/prices", "key", "price"))
        app.store("rates", pushed=ps.PushedTable("/rates", "key", "rate", broadcast=True))
        events = app.input("local.events", id="events")
        looked = events.process(Look, stores=["seen", "planes", "names", "prices", "rates"], id="look")
        panes = events.window(ps.Windows.count(1_000, fold=(0, lambda total, n: total + 1)), id="waits")
        panes.map(lambda pane: ["waited", pane.key, pane.message], id="waited").merge(looked, id="all").send_to(
            app.output("local.looked"), id="out"
        )
        return app

    def keys(self, home: Path) -> Mapping[str, object]:
        return {
            "app.run.id": None,
            "job.root.key": "k" * 40,
            "job.standbytasks.replication.factor": 2,
            "job.host-affinity.enabled": True,
            "job.startpoint.ttl.ms": 10**12,
            "stores.names.factory": "memory",
            "streams.local.looked.output.guarantee": "exactly-once",
        }

    def parts(self) -> tuple[list[Given], list[Given], list[Given], list[Given]]:
        def part(first: int, end: int) -> list[Given]:
            events = range(first, end)
            return [Given("events", _partition(KEYS[n % 6]), 0, KEYS[n % 6], n) for n in events]

        return part(0, 8), part(8, 14), part(14, 17), part(17, 26)

    def before(self, home: KeptHome) -> None:
        """All that comes from outside is of the next version."""
        version = 1 + len(home.values("names"))
        home.put([Given("planes", _partition(key), 0, key, f"plane {version}") for key in KEYS])
        home.put([Given("names", 0, 0, "all", f"name {version}")])
        tables = TablesInProcess(home.objects, home.paths, self.app().graph(), TASKS)
        tables.push("prices", [{"key": key, "price": version} for key in KEYS])
        tables.push("rates", [{"key": "all", "rate": version / 2}])

    def left(self, home: KeptHome) -> None:
        """Somebody has asked to read some messages again, and to drain."""
        with admin.open_job(self.name, overrides=home.options) as job:
            at = next(iter(home.last.next_offsets[0].values()))
            startpoint = ps.StartpointSpecific(str(at - AGAIN))
            admin.set_startpoint(job, "local.events", startpoint, partitions=[0], with_state="keep")
            admin.drain(job)

    def results(self, committed: Sequence[Given], rest: Sequence[Given]) -> Results:
        seen: Counter[str] = Counter()
        found: list[Any] = []
        for version, part in ((1, committed), (2, self._again(committed, rest))):
            counts: Counter[str] = Counter()
            for each in part:
                key = str(each.key)
                seen[key] += 1
                counts[key] += 1
                found.append([each.value, seen[key], f"plane {version}", f"name {version}", version, version / 2])
            found += [["waited", key, count] for key, count in counts.items()]
        return {"looked": found}

    def state(self, committed: Sequence[Given], rest: Sequence[Given]) -> State:
        return {"seen": Counter(each.key for each in [*committed, *(self._again(committed, rest) if rest else ())])}

    def _again(self, committed: Sequence[Given], rest: Sequence[Given]) -> list[Given]:
        """The messages behind the startpoint."""
        first = [each for each in committed if each.partition == 0]
        return [*first[-AGAIN:], *rest]


def _partition(key: str) -> int:
    """Side inputs and pushed tables have a key where the job's partitions have it."""
    return partition_of(key.encode(), TASKS)
