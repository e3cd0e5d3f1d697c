"""The golden state of Spark queries, and entries in the form its expectations have."""

from __future__ import annotations

import json
import re
import shutil
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from penstock.spark.state_import.reader import SparkState
from tests.support.tools import places

GOLDEN = places.GOLDEN / "spark_state"


def golden_location(case: str, target: Path) -> None:
    """Copy a golden checkpoint location to where Spark can read it: its operators' metadata name the files of the
    state's schema by their whole paths."""
    shutil.copytree(GOLDEN / case / "checkpoint", target)
    for metadata in target.glob("state/*/_metadata/v2/*"):
        text = re.sub(
            r"file:/[^\"]*/checkpoint/state/", f"{target.as_uri().replace(':///', ':/')}/state/", metadata.read_text()
        )
        metadata.write_text(text)


def read_plain(state: SparkState, scratch: Path) -> list[str]:
    """All entries, each with its partition, as `make_spark_state.py` writes what Spark read."""
    decode = state.decoder()
    return sorted(
        json.dumps([partition, *map(plain, decode(*entry))], ensure_ascii=False)
        for partition in range(state.store.partitions)
        for entry in state.entries(partition, scratch)
    )


def plain(value: Any) -> Any:
    """A value as JSON has it; a row or dict of columns as the list of its values, so that names may be alike."""
    match value:
        case tuple() | list():
            return [plain(each) for each in value]
        case dict():
            return [plain(each) for each in value.values()]
        case datetime():
            return value.replace(tzinfo=None).isoformat()
        case date() | Decimal():
            return str(value)
        case bytes() | bytearray():
            return value.hex()
        case _:
            return value


class OneFile:
    """A checkpoint location in which every file is the same."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def get(self, key: str, /) -> bytes:
        return self._data

    def list(self, prefix: str, /) -> list[str]:
        return []
