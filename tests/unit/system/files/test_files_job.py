"""A whole job that reads a folder while files come, and whose driver dies at any step: every row counts once, and who
reads its output sees whole commits."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

import penstock as ps
from penstock import admin
from penstock.checkpoint.log import CheckpointLog
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.errors import PenstockError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.state.reading.reader import read_store
from penstock.system.base import OffsetRange
from penstock.system.files.admin import FilesAdmin
from penstock.system.files.manifests import PartitionLog
from penstock.system.registry import open_systems
from penstock.testing.in_process import InProcessDriver
from tests.support.tools.cli import call

STEPS = ("publish", "append", "show", "shown", "source", "stage 1", "end", "snapshot", "upload", "clean-up", "open")
Sums = dict[str, tuple[int, int]]
"""By place, the number of rows and the sum of their numbers."""


class DeadError(PenstockError):
    """The driver has died."""


class Dies:
    """The `count`th time that a step comes, and from then on, everything raises."""

    def __init__(self, step: str, count: int, look: Callable[[], None]) -> None:
        self._step, self._left, self._look = step, count, look

    def __call__(self, step: str) -> None:
        if step in ("append", "show", "shown"):
            self._look()
        self._left -= step == self._step and self._left > 0
        if not self._left:
            raise DeadError(f"dead at {step}")


class Counts(ps.StreamTask):
    """The number of rows of each place, and the sum of their numbers."""

    def init(self, context: ps.TaskContext) -> None:
        self.counts = context.store("counts")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        rows, total = self.counts.get(envelope.key, (0, 0))
        self.counts.put(envelope.key, [rows + 1, total + envelope.value["n"]])


def application() -> ps.StreamApplication:
    app = ps.StreamApplication("places")
    app.store("counts", key=ps.String(), value=ps.Json())
    rides = app.input("in.rides").partition_by(lambda ride: ride["place"], key=ps.String())
    rides.process(Counts, stores=["counts"])
    rides.send_to(app.output("out.copies", value=ps.Json()))
    return app


def run(config: JobConfig, dies: Dies) -> None:
    """A driver that reads everything there is, or dies."""
    objects, systems = open_store(config.job.root), open_systems(config)
    with closing(InProcessDriver(application().graph(), config, objects, systems, until_latest=True)) as driver:
        driver.fleet.at = driver.runner.at = dies
        driver.loop.run()


def sums(rows: Iterable[Mapping[str, Any]]) -> Sums:
    found: Sums = {}
    for row in rows:
        count, total = found.get(row["place"], (0, 0))
        found[row["place"]] = count + 1, total + row["n"]
    return found


def states(config: JobConfig) -> list[Sums]:
    """The state at each checkpoint."""
    with closing(open_store(config.job.root)) as objects:
        records = CheckpointLog(objects, JobPaths(config.job.name, config.job.id)).read().restorable
    return [
        {key.decode(): tuple(json.loads(value)) for _, key, value in read_store(config, "counts", record)}
        for record in records
    ]


def copies(config: JobConfig) -> list[dict[str, Any]]:
    """The rows of the output, as a job would read them."""
    system = open_systems(config)["out"]
    with closing(system.admin()) as admin, closing(system.reader()) as reader:
        return [
            json.loads(message[3] or b"")
            for partition, ends in admin.offsets("copies").items()
            for chunk in reader.read(
                OffsetRange(ps.SystemStreamPartition("out", "copies", partition), 0, ends.upcoming), 50
            )
            for message in chunk
        ]


def put(folder: Path, rng: random.Random, name: str) -> None:
    """A file, of any size, below a folder for its day."""
    rows = [{"place": rng.choice("abcd"), "n": rng.randrange(100)} for _ in range(rng.randrange(1, 400))]
    day = folder / f"day={rng.randrange(3)}"
    day.mkdir(parents=True, exist_ok=True)
    pa.parquet.write_table(pa.Table.from_pylist(rows), day / f".{name}", row_group_size=60)
    (day / f".{name}").rename(day / f"{name}.parquet")


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_rows_count_once_and_commits_are_whole(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(kind)
    overrides: dict[str, object] = {
        "job.name": "places",
        "job.root": str(tmp_path / "jobs"),
        "job.batch.max.messages": 150,
        "task.commit.ms": 0,
        "task.checkpoint.retained": "900",
        "job.retry.max": 1,
        "systems.in.samza.factory": "files",
        "systems.in.folder": str(tmp_path / "data"),
        "systems.in.partitions": 2,
        "systems.out.samza.factory": "files",
        "systems.out.folder": str(tmp_path / "out"),
        "systems.out.schema": "place STRING, n INT, day STRING",
        "systems.out.format": kind,
        "systems.out.partitions": 2,
        "streams.out.copies.output.guarantee": "exactly-once",
    }
    environ = {"PENSTOCK_HOME": str(tmp_path / "home")}
    config = load_config(overrides=overrides, environ=environ)
    reader = {key: value for key, value in overrides.items() if key.startswith("systems.out")}
    another = load_config(
        overrides={**reader, "job.name": "reader", "job.root": str(tmp_path / "other jobs")}, environ=environ
    )
    seen: list[Sums] = []
    published, append = FilesAdmin.published, PartitionLog.append

    def publishing(*arguments: Any) -> None:
        dies("show")
        published(*arguments)
        dies("shown")

    def appending(*arguments: Any) -> Any:
        done = append(*arguments)
        if arguments[3] is not None:
            dies("append")
        return done

    monkeypatch.setattr(FilesAdmin, "published", publishing)
    monkeypatch.setattr(PartitionLog, "append", appending)
    folder = tmp_path / "data" / "rides"
    deaths = 0
    lives = [*rng.sample(STEPS, 6), ""]  # the last one ends
    for life, step in enumerate(lives):
        for number in range(rng.randrange(1, 4)):
            put(folder, rng, f"{life}-{number}")
        dies = Dies(step, rng.randrange(1, 6), lambda: seen.append(sums(copies(another))))
        try:
            run(config, dies)
        except PenstockError:
            deaths += 1
            assert step
    assert deaths
    committed = states(config)
    assert len({str(each) for each in seen}) > 3
    assert [each for each in seen if each and each not in committed] == [], "a part of a commit was seen"
    table = pa.dataset.dataset(folder, partitioning="hive").to_table(columns=["place", "n"])
    expected = sorted((row["place"], row["n"]) for row in table.to_pylist())
    assert sorted((row["place"], row["n"]) for row in copies(config)) == expected
    assert committed[-1] == sums(table.to_pylist())


def test_a_folder_is_behind_by_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of their rows is unknown until they are read."""
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    overrides = {
        "job.root": str(tmp_path / "jobs"),
        "job.batch.max.messages": 4,
        "systems.in.samza.factory": "files",
        "systems.in.folder": str(tmp_path / "data"),
        "systems.in.partitions": 1,
    }
    config, folder = load_config(overrides={**overrides, "job.name": "places"}), tmp_path / "data" / "rides"
    app = ps.StreamApplication("places")
    app.store("counts", key=ps.String(), value=ps.Json())
    app.input("in.rides").partition_by(lambda ride: ride["place"], key=ps.String()).process(Counts, stores=["counts"])
    rows, behind = pa.Table.from_pylist([{"place": "a", "n": n} for n in range(6)]), []
    folder.mkdir(parents=True)
    for name in "ab":
        pa.parquet.write_table(rows, folder / f"{name}.parquet")
    objects, systems = open_store(config.job.root), open_systems(config)
    with closing(InProcessDriver(app.graph(), config, objects, systems, until_latest=True)) as driver:
        driver.runner.at = lambda step: behind.append(driver.board.last.behind) if driver.board.last else None
        driver.loop.run()
        assert list(dict.fromkeys(behind)) == ["2 files", "1 file"]
        assert driver.board.last is not None
        assert (driver.board.last.behind, driver.board.remaining) == ("", None)
    for name in "cd":
        pa.parquet.write_table(rows, folder / f"{name}.parquet")
    with admin.open_job("places", overrides=overrides) as job:
        (found,) = admin.status(job).inputs
    assert (found.lag, found.lag_unit) == (2, "file")
    shown, _ = call(
        "status", "places", *(part for each in overrides.items() for part in ("-c", "=".join(map(str, each))))
    )
    assert "2 files" in shown
    assert "offsets of" not in shown
