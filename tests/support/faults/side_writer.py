"""Writes to a side store until it is killed: `python side_writer.py FOLDER SEED`.

What each step writes follows from its number alone, so that the content is known from the positions.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from penstock.api.ssp import SystemStreamPartition
from penstock.side.engine import SideEngine
from penstock.state.engines.rocksdb import RocksDbEngine

SSP = SystemStreamPartition("local", "names", 0)
KEYS = 300


def entry(step: int) -> tuple[bytes, bytes | None]:
    return f"k{step * 7919 % KEYS:04d}".encode(), None if step % 7 == 3 else f"{step:08d}".encode() * 20


def replay(end: int) -> dict[bytes, bytes]:
    """The content after the steps before `end`."""
    found: dict[bytes, bytes] = {}
    for key, value in map(entry, range(end)):
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found


def open_engine(folder: Path) -> SideEngine:
    """With memory tables so small that RocksDB writes files all the time."""
    return SideEngine(RocksDbEngine(folder, block_cache_bytes=1 << 20, write_buffer_bytes=64 << 10), str(folder))


def reached(engine: SideEngine) -> int:
    """The steps that the content has."""
    return engine.positions.next_offsets.get(SSP, 0)


def main(folder: Path, seed: int) -> None:
    """Without an end."""
    chance = random.Random(seed)
    engine = open_engine(folder)
    print("open", flush=True)
    while True:
        start = reached(engine)
        is_bulk = chance.random() < 0.1
        end = start + (chance.randrange(1000, 2000) if is_bulk else chance.randrange(1, 60))
        # A later step of a key counts.
        entries = dict(map(entry, range(start, end)))
        (engine.load if is_bulk else engine.write)(entries, engine.positions.moved({SSP: end}, end))
        if chance.random() < 0.05:
            engine.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
