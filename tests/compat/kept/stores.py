"""Stores of all engines in all backends, times to live, timers, duplicates, a durable stream, dead letters, columns."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import penstock as ps
from tests.compat.kept.job import HOUR_MS, TASKS, Given, KeptHome, KeptJob, Results, State

KEYS = [f"k{n}" for n in range(5)]
ROW = pa.schema({"k": pa.string(), "n": pa.int64()})
SUM = pa.schema({"n": pa.int64(), "sum": pa.int64()})
STORES = {
    "totals": ("rocksdb", "changelog-files"),
    "names": ("rocksdb", "blob"),
    "pairs": ("memory", "changelog-stream"),
    "twice": ("rocksdb", "changelog-files,blob,changelog-stream"),
    "recent": ("memory", "changelog-files"),
    "lasting": ("rocksdb", "blob"),
    "list": ("memory", "changelog-stream"),
    "map": ("rocksdb", "blob,changelog-files"),
    "sums": ("columns", "changelog-files,changelog-stream"),
    "by-column.aggregate": ("columns", "blob"),
    "highest": ("memory", "blob"),
}
"""The engine and the backends of each store."""


class Keep(ps.StreamTask):
    """Keeps what comes in a store of each kind, and fails for some messages."""

    def init(self, context: ps.TaskContext) -> None:
        self.totals, self.names = context.store("totals"), context.store("names")
        self.pairs, self.twice = context.store("pairs"), context.store("twice")
        self.list, self.map = context.list_state("list"), context.map_state("map")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        key, n = envelope.key, envelope.value["n"]
        total = self.totals[key] = self.totals.get(key, 0) + n
        self.twice[key] = self.twice.get(key, 0) + 2 * n
        self.names[key] = f"name of {key} at {n}"
        self.pairs[key, n] = n / 2
        if n % 7 == 0:
            self.pairs.delete((key, n))
        self.list.append(n)
        self.map.put(str(n % 3), n)
        if n % 10 == 9:
            raise ValueError("a message that fails")
        collector.emit(key=key, value=["kept", key, n, total])


class Recent(ps.StreamTask):
    """Counts each key in stores whose entries expire, and sets timers by both times."""

    def init(self, context: ps.TaskContext) -> None:
        self.context, self.recent, self.lasting = context, context.store("recent"), context.store("lasting")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        key, n = envelope.key, envelope.value["n"]
        counts = self.recent.get(key, 0) + 1, self.lasting.get(key, 0) + 1
        self.recent[key], self.lasting[key] = counts
        self.context.schedule(key, self.context.batch_time_ms + HOUR_MS, f"{n}", domain="processing")
        if n % 4 == 0:
            self.context.schedule(key, 10 * n, f"{n}")
        collector.emit(key=key, value=["counted", key, n, *counts])

    def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key=timer.key, value=["timer", timer.key, timer.name, timer.domain])


class Sums(ps.BatchProcessor):
    """The number and the sum of each key, by column."""

    def init(self, context: ps.BatchProcessorContext) -> None:
        self.sums = context.store("sums")

    def process(self, batch: ps.MessageBatch, collector: ps.BatchCollector) -> None:
        new = pa.table({"k": batch["k"], "n": batch["n"]}).group_by("k").aggregate([("n", "count"), ("n", "sum")])
        keys = new["k"].combine_chunks()
        before = self.sums.get_many(keys)
        columns = [
            pc.add(pc.fill_null(before[name], 0), new[made].combine_chunks())
            for name, made in (("n", "n_count"), ("sum", "n_sum"))
        ]
        self.sums.put_many(keys, pa.record_batch(columns, schema=SUM))


class StoresJob(KeptJob):
    """Each message of `events` goes to all operators by its key, `k0` to `k4`."""

    name = "stores"
    streams: Mapping[str, int] = dict.fromkeys(
        ("events", "rows", "kept", "counted", "unique", "dead", "highest"), TASKS
    )

    def app(self) -> ps.StreamApplication:
        app = ps.StreamApplication("stores")
        app.store("totals", value=ps.Long())
        app.store("names", value=ps.String())
        app.store("pairs", key=ps.Tuple(ps.String(), ps.Long()), value=ps.Double())
        app.store("twice")
        app.store("recent", ttl_ms="1h")
        app.store("lasting", ttl_ms="30d", ttl_from="access")
        app.list_state("list", value=ps.Long())
        app.map_state("map", map_key=ps.String(), value=ps.Long())
        app.store("sums", value=ps.Columns(SUM))
        events = app.input(
            "local.events", timestamp=lambda event: 10 * event["n"], watermark=ps.BoundedOutOfOrderness(5)
        )
        through = events.partition_by(lambda event: event["k"], through="local.by-key", id="by-key")
        kept = through.process(Keep, stores=["totals", "names", "pairs", "twice", "list", "map"], id="keep")
        kept.send_to(app.output("local.kept"), id="kept-out")
        direct = events.partition_by(lambda event: event["k"], id="direct")
        counted = direct.process(Recent, stores=["recent", "lasting"], timers=ps.String(), id="count")
        counted.send_to(app.output("local.counted"), id="counted-out")
        once = direct.deduplicate("365d", by=lambda event: event["n"] // 10, id="once")
        once.send_to(app.output("local.unique"), id="unique-out")
        highest = direct.map(lambda event: event["n"], id="numbers").reduce(max, value=ps.Long(), id="highest")
        highest.send_to(app.output("local.highest"), id="highest-out")
        rows = app.input("local.rows", value=ps.Columns(ROW)).partition_by(ps.col("k"), id="rows-by-key")
        rows.process_batch(Sums, stores=["sums"], schema=SUM, id="sum")
        rows.aggregate(
            {"n": ps.Count(), "sum": ps.Sum(ps.col("n")), "mean": ps.Mean(ps.col("n")), "last": ps.Last(ps.col("n"))},
            id="by-column",
        )
        return app

    def keys(self, home: Path) -> Mapping[str, object]:
        found: dict[str, object] = {"task.dead.letter.stream": "local.dead", "job.host-affinity.enabled": True}
        for stream in ("kept", "counted", "unique", "dead", "highest"):
            found[f"streams.local.{stream}.output.guarantee"] = "exactly-once"
        for store, (engine, backends) in STORES.items():
            found |= {f"stores.{store}.factory": engine, f"stores.{store}.backup.factories": backends}
        return found

    def parts(self) -> tuple[list[Given], list[Given], list[Given], list[Given]]:
        def part(first: int, end: int) -> list[Given]:
            return [
                Given(stream, n % TASKS, 1_000 + n, None, {"k": f"k{n % 5}", "n": n})
                for n in range(first, end)
                for stream in ("events", "rows")
            ]

        return part(0, 14), part(14, 23), part(23, 29), part(29, 44)

    def results(self, committed: Sequence[Given], rest: Sequence[Given]) -> Results:
        totals: dict[str, int] = {}
        kept, dead, unique, highest, seen = [], [], [], [], set()
        for event in _events([*committed, *rest]):
            key, n = event["k"], event["n"]
            if (key, n // 10) not in seen:
                seen.add((key, n // 10))
                unique.append(event)
            highest.append(n)
            if n % 10 == 9:
                dead.append(event)
                continue
            totals[key] = totals.get(key, 0) + n
            kept.append(["kept", key, n, totals[key]])
        return {"kept": kept, "unique": unique, "highest": highest, "counted": _counted(committed, rest)}

    def state(self, committed: Sequence[Given], rest: Sequence[Given]) -> State:
        events = _events([*committed, *rest])
        by_key = {key: [each["n"] for each in events if each["k"] == key] for key in KEYS}
        later = {key: [each["n"] for each in _events(rest) if each["k"] == key] for key in KEYS}
        direct: State = {
            "highest": {key: max(own) for key, own in by_key.items()},
            "recent": {key: len(later[key] if rest else own) for key, own in by_key.items()},
            "lasting": {key: len(own) for key, own in by_key.items()},
            "sums": {key: {"n": len(own), "sum": sum(own)} for key, own in by_key.items()},
        }
        if not rest:  # what the durable stream still has is in no other store
            return direct
        good = {key: [n for n in own if n % 10 != 9] for key, own in by_key.items()}
        behind: State = {
            "totals": {key: sum(own) for key, own in good.items()},
            "twice": {key: 2 * sum(own) for key, own in good.items()},
            "names": {key: f"name of {key} at {own[-1]}" for key, own in good.items()},
            "pairs": {(key, n): n / 2 for key, own in good.items() for n in own if n % 7},
            "map": {(key, str(n % 3)): n for key, own in good.items() for n in own},
        }
        return {**direct, **behind}

    def in_the_end(self, home: KeptHome) -> None:
        failed = [n for n in range(44) if n % 10 == 9]
        letters = home.values("dead")
        assert sorted(json.loads(letter["value"])["n"] for letter in letters) == failed
        assert {letter["operator"] for letter in letters} == {"keep"}


def _events(messages: Sequence[Given]) -> list[dict[str, Any]]:
    return [each.value for each in messages if each.stream == "events"]


def _counted(committed: Sequence[Given], rest: Sequence[Given]) -> list[Any]:
    """Entries of `recent` have expired when another version continues the job; those of `lasting` have not."""
    found: list[Any] = []
    lasting: Counter[str] = Counter()
    for part in (committed, rest):
        recent: Counter[str] = Counter()
        for event in _events(part):
            key, n = event["k"], event["n"]
            recent[key] += 1
            lasting[key] += 1
            found.append(["counted", key, n, recent[key], lasting[key]])
            found.append(["timer", key, str(n), "processing"])
            found += [["timer", key, str(n), "event"]] if n % 4 == 0 else []
    return found
