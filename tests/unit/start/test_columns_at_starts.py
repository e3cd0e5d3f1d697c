"""Starts with other columns: of a store with another schema, and of an input whose messages do not have one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet
import pytest

import penstock as ps
from penstock.errors import ConfigError, IncompatibleError
from penstock.system.files.system import FilesSystem
from tests.support.tools.fixtures import fixture_of
from tests.support.world.sums_job import drain
from tests.support.world.world import World

ONE = pa.schema([pa.field("n", pa.int64())])
MORE = pa.schema([*ONE, pa.field("s", pa.string()), pa.field("x", pa.float64())])


class Keeps(ps.BatchProcessor):
    """Emits what a key had before."""

    def init(self, context: ps.BatchProcessorContext) -> None:
        self.last = context.store("last")

    def process(self, batch: ps.MessageBatch, collector: ps.BatchCollector) -> None:
        collector.emit(batch.keys, self.last.get_many(batch.keys))
        self.last.put_many(batch.keys, batch.values)


class KeepsEach(ps.StreamTask):
    """The same, one message at a time."""

    def init(self, context: ps.TaskContext) -> None:
        self.last = context.store("last")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key=envelope.key, value=self.last.get(envelope.key))
        self.last.put(envelope.key, envelope.value)


world = fixture_of(World, "keeps", ("in", "out"))


def run(world: World, schema: pa.Schema, rows: dict[str, Any], *, by_row: bool = False) -> list[Any]:
    """The values that a run with this schema emits for these rows."""
    app, serde = ps.StreamApplication("keeps"), ps.Columns(schema)
    app.store("last", value=serde)
    source = app.input("m.in", value=serde)
    if by_row:
        kept = source.process(KeepsEach, stores=["last"], value=serde, id="keeps")
    else:
        kept = source.process_batch(Keeps, stores=["last"], id="keeps")
    kept.send_to(app.output("m.out", value=serde))
    before = len(list(world.records("out")))
    driver = world.make(app.graph(), {"stores.last.factory": "columns"}, memory=False)
    driver.loop.start()
    for key, row in rows.items():
        world.append("in", 0, (0, key.encode(), orjson.dumps(row)))
    drain(driver)
    driver.loop.finish()
    driver.close()
    world.drivers.remove(driver)
    values = [value for _, _, value, *_ in world.records("out")][before:]
    return [None if value is None else orjson.loads(value) for value in values]


@pytest.mark.parametrize("by_row", [False, True])
def test_columns_may_be_added_at_the_end(world: World, by_row: bool) -> None:
    run(world, ONE, {"a": {"n": 1}, "b": {"n": 2}})
    found = run(world, MORE, {"a": {"n": 3, "s": "text", "x": 0.5}, "c": {}}, by_row=by_row)
    assert found == [{"n": 1, "s": None, "x": None}, None if by_row else {"n": None, "s": None, "x": None}]
    # Rows of both schemas in one store.
    found = run(world, MORE, {"b": {}, "a": {}}, by_row=by_row)
    assert found == [{"n": 2, "s": None, "x": None}, {"n": 3, "s": "text", "x": 0.5}]


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([pa.field("n", pa.int32())]),
        pa.schema([pa.field("s", pa.string()), *ONE]),
        pa.schema([*ONE, pa.field("s", pa.string(), nullable=False)]),
        pa.schema([pa.field("m", pa.int64())]),
    ],
    ids=["type", "in front", "required", "name"],
)
def test_any_other_schema_is_refused(world: World, schema: pa.Schema) -> None:
    run(world, ONE, {"a": {"n": 1}})
    with pytest.raises(IncompatibleError, match=r"store `last`.*columns\(n:int64\)"):
        run(world, schema, {})


def test_a_column_that_was_added_stays(world: World) -> None:
    run(world, ONE, {"a": {"n": 1}})
    run(world, MORE, {})
    with pytest.raises(IncompatibleError, match="store `last`"):
        run(world, ONE, {})


def test_a_column_that_the_newest_file_lacks_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "lake" / "rides"
    folder.mkdir(parents=True)
    pa.parquet.write_table(pa.table({"tail": ["N1"], "delay": [1.0]}), folder / "a.parquet")
    world = World(tmp_path / "work", "rides", ("out",))
    options = {"folder": str(tmp_path / "lake"), "listing": str(tmp_path / "listing")}
    world.systems["files"] = FilesSystem.configured("files", options)

    def start(schema: pa.Schema) -> None:
        app = ps.StreamApplication("rides")
        app.input("files.rides", value=ps.Columns(schema)).send_to(app.output("m.out", value=ps.Json()))
        world.make(app.graph(), {}).loop.start()

    with pytest.raises(ConfigError, match=r"newest file of input `files\.rides` has no column `dealy`"):
        start(pa.schema({"tail": pa.string(), "dealy": pa.float64()}))
    start(pa.schema({"tail": pa.string()}))
    world.close()
