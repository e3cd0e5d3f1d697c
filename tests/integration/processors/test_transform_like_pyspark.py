"""Rows of all types, as keys, input and output of a query: transform_with_state gives what PySpark gives."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

import penstock.spark as pss
from tests.support.oracles import beside_pyspark
from tests.support.oracles.beside_pyspark import shown
from tests.support.processes.spark_sessions import Sessions

pytestmark = pytest.mark.spark

PATIENCE_S = 300
KEYS = {
    "PySpark's own state store": (
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    ),
    "one partition": ("spark.sql.shuffle.partitions", "1"),
    "an end of PySpark's query": ("spark.sql.streaming.noDataMicroBatches.enabled", "false"),
    "a zone with an hour that is there twice": ("spark.sql.session.timeZone", "Europe/Berlin"),
}
Found = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def spark(sessions: Sessions) -> Iterator[SparkSession]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    cloudpickle.register_pickle_by_value(beside_pyspark)
    session = sessions.get()
    for key, value in KEYS.values():
        session.conf.set(key, value)
    yield session
    for key, _ in KEYS.values():
        session.conf.unset(key)


class Query:
    """A query over a folder, which runs in either engine until it has read all of it."""

    def __init__(
        self,
        home: Path,
        source: Callable[[], DataFrame],
        make: Callable[[], StatefulProcessor],
        key: list[str],
        output: str,
        mode: str,
        form: str = "row",
        initial: Callable[[], DataFrame] | None = None,
    ) -> None:
        self._home, self._source, self._make, self._key = home, source, make, key
        self._output, self._mode, self._form, self._initial = output, mode, form, initial

    def by_pyspark(self) -> Found:
        groups: Any = self._source().groupBy(*self._key)
        transform = groups.transformWithState if self._form == "row" else groups.transformWithStateInPandas
        initial = None if self._initial is None else self._initial().groupBy(*self._key)
        made = transform(self._make(), self._output, "append", self._mode, initial)
        return self._run("theirs", lambda handle: made.writeStream.foreachBatch(handle))

    def by_penstock(self) -> Found:
        made = pss.transform_with_state(
            self._source(),
            processor=self._make(),
            key=self._key,
            output=self._output,
            time_mode=self._mode,
            form=self._form,  # type: ignore[arg-type]
            initial_state=None if self._initial is None else self._initial().groupBy(*self._key),
            partitions=1,  # an integer column becomes floats where any row of a block is null: one block, as in PySpark
            root=str(self._home / "root"),
        )
        return self._run("ours", lambda handle: made.for_each_batch(handle))

    def _run(self, name: str, writer: Callable[[Any], Any]) -> Found:
        found: Found = []
        made = writer(lambda df, number: found.extend(map(tuple, df.collect())))
        query = made.option("checkpointLocation", str(self._home / name)).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S), "the run must end"
        return sorted(found, key=repr)


def compare(query: Query) -> None:
    expected, found = query.by_pyspark(), query.by_penstock()
    assert found == expected


INPUT = """
    SELECT id, id % 3 AS g, IF(id % 3 = 2, NULL, DATE'2024-02-29') AS kd, CAST(id % 3 AS DECIMAL(10, 2)) AS kc,
        IF(id % 3 = 2, NULL, TIMESTAMP'2024-10-27 02:30:00' + MAKE_INTERVAL(0, 0, 0, 0, 0, 0, id % 3)) AS kt,
        TIMESTAMP_NTZ'2024-10-27 02:30:00' AS kn, id % 3 - 0.5D AS kf, CAST(id % 3 AS FLOAT) AS kg,
        CAST(CAST(id % 3 AS STRING) AS BINARY) AS kb,
        id % 3 = 1 AS ko, CAST(id % 3 AS TINYINT) AS ky, CAST(id % 3 AS INT) AS ki,
        NAMED_STRUCT('a', id % 3, 'b', CAST(NULL AS STRING)) AS ks,
        IF(n, NULL, CAST(id AS TINYINT)) AS tinyint, IF(n, NULL, CAST(id AS SMALLINT)) AS smallint,
        IF(n, NULL, CAST(id AS INT)) AS int, IF(n, NULL, id) AS bigint, IF(n, NULL, CAST(id AS FLOAT) / 3) AS float,
        CAST(id AS INT) AS whole, CAST(id AS FLOAT) AS small, id % 2 = 0 AS even,
        IF(n, NULL, id / 3) AS double, IF(n, NULL, CAST(id / 3 AS DECIMAL(12, 3))) AS dec,
        IF(n, NULL, id % 2 = 0) AS bool, IF(n, NULL, CAST(id AS STRING)) AS str,
        IF(n, NULL, CAST(CAST(id AS STRING) AS BINARY)) AS bin, IF(n, NULL, DATE'2024-02-28' + CAST(id AS INT)) AS date,
        IF(n, NULL, TIMESTAMP'2024-10-27 01:30:00' + MAKE_INTERVAL(0, 0, 0, 0, id, 0, 0.123456)) AS ts,
        IF(n, NULL, TIMESTAMP_NTZ'2024-10-27 01:30:00' + MAKE_DT_INTERVAL(0, id)) AS ntz,
        IF(n, NULL, MAKE_DT_INTERVAL(id, 1, 2, 3.5)) AS dti,
        IF(n, NULL, ARRAY(id, NULL)) AS arr, IF(n, NULL, MAP(STRING(id), TIMESTAMP'2024-01-01 00:00:00')) AS map,
        IF(n, NULL, NAMED_STRUCT('x', id, 'y', ARRAY(NAMED_STRUCT('z', DATE'2024-01-01')))) AS struct,
        ARRAY(NAMED_STRUCT('t', TIMESTAMP'2024-01-01 00:00:00', 'm', MAP(1, 'x'))) AS arrs
    FROM (SELECT id, id % 5 = 4 AS n FROM RANGE(12))
