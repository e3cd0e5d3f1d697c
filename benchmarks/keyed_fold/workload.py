"""The events of the keyed fold: made from a seed, written in every form a side reads, and summed up plainly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.admin.stream.publish import PublishOptions, publish
from penstock.system.local import LocalSystem

STREAM = "events"
Totals = dict[str, tuple[int, float]]
"""Key -> (count, sum)."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Numbers of events, batches and keys."""

    events: int = 2_000_000
    batches: int = 10
    keys: int = 100_000
    seed: int = 20130101

    @property
    def batch_events(self) -> int:
        """Events of one batch."""
        return self.events // self.batches

    def check(self, threads: int) -> None:
        """Exit unless all batches are equal."""
        if self.events % (self.batches * threads):
            raise SystemExit("--events must be a multiple of --batches times --threads, so that all batches are equal")

    def columns(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The key numbers and amounts of all events, in order.

        Amounts are whole quarters: their sums are exact in any order, so that every side must end with equal totals.
        """
        random = np.random.default_rng(self.seed)
        numbers = random.integers(0, self.keys, self.events, dtype=np.int64)
        amounts = random.integers(1, 40_000, self.events) / 4.0
        return numbers, amounts

    def totals(self) -> Totals:
        """The state that every side must end with."""
        numbers, amounts = self.columns()
        counts = np.bincount(numbers, minlength=self.keys).tolist()
        sums = np.bincount(numbers, weights=amounts, minlength=self.keys).tolist()
        return {key_name(n): (c, s) for n, (c, s) in enumerate(zip(counts, sums, strict=True)) if c}

    def records(self) -> Iterator[tuple[list[str], list[float]]]:
        """Keys and amounts, batch by batch."""
        numbers, amounts = self.columns()
        names = [key_name(number) for number in range(self.keys)]
        for start in range(0, self.batches * self.batch_events, self.batch_events):
            part = slice(start, start + self.batch_events)
            yield [names[number] for number in numbers[part].tolist()], amounts[part].tolist()


def key_name(number: int) -> str:
    """`key-000123`."""
    return f"key-{number:06d}"


@dataclass(frozen=True, slots=True)
class Inputs:
    """Where the events lie: JSON lines and Parquet, a file a batch, and a local stream's folder."""

    folder: Path

    @property
    def streams(self) -> Path:
        """The folder of the local system."""
        return self.folder / "streams"

    def files(self, form: str) -> Path:
        """The folder of the files of a form: `json` or `parquet`."""
        return self.folder / form


def write_inputs(workload: Workload, folder: Path, partitions: int) -> Inputs:
    """Write the events in all forms. Modification times are a second apart: Spark reads the oldest file first."""
    inputs = Inputs(folder)
    system = LocalSystem("local", str(inputs.streams))
    system.admin().create_stream(STREAM, partitions)
    for form in ("json", "parquet"):
        inputs.files(form).mkdir(parents=True)
    for number, (keys, amounts) in enumerate(workload.records()):
        lines = inputs.files("json") / f"{number:04d}.json"
        rows = (orjson.dumps({"key": k, "amount": a}) for k, a in zip(keys, amounts, strict=True))
        lines.write_bytes(b"\n".join(rows) + b"\n")
        table = inputs.files("parquet") / f"{number:04d}.parquet"
        pq.write_table(pa.table({"key": pa.array(keys, pa.string()), "amount": amounts}), table)
        for path in (lines, table):
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        publish(system, STREAM, str(lines), PublishOptions())
    return inputs


def compare(found: Totals, expected: Totals) -> dict[str, Any]:
    """Totals of both, and whether they are equal in every key."""
    wrong = [key for key in expected.keys() | found.keys() if found.get(key) != expected.get(key)]
    return {
        "equal": not wrong,
        "keys": len(found),
        "count": sum(count for count, _ in found.values()),
        "sum": sum(total for _, total in found.values()),
        "wrong_keys": len(wrong),
        "examples": [f"{key}: found {found.get(key)}, expected {expected.get(key)}" for key in sorted(wrong)[:3]],
    }
