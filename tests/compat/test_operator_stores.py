"""Entries of operators' and states' stores have the bytes of the layout that a checkpoint records with them.

`python -m tests.compat.test_operator_stores` writes the golden file anew, where the recorded layout has another name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructType

import penstock as ps
from penstock.graph.stores import STORE_LAYOUTS
from penstock.runtime.operators.base import KeyValue
from penstock.start.layout import store_layout
from tests.support.oracles.processors import OneTask, application, spec_of
from tests.support.oracles.stage_batches import OUT, Message, StageBatches
from tests.support.tools.places import GOLDEN

FILE: Path = GOLDEN / "operator-stores.json"
Stores: TypeAlias = dict[str, dict[str, Any]]
"""For each store its layout in a checkpoint, and its entries in hexadecimal; a long value is named by its digest."""
Declare: TypeAlias = Callable[[ps.StreamApplication], ps.MessageStream[Any]]
W, T = ps.Windows, ps.Triggers
LONG = 120
HOUR = 3_600_000
LEFT = [Message("k", 1, 5, "a"), Message("k", None, 1_500, "a"), Message("j\0", 3, 2_100, "a")]
MORE = [Message("k", 4, 1_600, "a")]
RIGHT = [Message("k", 7, 100, "b"), Message("l", 8, 2_000, "b")]
MANY = [Message("k", "x" * 90, n, source) for source in "ab" for n in range(40)]


def shown(layout: str, entries: Iterable[tuple[bytes, bytes]]) -> dict[str, Any]:
    hexed = {
        key.hex(): value.hex() if len(value) <= LONG else f"sha256 {hashlib.sha256(value).hexdigest()}"
        for key, value in entries
    }
    return {"layout": layout, "entries": hexed}


def stored(declare: Declare, batches: list[list[Message]], watermark: int, others: tuple[str, ...] = ()) -> Stores:
    """The stores' content after these batches of an application with the operator `o`."""
    app = ps.StreamApplication("a")
    declare(app).map(lambda _: 1).send_to(app.output(OUT))
    job, layouts = StageBatches(app, "o", others=others), store_layout(app.graph())
    for number, messages in enumerate(batches):
        job.run(messages, watermark, time_ms=1_000 * (number + 1))
        assert job.failed is None
    found = {name: shown(layout, job.entries(name).items()) for name, layout in layouts.items()}
    job.close()
    return found


def window(window: ps.Window, messages: list[Message] = LEFT, watermark: int = 1_200) -> Stores:
    return stored(lambda app: app.input("m.a", id="a").window(window, id="o"), [messages, MORE], watermark)


RECORD = ps.Columns(pa.schema({"n": pa.int64(), "s": pa.string()}))
RECORDS = [
    Message("k", {"n": 1, "s": "x"}, 5, "a"),
    Message("k", {"n": 2}, 1_500, "a"),
    Message("j", {"s": "y"}, 2_100, "a"),
]
BY_COLUMN = {
    "count": ps.Count(), "sum": ps.Sum(ps.col("n")), "mean": ps.Mean(ps.col("n")), "least": ps.Min(ps.col("n")),
    "variance": ps.Variance(ps.col("n")), "first": ps.First(ps.col("s")), "last": ps.Last(ps.col("s")),
}  # fmt: skip


def aggregate(value: ps.Serde[Any], messages: list[Message]) -> Stores:
    aggregates: dict[str, Any] = BY_COLUMN if value is RECORD else {"count": ps.Count(), "last": ps.Last()}
    return stored(lambda app: app.input("m.a", value=value, id="a").aggregate(aggregates, id="o"), [messages], 1)


def join(messages: list[Message], **options: Any) -> Stores:
    def declare(app: ps.StreamApplication) -> ps.MessageStream[Any]:
        left, right = app.input("m.a", id="a"), app.input("m.b", id="b")
        return left.join(right, lambda a, b: [a, b], **{"within_ms": (200, 300), "kind": "outer", "id": "o", **options})

    return stored(declare, [messages], 1)


def of_time(app: ps.StreamApplication) -> ps.MessageStream[Any]:
    table = app.table("versions", history_ms=HOUR)
    app.input("m.b", id="b").send_to(table, id="writer")
    return app.input("m.a", id="a").join_table(table, lambda a, b: [a, b], as_of=True, kind="left", id="o")


class Remembers(ps.StreamTask):
    """Sets timers, and has state of each kind."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context
        self.list = context.list_state("list")
        self.map = context.map_state("map")
        self.lives: KeyValue = context.store("lives")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        key, time_ms = envelope.key, envelope.timestamp
        self.context.schedule(key, time_ms + HOUR, "name")
        self.context.schedule(key, time_ms + HOUR)
        self.context.schedule(None, time_ms + HOUR, "of no key", domain="processing")
        self.list.append(time_ms)
        self.map.put(str(time_ms), 1)
        self.lives.put(key, 1)

    def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None: ...


def remembers(app: ps.StreamApplication) -> ps.MessageStream[Any]:
    app.list_state("list")
    app.map_state("map")
    app.store("lives", ttl_ms=HOUR)
    stores = ["list", "map", "lives"]
    return app.input("m.a", id="a").process(Remembers, stores=stores, timers=ps.String(), id="o")


class Processor(StatefulProcessor):
    """Has state of each kind."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", N)
        self.list = handle.getListState("list", N)
        self.map = handle.getMapState("map", K, N)
        self.lives = handle.getListState("lives", N, 3_600_000)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        for row in rows:
            self.value.update((row.n,))
            self.list.appendValue((row.n,))
            self.map.updateValue((key[0],), (row.n,))
            self.lives.appendValue((row.n,))
            self.handle.registerTimer(3_600_000 + row.n)
        return iter(())


