"""The golden state of Spark queries, and entries in the form its expectations have."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from penstock.state.spark.reader import SparkState
from tests.support import places

GOLDEN = places.GOLDEN / "spark_state"


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