"""
GROUPED = ["kd", "kc", "kt", "kn", "kf", "kg", "kb", "ko", "ky", "ki", "ks"]


class Echo(StatefulProcessor):
    """Returns the rows that it gets, and says of which types keys and rows are."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)
        for row in sorted(rows, key=lambda each: each.id):
            yield Row(**{**row.asDict(), "said": f"{shown(key)} {shown(row)}"})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        yield self.only(f"timer of {shown(key)}")

    def only(self, said: str) -> Row:
        return Row(**{**dict.fromkeys(FIELDS), "said": said})

    def close(self) -> None:
        pass


class EchoFrames(Echo):
    """The same in the pandas form."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)
        for frame in rows:
            found = frame.sort_values("id", ignore_index=True)
            kinds = [(name, str(found[name].dtype), shown(found[name].tolist())) for name in found.columns]
            yield found.assign(said=f"{shown(key)} {kinds}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
        said = f"timer of {shown(key)}"
        yield pd.DataFrame({name: pd.Series([None], dtype=object) for name in FIELDS} | {"said": [said]})


FIELDS: list[str] = []


@pytest.mark.parametrize("form", ["row", pytest.param("pandas", marks=pytest.mark.slow)])
def test_rows_of_all_types(spark: SparkSession, tmp_path: Path, form: str) -> None:
    rows = spark.sql(INPUT)
    FIELDS[:] = rows.schema.names
    rows.coalesce(1).write.parquet(str(tmp_path / "in"))
    schema = StructType(rows.schema.fields).add("said", "string")
    query = Query(
        tmp_path,
        lambda: spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in")),
        Echo if form == "row" else EchoFrames,
        [name for name in GROUPED if form == "row" or name != "kt"],  # in pandas' form PySpark fails at a null time
        ", ".join(f"`{each.name}` {each.dataType.simpleString()}" for each in schema),
        "ProcessingTime",
        form,
    )
    compare(query)
