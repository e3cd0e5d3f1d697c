"""Windows of each kind, joins of streams and of versions, messages in the order of event time, and their timers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock as ps
from tests.compat.kept.job import HOUR_MS, TASKS, Given, KeptJob, Results, State

BOUND = 20
ROW = ps.Columns(pa.schema({"k": pa.string(), "n": pa.int64(), "t": pa.int64()}))
BEFORE, AFTER = 25, 15
HISTORY = 1_000
W = ps.Windows
FOLD: Any = (0, lambda total, row: total + row["n"], lambda one, other: one + other)


class Ordered(ps.StreamTask):
    """Numbers the messages of a key, and sets a timer for each."""

    def init(self, context: ps.TaskContext) -> None:
        self.context, self.numbers = context, context.store("numbers")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        key, row = envelope.key, envelope.value
        number = self.numbers[key] = self.numbers.get(key, 0) + 1
        self.context.schedule(key, row["t"] + 40, str(row["n"]))
        collector.emit(key=key, value=["ordered", key, row["n"], number])

    def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key=timer.key, value=["timer", timer.key, int(timer.name)])


class OrderedRows(ps.BatchProcessor):
    """The same by column."""

    def init(self, context: ps.BatchProcessorContext) -> None:
        self.last = context.row_store("last")

    def process(self, batch: ps.MessageBatch, collector: ps.BatchCollector) -> None:
        keys = [row["k"] for row in batch.values.to_pylist()]
        rows = []
        for row in batch.values.to_pylist():
            rows.append({"text": f"{row['k']} {row['n']} after {self.last.get(row['k'])}"})
            self.last.put(row["k"], row["n"])
        collector.emit(pa.array(keys), pa.RecordBatch.from_pylist(rows, schema=pa.schema({"text": pa.string()})))


def shown(name: str) -> Callable[[Any], Any]:
    return lambda pane: [name, pane.key, pane.window.start_ms, pane.window.end_ms, pane.message]


class WindowsJob(KeptJob):
    """Each message of `a` goes to all operators by its key; those of `b` to joins and the table."""

    name = "windows"
    streams: Mapping[str, int] = {"a": TASKS, "b": TASKS, "results": TASKS}

    def app(self) -> ps.StreamApplication:
        app = ps.StreamApplication("windows")
        app.store("numbers", value=ps.Long())
        app.store("last", value=ps.Long())
        late = ps.BoundedOutOfOrderness(BOUND)
        a, b = (
            app.input(f"local.{name}", value=ROW, timestamp=ps.col("t"), watermark=late, id=name).partition_by(
                ps.col("k"), id=f"{name}-by-key"
            )
            for name in "ab"
        )
        found = [
            a.window(W.tumbling(50, fold=FOLD), id="tumbling").map(shown("tumbling"), id="tumbling-shown"),
            a.window(W.tumbling(30, aggregates=_aggregates(), allowed_lateness_ms=10), id="aggregates").map(
                shown("aggregates"), id="aggregates-shown"
            ),
            a.window(W.hopping(40, every_ms=20), id="hopping").map(
                lambda pane: [*shown("hopping")(pane)[:4], sorted(row["n"] for row in pane.message)], id="hopping-shown"
            ),
            a.window(W.session(12, fold=FOLD), id="session").map(shown("session"), id="session-shown"),
            a.window(W.session(12), id="session-list").map(
                lambda pane: [*shown("session-list")(pane)[:4], sorted(row["n"] for row in pane.message)],
                id="session-list-shown",
            ),
            a.window(W.sliding(30, aggregates={"n": ps.Count(), "s": ps.Sum(ps.col("n"))}), id="sliding").map(
                shown("sliding"), id="sliding-shown"
            ),
            a.window(
                W.sliding(30, emit="each", aggregates={"n": ps.Count(), "last": ps.Last(ps.col("n"))}),
                order="event-time",
                id="each",
            ).map(lambda pane: ["each", pane.key, pane.message["last"], pane.message["n"]], id="each-shown"),
            a.window(W.count(4, fold=FOLD), id="count").map(
                lambda pane: ["count", pane.key, pane.message, pane.firing], id="count-shown"
            ),
            a.window(W.tumbling(HOUR_MS, time="processing", fold=FOLD), id="processing").map(
                lambda pane: ["processing", pane.key, pane.message], id="processing-shown"
            ),
            a.window(W.tumbling(50, aggregates=_sums()), rows=True, id="by-column").map(
                lambda row: ["by-column", row["start_ms"], row["n"], row["s"], row["last"]], id="by-column-shown"
            ),
            a.process(Ordered, stores=["numbers"], timers=ps.String(), order="event-time", id="ordered"),
            a.process_batch(
                OrderedRows, stores=["last"], schema=pa.schema({"text": pa.string()}), order="event-time", id="rows"
            ).map(lambda row: ["rows", row["text"]], id="rows-shown"),
            a.join(b, lambda own, other: ["join", *_numbers(own, other)], within_ms=(BEFORE, AFTER), kind="outer",
                   id="join"),
            a.join(b, lambda own, other: ["newest", *_numbers(own, other)], within_ms=(BEFORE, AFTER), keep="newest",
                   order="event-time", id="newest"),
        ]  # fmt: skip
        versions = app.table("versions", value=ROW, history_ms=HISTORY)
        b.send_to(versions, id="versions-in")
        found.append(
            a.join_table(
                versions, lambda own, other: ["as-of", *_numbers(own, other)], as_of=True, kind="left", id="as-of"
            )
        )
        merged, *others = [each.map(lambda value: value, id=f"result-{n}") for n, each in enumerate(found)]
        merged.merge(*others, id="all").send_to(app.output("local.results"), id="out")
        return app

    def keys(self, home: Path) -> Mapping[str, object]:
        memory = ("tumbling.window", "hopping.window", "join.join", "ordered.timers")
        return {
            "streams.local.results.output.guarantee": "exactly-once",
            **{f"stores.{store}.factory": "memory" for store in memory},
            "stores.session.window.backup.factories": "blob",
            "stores.versions.backup.factories": "changelog-stream",
        }

    def parts(self) -> tuple[list[Given], list[Given], list[Given], list[Given]]:
        def part(first: int, end: int) -> list[Given]:
            return [
                Given(stream, n * n % 3, 0, None, {"k": f"k{n * n % 3}", "n": n, "t": begin + 8 * n + jitter * (n % 4)})
                for n in range(first, end)
                for stream, begin, jitter in (("a", 100, -10), ("b", 101, 6))
                if stream == "a" or n % 4 != 3
            ]

        return part(0, 16), part(16, 24), part(24, 27), part(27, 40)

    def results(self, committed: Sequence[Given], rest: Sequence[Given]) -> Results:
        everything = [*committed, *rest]
        a, b = ([each.value for each in everything if each.stream == name] for name in "ab")
        found: list[Any] = []
        for key in sorted({row["k"] for row in a + b}):
            own = sorted((row for row in a if row["k"] == key), key=lambda row: row["t"])
            other = sorted((row for row in b if row["k"] == key), key=lambda row: row["t"])
            found += of_windows(key, own)
            found += of_order(key, own)
            found += of_joins(own, other)
            came = [row["n"] for row in a if row["k"] == key]
            whole = [came[first : first + 4] for first in range(0, len(came), 4)]
            found += [["count", key, sum(each), "on-time"] for each in whole]
            phases = [
                [m.value["n"] for m in part if m.stream == "a" and m.value["k"] == key] for part in (committed, rest)
            ]
            found += [["processing", key, sum(each)] for each in phases if each]
        return {"results": found}

    def state(self, committed: Sequence[Given], rest: Sequence[Given]) -> State:
        if not rest:
            return {}
        a = sorted((m.value for m in [*committed, *rest] if m.stream == "a"), key=lambda row: row["t"])
        numbers: defaultdict[str, int] = defaultdict(int)
        for row in a:
            numbers[row["k"]] += 1
        return {"numbers": numbers, "last": {row["k"]: row["n"] for row in a}}


def _aggregates() -> dict[str, ps.Aggregate]:
    return {
        "n": ps.Count(), "sum": ps.Sum(lambda row: row["n"]), "mean": ps.Mean(lambda row: row["n"]),
        "min": ps.Min(lambda row: row["n"]), "max": ps.Max(lambda row: row["n"]),
        "distinct": ps.Distinct(lambda row: row["n"] % 2), "top": ps.TopN(lambda row: row["n"], n=2),
    }  # fmt: skip


def _sums() -> dict[str, ps.Aggregate]:
    return {"n": ps.Count(), "s": ps.Sum(ps.col("n")), "last": ps.Last(ps.col("n"))}


def _numbers(own: Any, other: Any) -> list[Any]:
    return [None if each is None else each["n"] for each in (own, other)]


def _by_start(rows: Iterable[dict[str, Any]], size: int, every: int) -> dict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for row in rows:
        last = row["t"] // every * every
        for start in range(last, row["t"] - size, -every):
            found[start].append(row["n"])
    return found


def of_windows(key: str, own: list[dict[str, Any]]) -> list[Any]:
    found: list[Any] = [["tumbling", key, start, start + 50, sum(ns)] for start, ns in _by_start(own, 50, 50).items()]
    for start, ns in _by_start(own, 30, 30).items():
        aggregates = {
            "n": len(ns), "sum": sum(ns), "mean": sum(ns) / len(ns), "min": min(ns), "max": max(ns),
            "distinct": len({n % 2 for n in ns}), "top": sorted(ns, reverse=True)[:2],
        }  # fmt: skip
        found.append(["aggregates", key, start, start + 30, aggregates])
    found += [["hopping", key, start, start + 40, sorted(ns)] for start, ns in _by_start(own, 40, 20).items()]
    sessions: list[list[dict[str, Any]]] = []
    for row in own:
        if sessions and row["t"] - sessions[-1][-1]["t"] < 12:
            sessions[-1].append(row)
        else:
            sessions.append([row])
    for each in sessions:
        span, ns = [each[0]["t"], each[-1]["t"] + 12], [row["n"] for row in each]
        found += [["session", key, *span, sum(ns)], ["session-list", key, *span, sorted(ns)]]
    for time in {row["t"] for row in own}:
        ns = [row["n"] for row in own if time - 30 < row["t"] <= time]
        found.append(["each", key, ns[-1], len(ns)])
        found.append(["sliding", key, time - 29, time + 1, {"n": len(ns), "s": sum(ns)}])
    found += [["by-column", start, len(ns), sum(ns), ns[-1]] for start, ns in _by_start(own, 50, 50).items()]
    return found


def of_order(key: str, own: list[dict[str, Any]]) -> list[Any]:
    found: list[Any] = []
    for number, row in enumerate(own):
        found += [["ordered", key, row["n"], number + 1], ["timer", key, row["n"]]]
        before = own[number - 1]["n"] if number else None
        found.append(["rows", f"{key} {row['n']} after {before}"])
    return found


def of_joins(own: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[Any]:
    pairs = [(row, each) for row in own for each in other if row["t"] - BEFORE <= each["t"] <= row["t"] + AFTER]
    found: list[Any] = [["join", *_numbers(*pair)] for pair in pairs]
    found += [["join", row["n"], None] for row in own if all(pair[0] is not row for pair in pairs)]
    found += [["join", None, each["n"]] for each in other if all(pair[1] is not each for pair in pairs)]
    newest: dict[str, dict[str, Any] | None] = {"a": None, "b": None}
    sides = [("a", row) for row in own] + [("b", row) for row in other]
    for side, row in sorted(sides, key=lambda each: each[1]["t"]):
        newest[side] = row
        pair = newest["a"], newest["b"]
        if pair in pairs:
            found.append(["newest", *_numbers(*pair)])
    for row in own:
        before = [each for each in other if each["t"] <= row["t"]]
        found.append(["as-of", row["n"], before[-1]["n"] if before else None])
    return found
