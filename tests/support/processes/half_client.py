"""A Spark worker that stops in the middle: sends what it is given, then waits until it is killed."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator

import pyarrow as pa

from penstock.wire.client import exchange


def main() -> None:
    """Read address, secret, call and batches from standard input."""
    address, secret, call, batches = pickle.load(sys.stdin.buffer)

    def half() -> Iterator[pa.RecordBatch]:
        yield from batches
        sys.stdin.buffer.read()

    for _ in exchange(address, secret, call, half(), lambda batch: (batch, batch.slice(0, 0))):
        pass


if __name__ == "__main__":
    main()
