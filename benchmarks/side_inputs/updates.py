"""The producer of the benchmark of side inputs: appends updates of a table, and messages, at a steady pace until it is
ended. It runs as a separate process: `python -m benchmarks.side_inputs.updates PARAMETERS.json`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

import penstock as ps
from penstock.system.base import RawRecord
from penstock.system.local import LocalSystem
from penstock.system.partitioner import partitions_of

TICK_S = 0.05


def key_names(keys: int) -> list[str]:
    """The keys of the table."""
    return [f"key-{number:08d}" for number in range(keys)]


def by_partition(names: list[str], partitions: int) -> list[list[str]]:
    """The keys of each partition of the table's stream."""
    where = partitions_of(pa.array(names), partitions)
    return [[names[n] for n in np.flatnonzero(where == partition).tolist()] for partition in range(partitions)]


def update(at: float) -> bytes:
    """A row of the table: when it was made, and something to carry."""
    return orjson.dumps({"at": at, "rate": 1.25, "padding": "x" * 60})


def main(parameters: dict[str, Any]) -> None:
    """Append without an end."""
    system = LocalSystem("local", parameters["streams"])
    writer = system.writer(None)
    chance = np.random.default_rng(7)
    partitions: int = parameters["partitions"]
    own = by_partition(key_names(parameters["keys"]), partitions)
    encoded = [[key.encode() for key in keys] for keys in own]
    next_tick = time.time()
    while True:
        now = time.time()
        value = update(now)
        for partition in range(partitions):
            if parameters["updates_per_s"]:
                picked = chance.integers(0, len(own[partition]), _share(parameters["updates_per_s"], partitions))
                # The first key of each partition changes at every tick: latencies are measured by it.
                rows: list[RawRecord] = [(0, encoded[partition][n], value) for n in [0, *picked[1:].tolist()]]
                writer.append(ps.SystemStreamPartition("local", parameters["table"], partition), rows)
            if parameters["messages_per_s"]:
                asked = own[partition][0]
                picked = chance.integers(0, len(own[partition]), _share(parameters["messages_per_s"], partitions))
                names = [asked, *(own[partition][n] for n in picked[1:].tolist())]
                messages: list[RawRecord] = [
                    (0, None, orjson.dumps({"key": name, "amount": 1.5, "probe": name == asked})) for name in names
                ]
                writer.append(ps.SystemStreamPartition("local", "events", partition), messages)
        next_tick = max(next_tick + TICK_S, time.time() - 1)
        time.sleep(max(0.0, next_tick - time.time()))


def _share(per_second: int, partitions: int) -> int:
    return max(1, round(per_second * TICK_S / partitions))


if __name__ == "__main__":
    main(orjson.loads(Path(sys.argv[1]).read_bytes()))
