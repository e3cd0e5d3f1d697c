"""Takes the state that PySpark keeps into the backups of a job's first checkpoint, all of it in Spark's tasks.

Spark's own reader shows the state: it knows every file system and encoding. One Spark job reads all state variables and
makes entries of them, brings those of each store and task together, and backs each of these parts up.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.checkpoint.versions.value import Markers
from penstock.spark.state_frames.by_part import ENTRY, SETTINGS, Made, entries_batch, make_parts
from penstock.spark.state_frames.stored_state import worker_scratch
from penstock.spark.state_import.first_backup import FirstBackup
from penstock.spark.takeover.from_spark import Convert
from penstock.spark.workers.arrow_frames import map_in_arrow
from penstock.system.partitioner import partitions_of

_SETTINGS = {**SETTINGS, "spark.sql.session.timeZone": "UTC"}
_IDS = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_MOST, _MOST_BYTES = 4096, 16 << 20


class SparkReader:
    """Reads the state of a stateful operator as of a batch, as DataFrames."""

    def __init__(self, spark: SparkSession, location: str, operator: int, batch: int, *, has_ids: bool) -> None:
        """
        Args:
            has_ids: True if Spark keeps the state with checkpoint ids. Its reader goes by the session's setting.
        """
        self.spark = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())  # noqa: SLF001
        for name, value in {**_SETTINGS, _IDS: "2" if has_ids else "1"}.items():
            self.spark.conf.set(name, value)
        self._options = {"path": location, "operatorId": str(operator), "batchId": str(batch)}

    def variable(self, name: str) -> DataFrame:
        """A state variable: a row for each value, entry of a map, or element of a list."""
        return self._frame(stateVarName=name, flattenCollectionTypes="true")

    def timers(self) -> DataFrame:
        return self._frame(readRegisteredTimers="true")

    def _frame(self, **options: str) -> DataFrame:
        return self.spark.read.format("statestore").options(**self._options, **options).load()


@dataclass(frozen=True, slots=True)
class StateRowsSource:
    """The rows of Spark's reader that become the entries of a store."""

    rows: DataFrame
    convert: Convert


def back_up(
    spark: SparkSession,
    sources: Mapping[str, StateRowsSource],
    heads: Mapping[str, Mapping[bytes, bytes]],
    first: FirstBackup,
) -> tuple[dict[int, Markers], dict[str, int]]:
    """Make all backups. Returns the markers by task, and the number of entries by store.

    Args:
        spark: the session in which it is done.
        sources: by store. A store without any is empty.
        heads: what stores have in each task besides.
    """
    parts = first.tasks * len(first.stores)
    done = make_parts(spark, entries_of(sources, first.stores, first.tasks), parts, _BackUp(first, heads))
    markers: dict[int, dict[str, dict[str, str]]] = {task: {} for task in range(first.tasks)}
    counts = dict.fromkeys(first.stores, 0)
    for part, row in done.items():
        task, store = part // len(first.stores), first.stores[part % len(first.stores)]
        counts[store] += row.entries
        for backend, marker in orjson.loads(row.result).items():
            markers[task].setdefault(backend, {})[store] = marker
    return dict(markers), counts


def entries_of(sources: Mapping[str, StateRowsSource], stores: tuple[str, ...], tasks: int) -> list[DataFrame]:
    """The entries of each source, with the columns part, key and value. The part of a store and task is `task *
    len(stores) +` the number of the store."""
    return [
        map_in_arrow(source.rows, _Spread(source.convert, tasks, stores.index(store), len(stores)), ENTRY)
        for store, source in sources.items()
    ]


@dataclass(frozen=True, slots=True)
class _Spread:
    """A function for `map_in_arrow`: entries from the rows of a reader."""

    convert: Convert
    tasks: int
    store: int
    stores: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        owners, keys, values, size = list[bytes](), list[bytes](), list[bytes](), 0
        for owner, key, value in self.convert(batches):
            owners.append(owner)
            keys.append(key)
            values.append(value)
            size += len(key) + len(value)
            if len(keys) == _MOST or size > _MOST_BYTES:
                yield self._batch(owners, keys, values)
                owners, keys, values, size = [], [], [], 0
        if keys:
            yield self._batch(owners, keys, values)

    def _batch(self, owners: list[bytes], keys: list[bytes], values: list[bytes]) -> pa.RecordBatch:
        parts = partitions_of(pa.array(owners, pa.binary()), self.tasks) * self.stores + self.store
        return entries_batch(parts, keys, values)


@dataclass(frozen=True, slots=True)
class _BackUp:
    """Backs up parts, in Spark's workers."""

    first: FirstBackup
    heads: Mapping[str, Mapping[bytes, bytes]]

    def __call__(self, parts: Iterator[tuple[int, Iterator[tuple[bytes, bytes]]]]) -> Iterator[Made]:
        stores = self.first.stores
        with worker_scratch() as scratch:
            for part, rows in parts:
                task, store = part // len(stores), stores[part % len(stores)]
                counted = _CountedEntries(rows)
                entries = chain(self.heads.get(store, {}).items(), counted)
                with tempfile.TemporaryDirectory(prefix="part-", dir=scratch, ignore_cleanup_errors=True) as folder:
                    markers = self.first.run(task, store, entries, Path(folder))
                yield part, counted.count, orjson.dumps(markers).decode()


class _CountedEntries:
    """Counts entries while they are read, without those of an index, which have no value."""

    def __init__(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        self._entries = entries
        self.count = 0

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for entry in self._entries:
            self.count += bool(entry[1])
            yield entry
