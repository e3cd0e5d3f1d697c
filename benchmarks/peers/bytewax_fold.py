"""The keyed fold in Bytewax: one process of a cluster, with one worker. Its state is in SQLite files on disk.

The argument is an object of JSON: `files` (a folder), `process`, `addresses`, `work` (a folder), and `prepare`: only
make the files of the recovery. A process appends what it has counted to `counted-<process>`, and writes its totals to
`totals-<process>` when all input has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import bytewax.operators as op
import orjson
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition, batch
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from counting import begin, run_bytewax

GIVEN, WORK, COUNTED = begin(pause_s=0.1)
BATCH = 1000


class Lines(StatefulSourcePartition[tuple[str, float], int]):
    """The lines of some files, one file after the other."""

    def __init__(self, paths: list[Path], done: int | None) -> None:
        self._done = done or 0
        self._batches = batch(self._rows(paths), BATCH)
        for _ in range(self._done):
            next(self._batches)

    def _rows(self, paths: list[Path]) -> Iterator[tuple[str, float]]:
        for path in paths:
            with path.open("rb") as file:
                for line in file:
                    row = orjson.loads(line)
                    yield row["key"], row["amount"]

    def next_batch(self) -> Iterable[tuple[str, float]]:
        found = next(self._batches)
        self._done += 1
        return found

    def snapshot(self) -> int:
        return self._done


class Files(FixedPartitionedSource[tuple[str, float], int]):
    """Every second file is of the same partition."""

    def list_parts(self) -> list[str]:
        return [str(number) for number in range(len(GIVEN["addresses"]))]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Lines:
        return Lines(sorted(Path(GIVEN["files"]).iterdir())[int(for_part) :: len(GIVEN["addresses"])], resume_state)


class Fold(StatefulBatchLogic[float, tuple[int, float], tuple[int, float]]):
    def __init__(self, state: tuple[int, float] | None) -> None:
        self._count, self._sum = state or (0, 0.0)

    def on_batch(self, values: list[float]) -> tuple[list[tuple[int, float]], bool]:
        self._count += len(values)
        self._sum += sum(values)
        COUNTED.messages += len(values)
        return [], StatefulBatchLogic.RETAIN

    def on_eof(self) -> tuple[list[tuple[int, float]], bool]:
        return [(self._count, self._sum)], StatefulBatchLogic.RETAIN

    def snapshot(self) -> tuple[int, float]:
        return self._count, self._sum


class Totals(StatelessSinkPartition[tuple[str, tuple[int, float]]]):
    def write_batch(self, items: list[tuple[str, tuple[int, float]]]) -> None:
        with (WORK / f"totals-{GIVEN['process']}").open("ab") as file:
            file.write(b"".join(orjson.dumps([key, *total]) + b"\n" for key, total in items))


class TotalsSink(DynamicSink[tuple[str, tuple[int, float]]]):
    """One file for each process."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Totals:
        return Totals()


def fold() -> Dataflow:
    """To the end of the files."""
    flow = Dataflow("fold")
    totals = op.stateful_batch("fold", op.input("events", flow, Files()), Fold)
    op.output("totals", totals, TotalsSink())
    return flow


if __name__ == "__main__":
    run_bytewax(GIVEN, fold, 1)
