"""The events of benchmarks that work batch by batch: made from a seed, written in every form that a side reads, and
computed plainly."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.admin.stream.publish import PublishOptions, publish
from penstock.system.local import LocalSystem

STREAM = "events"
MINUTE_MS = 60_000
BOUND_MS = 10_000
"""The bound of the watermark: events that are not late are out of order by less."""
FIRST_MS = 1_356_998_400_000
"""When the first batch begins: 2013-01-01."""
_LATE_BY_MS = 5 * MINUTE_MS
_IN_TIME_BATCHES = 2
"""Nothing is late in the first two batches: no watermark is known."""
Numbers = npt.NDArray[Any]


def key_name(number: int) -> str:
    """`key-000123`."""
    return f"key-{number:06d}"


def key_names(keys: int) -> pa.Array:
    """The names of all keys, by their numbers."""
    return pa.array(map(key_name, range(keys)), pa.string())


def key_numbers(names: Iterable[str | bytes]) -> Numbers:
    return np.array([int(name[4:]) for name in names], np.int64)


@dataclass(frozen=True, slots=True)
class Workload:
    """Numbers of events, batches and keys."""

    events: int = 2_000_000
    batches: int = 10
    keys: int = 100_000
    seed: int = 20130101
    zipf: float = 0.0
    """The exponent of a Zipf distribution of keys; 0: all keys are as frequent."""

    @property
    def batch_events(self) -> int:
        return self.events // self.batches

    @classmethod
    def of(cls, options: argparse.Namespace, **more: Any) -> Self:
        """As the options of a benchmark say. Exits unless all batches are equal."""
        given = {each.name: getattr(options, each.name) for each in fields(cls) if hasattr(options, each.name)}
        found = cls(**{**given, **more})
        if found.events % (found.batches * options.threads):
            raise SystemExit("--events must be a multiple of --batches times --threads, so that all batches are equal")
        return found

    def parameters(self) -> dict[str, Any]:
        """For a side."""
        return {"workload": asdict(self), "batch_messages": self.batch_events}

    def columns(self) -> tuple[Numbers, Numbers]:
        """The key numbers and amounts of all events, in order.

        Amounts are whole quarters: their sums are exact in any order, so that every side must end with equal totals.
        """
        random = np.random.default_rng(self.seed)
        numbers = random.integers(0, self.keys, self.events, dtype=np.int64)
        if self.zipf:
            numbers = random.zipf(self.zipf, self.events) % self.keys
        return numbers, random.integers(1, 40_000, self.events) / 4.0

    def totals(self) -> tuple[Numbers, Numbers]:
        """The count and the sum of each key, by its number: the state that every side must end with."""
        numbers, amounts = self.columns()
        counts = np.bincount(numbers, minlength=self.keys)
        return counts, np.bincount(numbers, weights=amounts, minlength=self.keys)

    def tables(self) -> Iterator[pa.Table]:
        """Key and amount of each event, batch by batch."""
        (numbers, amounts), names = self.columns(), key_names(self.keys)
        for start in range(0, self.batches * self.batch_events, self.batch_events):
            part = slice(start, start + self.batch_events)
            yield pa.table({"key": names.take(pa.array(numbers[part])), "amount": amounts[part]})

    def records(self) -> Iterator[tuple[str, float]]:
        """Key and amount of each event."""
        for table in self.tables():
            yield from zip(table["key"].to_pylist(), table["amount"].to_pylist(), strict=True)


@dataclass(frozen=True, slots=True)
class WindowWorkload(Workload):
    """A batch has the events of `batch_ms` of event time."""

    events: int = 1_600_000
    batches: int = 8
    batch_ms: int = MINUTE_MS
    late_share: float = 0.05

    @property
    def sizes(self) -> list[int]:
        return [self.batch_events] * self.batches

    def by_batch(self) -> Iterator[tuple[Numbers, Numbers, Numbers, Numbers]]:
        """For each batch the key numbers, event times and amounts of its events, in order, and which are late."""
        for number, size in enumerate(self.sizes):
            random = np.random.default_rng((self.seed, number))
            keys = random.integers(0, self.keys, size, dtype=np.int64)
            amounts = random.integers(1, 40_000, size) / 4.0
            start = FIRST_MS + number * self.batch_ms
            times = start + np.arange(size, dtype=np.int64) * self.batch_ms // max(1, size)
            times -= random.integers(0, BOUND_MS, size)
            late = random.random(size) < (self.late_share if number >= _IN_TIME_BATCHES else 0)
            times[late] -= max(_LATE_BY_MS, 3 * self.batch_ms)
            yield keys, times, amounts, late

    def tables(self) -> Iterator[pa.Table]:
        """Key, time and amount of each event, batch by batch."""
        names = key_names(self.keys)
        for keys, times, amounts, _ in self.by_batch():
            yield pa.table({"key": names.take(pa.array(keys)), "time": times, "amount": amounts})

    def panes(self) -> tuple[Numbers, ...]:
        """The panes that every side must emit: columns of keys, starts, counts and means."""
        found = [(k[~late], t[~late], a[~late]) for k, t, a, late in self.by_batch()]
        keys, times, amounts = (np.concatenate(column) for column in zip(*found, strict=True))
        minutes = times // MINUTE_MS
        first = minutes.min()
        cells, cell = np.unique((minutes - first) * self.keys + keys, return_inverse=True)
        counts = np.bincount(cell)
        starts = (cells // self.keys + first) * MINUTE_MS
        return _in_order(cells % self.keys, starts, counts, np.bincount(cell, weights=amounts) / counts)


def _in_order(keys: Numbers, starts: Numbers, *more: Numbers) -> tuple[Numbers, ...]:
    order = np.lexsort((keys, starts))
    return tuple(column[order] for column in (keys, starts, *more))


def write_file(folder: Path, number: int, table: pa.Table, form: str = "parquet", **options: Any) -> Path:
    """A file of rows, Parquet or lines of JSON, which is there as a whole.

    Modification times are a second apart: Spark reads the oldest first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:06d}.{form}"
    hidden = path.with_name(f".{path.name}")
    if form == "json":
        hidden.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in table.to_pylist()))
    else:
        pq.write_table(table, hidden, **options)
    os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
    return hidden.rename(path)


