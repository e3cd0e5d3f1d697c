"""The job of sums with an exactly-once output in a table of a lake."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

from penstock.system.lake.system import DeltaSystem, IcebergSystem, LakeSystem
from tests.support.world.once_world import OnceWorld

Kind = Literal["delta", "iceberg"]
SCHEMA = "word STRING, total BIGINT"
logging.getLogger("pyiceberg").setLevel(logging.ERROR)


def options_of(kind: Kind, folder: Path, **more: str) -> dict[str, str]:
    """The options of a system with its tables in a folder."""
    if kind == "delta":
        return {"folder": str(folder / "tables"), "schema": SCHEMA, **more}
    folder.mkdir(exist_ok=True)
    return {
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{folder}/catalog.db",
        "catalog.warehouse": f"file://{folder}/warehouse",
        "schema": SCHEMA,
        **more,
    }


def lake_of(kind: Kind, folder: Path, **more: str) -> LakeSystem:
    system = DeltaSystem if kind == "delta" else IcebergSystem
    return system.configured("lake", options_of(kind, folder, **more))


def rows_of(lake: LakeSystem, stream: str) -> list[dict[str, Any]]:
    """Everything that readers of the table see."""
    table: Any = lake.lake.open(stream)
    found = table._table.to_pyarrow_table() if isinstance(lake, DeltaSystem) else table._table.scan().to_arrow()
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


class LakeWorld(OnceWorld):
    """The output is a table."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        super().__init__(folder)
        self.lake = lake_of(kind, folder / "lake")
        rows = self.sums_of().map(lambda sent: {"word": sent.key, "total": sent.value}, envelope=True)
        rows.send_to(self.app.output("lake.sums"))
        options = {"samza.factory": kind, **options_of(kind, folder / "lake")}
        self.write_to("lake", "sums", self.lake, {f"systems.lake.{key}": text for key, text in options.items()})

    def output(self) -> list[tuple[str, int]]:
        return [(row["word"], row["total"]) for row in rows_of(self.lake, "sums")]
