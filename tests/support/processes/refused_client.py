"""A Spark worker whose attempts a container refuses, many times.

It ends as Spark's workers do, without an end of the interpreter: a thread that writes to a container may be in native
code then, and C++ aborts a process whose interpreter ends a thread in a destructor.
"""

from __future__ import annotations

import os
import pickle
import sys

from penstock.errors import ContainerLostError
from penstock.wire.client import exchange


def main() -> None:
    """Read address, secret, call, batches and how often from standard input. Prints how often it was refused."""
    address, secret, call, batches, times = pickle.load(sys.stdin.buffer)
    refused = 0
    for _ in range(times):
        try:
            list(exchange(address, secret, call, iter(batches), lambda batch: (batch, batch.slice(0, 0))))
        except ContainerLostError:
            refused += 1
    print(refused, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