def write_inputs(
    tables: Iterable[pa.Table], folder: Path, partitions: int, forms: Sequence[str] = ("streams", "json", "parquet")
) -> Path:
    """Write batches in folders with the names of the forms.

    `json` and `parquet` have a file for each batch; what ends with `/events` has one for each batch and partition. The
    local stream in `streams` is made of `json`.
    """
    system = LocalSystem("local", str(folder / "streams"))
    if "streams" in forms:
        system.admin().create_stream(STREAM, partitions)
    for number, table in enumerate(tables):
        for name in forms:
            form = "json" if name.startswith("json") else "parquet"
            if name.endswith("/events"):
                for part in range(partitions):
                    own = table.take(np.arange(part, table.num_rows, partitions))
                    write_file(folder / name, number * partitions + part, own, form)
            elif name != "streams":
                write_file(folder / name, number, table, form)
        if "streams" in forms:
            publish(system, STREAM, str(folder / "json" / f"{number:06d}.json"), PublishOptions())
    return folder


def write_windows(workload: WindowWorkload, folder: Path, partitions: int, forms: Sequence[str]) -> None:
    """Write the events, and for Spark a last file with one later event, which closes all windows."""
    write_inputs(workload.tables(), folder, partitions, forms)
    last = FIRST_MS + (workload.batches + 60) * max(workload.batch_ms, MINUTE_MS)
    closing = pa.table({"key": [key_name(0)], "time": [last], "amount": [0.25]})
    for form in forms:
        if form.startswith(("json", "parquet")):
            write_file(folder / form, workload.batches, closing, form.removesuffix("-short"))


def compare(workload: Workload, names: Sequence[str | bytes], counts: Any, sums: Any) -> dict[str, Any]:
    """The number of keys that were found, and whether their totals are those of a plain computation."""
    wanted = workload.totals()
    found = tuple(map(np.zeros_like, wanted))
    numbers = key_numbers(names)
    found[0][numbers], found[1][numbers] = counts, sums
    wrong = np.flatnonzero((found[0] != wanted[0]) | (found[1] != wanted[1]))
    examples = (f"{key_name(n)}: {found[0][n]}, {found[1][n]} of {wanted[0][n]}, {wanted[1][n]}" for n in wrong[:3])
    return {
        "equal": not len(wrong) and len(names) == int(np.count_nonzero(wanted[0])),
        "keys": len(names),
        "wrong_keys": len(wrong),
        "examples": list(examples),
    }


def compare_files(workload: WindowWorkload, folder: Path, columns: Sequence[str]) -> dict[str, Any]:
    """Compare the panes of Parquet files, whose columns have these names."""
    import pyarrow.dataset as ds  # not above: containers do without it

    panes = ds.dataset(folder, format="parquet", exclude_invalid_files=True).to_table()
    return compare_panes(workload, *(panes[name] for name in columns))


def compare_panes(workload: WindowWorkload, names: Iterable[Any], *columns: Any) -> dict[str, Any]:
    """The number of panes on both sides, and whether all of them (starts, counts and means) are equal."""
    found, wanted = _in_order(key_numbers(map(str, names)), *map(np.asarray, columns)), workload.panes()
    return {
        "equal": all(map(np.array_equal, found, wanted)),
        "panes": len(found[0]),
        "expected_panes": len(wanted[0]),
        "messages": int(found[2].sum()),
        "expected_messages": int(wanted[2].sum()),
    }
