"""Jobs that take over from each other send each row once into every kind of system."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.config import load_config
from penstock.system.base import OffsetRange
from penstock.system.lake.system import DeltaSystem, IcebergSystem
from penstock.system.registry import open_systems
from tests.support.world.deployed_world import PANES, TOTALS, DeployedWorld, own_place, sorted_messages
from tests.support.world.lake_world import Kind, options_of, rows_of

_TABLES = f"""
CREATE TABLE {TOTALS} (word TEXT, total INTEGER, PRIMARY KEY (word, total));
CREATE TABLE seen (word TEXT, total INTEGER);
CREATE TRIGGER added AFTER INSERT ON {TOTALS} BEGIN INSERT INTO seen VALUES (new.word, new.total); END;
CREATE TRIGGER changed AFTER UPDATE ON {TOTALS} BEGIN INSERT INTO seen VALUES (new.word, new.total); END;
"""


@dataclass(frozen=True)
class Output:
    """A system, and what its readers see of the rows."""

    options: dict[str, Any]
    rows: Callable[[], list[tuple[str, int]]]

    @property
    def keys(self) -> dict[str, Any]:
        return {f"systems.out.{key}": value for key, value in self.options.items()}


def _lake(kind: Kind, folder: Path) -> Output:
    options = options_of(kind, folder)
    lake = (DeltaSystem if kind == "delta" else IcebergSystem).configured("out", options)
    return Output(
        {"samza.factory": kind, **options}, lambda: [(row["word"], row["total"]) for row in rows_of(lake, TOTALS)]
    )


def _database(folder: Path) -> Output:
    file = folder / "sums.db"
    with closing(sqlite3.connect(file)) as database:
        database.executescript(_TABLES)

    def rows() -> list[tuple[str, int]]:
        with closing(sqlite3.connect(file)) as database:
            return database.execute("SELECT word, total FROM seen").fetchall()

    return Output({"samza.factory": "database", "url": f"sqlite:///{file}"}, rows)


def _files(folder: Path) -> Output:
    options = {"samza.factory": "files", "folder": str(folder), "schema": "word STRING, total BIGINT", "partitions": 2}
    keys = {f"systems.out.{key}": value for key, value in options.items()}
    ssp = partial(SystemStreamPartition, "out", TOTALS)

    def rows() -> list[tuple[str, int]]:
        system = open_systems(load_config(overrides=keys, default_job_name="reader"))["out"]
        with closing(system.admin()) as admin, closing(system.reader()) as reader:
            found = [
                json.loads(message[3] or b"")
                for partition, ends in admin.offsets(TOTALS).items()
                for chunk in reader.read(OffsetRange(ssp(partition), ends.oldest, ends.upcoming), 10_000)
                for message in chunk
            ]
        return [(row["word"], row["total"]) for row in found]

    return Output(options, rows)


OUTPUTS: dict[str, Callable[[Path], Output]] = {
    "files": _files,
    "delta": lambda folder: _lake("delta", folder),
    "iceberg": lambda folder: _lake("iceberg", folder),
    "database": _database,
}


@pytest.fixture(params=OUTPUTS)
def output(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Output:
    own_place(tmp_path, monkeypatch)
    (tmp_path / "out").mkdir()
    return OUTPUTS[request.param](tmp_path / "out")


@pytest.mark.few(1)
@pytest.mark.parametrize("life", range(3))
def test_each_row_is_sent_once_whatever_dies(output: Output, life: int) -> None:
    once = {f"streams.{name}.output.guarantee": "exactly-once" for name in (f"out.{TOTALS}", f"local.{PANES}")}
    world = DeployedWorld(life, {}, "out", **output.keys, **once)
    world.live(80)
    world.finish()
    assert sorted_messages(output.rows()) == sorted_messages(world.expected_totals())


@pytest.mark.few(1)
def test_nothing_is_sent_twice_at_least_once_where_nothing_dies(output: Output) -> None:
    world = DeployedWorld(5, {}, "out", **output.keys)
    for _ in range(2):
        world.begin_deployment()
        for _ in range(100):
            if world.deployment is None:
                break
            for act in (world.publish, world.step_job, world.step_follower, world.step_deployment):
                act()
    assert world.seen["over"] == 2
    world.finish()
    assert sorted_messages(output.rows()) == sorted_messages(world.expected_totals())
