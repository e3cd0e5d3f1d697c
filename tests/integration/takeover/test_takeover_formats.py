"""State in every form that Spark has kept it in, taken over: what Spark itself read of it is the oracle."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructType

import penstock.spark as pss
from penstock.errors import IncompatibleError, PenstockError
from tests.support.oracles import beside_pyspark
from tests.support.oracles.beside_pyspark import run_in_pyspark, taken_over
from tests.support.oracles.processors import spec_of
from tests.support.stores.spark_state import GOLDEN, golden_location
from tests.unit.spark.takeover.test_takeover import KEYS, Reads, spec

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("case", ["tws-lz4", pytest.param("tws-zstd-ids", marks=pytest.mark.slow)])
def test_a_batch_is_taken_over_as_spark_has_it(spark: SparkSession, case: str, tmp_path: Path) -> None:
    """Snapshots and changelogs, with checkpoint ids and without."""
    expected = json.loads((GOLDEN / case / "expected.json").read_text())
    golden_location(case, tmp_path / "location")
    for batch in (1, 4):
        task = taken_over(spark, spec(), tmp_path / "location", batch)
        found = {row["k"]: json.loads(row["said"]) for row in task.batch([{"k": key} for key in KEYS], 1)}
        entries = {name: [json.loads(entry)[1:] for entry in batches[str(batch)]] for name, batches in expected.items()}
        for key in KEYS:
            total, seen, last, kept, timers = found[key]
            assert [total] == [value for (k,), value in entries["total"] if k == key] or total is None
            assert seen == next((value for (k,), value in entries["seen"] if k == key), [])
            assert last == sorted([p, n] for ((k,), (p,)), (n,) in entries["last"] if k == key)
            assert kept == ([1.5] if any(k == key for (k,), _ in entries["kept"]) else None)
            assert bool(timers) == bool(kept)
        assert sum(total is not None for total, *_ in found.values()) == len(entries["total"])


def test_a_location_that_was_moved_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """PySpark does not start there either."""
    golden_location("tws-lz4", tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "moved")
    made = pss.transform_with_state(
        spark.readStream.schema("k STRING").parquet(str(tmp_path)),
        processor=Reads(),
        key="k",
        output="k STRING, said STRING",
        time_mode="ProcessingTime",
        root=str(tmp_path / "root"),
        import_state=True,
    ).for_each_batch(print)
    with pytest.raises(PenstockError, match="Put the checkpoint location back where PySpark had it"):
        made.option("checkpointLocation", str(tmp_path / "moved")).start()


KEY = StructType().add("k", StringType())
ROWS = StructType().add("k", StringType()).add("v", LongType())
OLD = StructType().add("n", LongType())
NEW = StructType().add("n", LongType()).add("s", StringType())
OUT = StructType().add("k", StringType()).add("said", StringType())


class Grows(StatefulProcessor):
    """Has values of a schema, and says what it read."""

    def __init__(self, schema: StructType, value: tuple[Any, ...]) -> None:
        self.schema, self.value = schema, value

    def init(self, handle: Any) -> None:
        self.one = handle.getValueState("one", self.schema)
        self.all = handle.getListState("all", self.schema)
        self.map = handle.getMapState("map", OLD, self.schema)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        for row in sorted(row.v for row in rows):
            found = self.one.get(), list(self.all.get()), sorted([*k, *v] for k, v in self.map.iterator())
            self.one.update((row, *self.value))
            self.all.appendValue((row, *self.value))
            self.map.updateValue((row,), (row, *self.value))
            yield Row(k=key[0], said=json.dumps(found))

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_values_of_older_schemas_in_avro(spark: SparkSession, tmp_path: Path) -> None:
    for module in (sys.modules[__name__], beside_pyspark):
        cloudpickle.register_pickle_by_value(module)
    location, encoding = tmp_path / "location", "spark.sql.streaming.stateStore.encodingFormat"
    spark.conf.set(encoding, "avro")
    try:
        steps = [(Grows(OLD, ()), "ab"), (Grows(NEW, ("new",)), "bc"), (Grows(NEW, ("newer",)), "abc")]
        for number, (processor, keys) in enumerate(steps):
            rows = [{"k": k, "v": number * 10 + v} for k in keys for v in range(2)]
            (tmp_path / "in").mkdir(exist_ok=True)
            (tmp_path / "in" / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
            if number == 2:
                task = taken_over(spark, spec_of(processor, ["k"], ROWS, OUT), location, 1)
                with pytest.raises(IncompatibleError, match="declare what the state has"):
                    taken_over(spark, spec_of(Grows(OLD, ()), ["k"], ROWS, OUT), location, 1)
            events = spark.readStream.schema(ROWS).json(str(tmp_path / "in"))
            found = run_in_pyspark(events, location, processor, ["k"], OUT, "None")
    finally:
        spark.conf.unset(encoding)
    expected = sorted((row.k, row.said) for row in found[2])
    assert sorted((row["k"], row["said"]) for row in task.batch(rows)) == expected
