"""A start whose input declares a column that no message has."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

import penstock as ps
from penstock.errors import ConfigError
from penstock.system.files.system import FilesSystem
from tests.support.world.world import World


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
