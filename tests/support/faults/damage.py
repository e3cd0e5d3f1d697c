"""Files of RocksDB that tests damage."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def written_tables(folder: Path, store: str) -> list[Path]:
    """The tables of open stores that have content; `store` may be a pattern.

    RocksDB makes a file some time before it writes into it, and what is done to it meanwhile has no effect.
    """
    found = []
    for table in sorted(folder.glob(f"**/{store}/live*/**/*.sst")):
        with suppress(FileNotFoundError):  # merged into another one meanwhile
            if table.stat().st_size:
                found.append(table)
    return found