N = StructType().add("n", LongType())
K = StructType().add("k", StringType())
ROWS = StructType().add("k", StringType()).add("n", LongType())


def processor() -> Stores:
    spec = spec_of(Processor(), ["k"], ROWS, N, "ProcessingTime")
    task = OneTask(spec)
    task.batch([{"k": "a", "n": 1}, {"k": "b", "n": -2}, {"k": "a", "n": 3}], 5)
    layouts = store_layout(application(spec).graph())
    return {name: shown(layout, task.state(name).items()) for name, layout in layouts.items()}


def ordered(value: ps.Serde[Any], messages: list[Message]) -> Stores:
    def declare(app: ps.StreamApplication) -> ps.MessageStream[Any]:
        if value is RECORD:
            return app.input("m.a", value=value, id="a").process_batch(Nothing, order="event-time", id="o")
        return app.input("m.a", id="a").process(Ignores, order="event-time", id="o")

    return stored(declare, [messages], 1)


class Ignores(ps.StreamTask):
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None: ...


class Nothing(ps.BatchProcessor):
    def process(self, batch: ps.MessageBatch, collector: ps.BatchCollector) -> None: ...


AGGREGATES: dict[str, ps.Aggregate] = {
    "count": ps.Count(),
    "sum": ps.Sum(),
    "min": ps.Min(),
    "max": ps.Max(),
    "mean": ps.Mean(),
    "first": ps.First(),
    "last": ps.Last(),
    "distinct": ps.Distinct(),
}
FOLD: Any = (0, lambda total, n: total + (n or 0))
MERGED: Any = (0, lambda total, n: total + (n or 0), lambda a, b: a + b)
CASES: dict[str, Callable[[], Stores]] = {
    "window, plain": lambda: window(W.tumbling(1_000, fold=FOLD)),
    "window of a task": lambda: window(W.tumbling(1_000, fold=FOLD, keyed=False)),
    "window, kept for late messages": lambda: window(W.tumbling(1_000, fold=FOLD, allowed_lateness_ms=HOUR)),
    "window, aggregates and early panes": lambda: window(W.tumbling(HOUR, aggregates=AGGREGATES, early=T.count(2))),
    "window, timed panes": lambda: window(
        W.tumbling(HOUR, fold=FOLD, time="processing", early=T.since_first(HOUR // 2))
    ),
    "window, messages": lambda: window(W.hopping(2_000, every_ms=1_000)),
    "window, sessions": lambda: window(W.session(100, fold=MERGED)),
    "window, sessions of messages": lambda: window(W.session(100, fold=FOLD, allowed_lateness_ms=HOUR)),
    "window, sliding": lambda: window(W.sliding(2_000)),
    "window, count": lambda: window(W.count(3, fold=FOLD)),
    "aggregate": lambda: aggregate(ps.Json(), LEFT),
    "aggregate, by column": lambda: aggregate(RECORD, RECORDS),
    "window, by column": lambda: stored(
        lambda app: app.input("m.a", value=RECORD, id="a").window(W.tumbling(1_000, aggregates=BY_COLUMN), id="o"),
        [RECORDS],
        1_200,
    ),
    "join": lambda: join(LEFT + RIGHT),
    "join, in pieces": lambda: join(MANY),
    "join, newest": lambda: join(LEFT + RIGHT, keep="newest"),
    "temporal join and versions": lambda: stored(of_time, [LEFT + RIGHT], 1_200, ("writer",)),
    "timers, state of the key, time to live": lambda: stored(remembers, [LEFT], 1),
    "messages in order": lambda: ordered(ps.Json(), LEFT),
    "messages in order, by column": lambda: ordered(RECORD, RECORDS),
    "processor of PySpark": processor,
}


@pytest.mark.parametrize("case", CASES)
def test_stores_have_the_bytes_of_their_layout(case: str) -> None:
    golden: Stores = json.loads(FILE.read_bytes())[case]
    found = CASES[case]()
    assert found.keys() == golden.keys()
    for name, store in found.items():
        assert store["entries"], f"store `{name}` is empty: nothing is compared"
        if store["layout"] == golden[name]["layout"]:
            assert store["entries"] == golden[name]["entries"], (
                f"the bytes of store `{name}` have changed: raise the layout number (`STORE_LAYOUTS` in "
                "penstock/graph/stores.py for stores of operators, the number in the definition or the name of the "
                "serde for others), and then write the golden file anew"
            )
    assert found == golden, "a layout has a new name: write the golden file anew, as this module says"


def test_every_kind_of_operator_has_a_case() -> None:
    recorded = {
        store["layout"].split(" ")[-1] for case in json.loads(FILE.read_bytes()).values() for store in case.values()
    }
    begins = {
        "window": "Fixed(",
        "join": "within=",
        "temporal-join": "as-of(",
        "timers": "timers(",
        "versions": "versions(",
        "aggregate": "aggregate",
        "order": "ordered:",
        "column-order": "ordered-columns:",
    }
    assert begins.keys() == STORE_LAYOUTS.keys()
    assert all(any(text.startswith(begin) for text in recorded) for begin in begins.values())


def _write() -> None:
    old = json.loads(FILE.read_bytes()) if FILE.exists() else {}
    new = {case: make() for case, make in CASES.items()}
    for case, stores in new.items():
        for name, store in stores.items():
            before = old.get(case, {}).get(name)
            if before is not None and before["layout"] == store["layout"] and before != store:
                raise SystemExit(f"{case}, store `{name}`: raise the layout number first")
    FILE.write_text(json.dumps(new, indent=1, sort_keys=True) + "\n", "ascii")


if __name__ == "__main__":
    _write()
