"""Runs a module of PySpark as a Python process of Spark's that has connected to Spark before it imports PySpark.

Spark gives such a process ten seconds to connect, and nothing can be set. PySpark is imported before it connects, which
may take longer on a busy machine. The process has this file as text, and may lack Penstock.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedRWPair
from typing import Any

_LENGTH = struct.Struct("!i")


def connect() -> BufferedRWPair:
    """Connect as the environment says, and send the process id, as PySpark's `get_sock_file_to_executor` does."""
    path = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH")
    if path is not None:
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        local.connect(path)
        file = local.makefile("rwb")
    else:
        host = "::1" if os.environ.get("SPARK_PREFER_IPV6", "").lower() == "true" else "127.0.0.1"
        connected = socket.create_connection((host, int(os.environ["PYTHON_WORKER_FACTORY_PORT"])))
        file = connected.makefile("rwb")
        secret = os.environ["PYTHON_WORKER_FACTORY_SECRET"].encode()
        file.write(_LENGTH.pack(len(secret)) + secret)
        file.flush()
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        if file.read(length) != b"ok":
            raise ConnectionError("Spark does not know this process")
    file.write(_LENGTH.pack(os.getpid()))
    file.flush()
    return file


def run(module: str) -> None:
    """Connect, and run the module. It must take the connection from `get_sock_file_to_executor`."""
    file = connect()

    import site

    site.main()  # Python was started without it: what it runs is installed by others, and may take its time

    import runpy

    from pyspark import worker_util

    @contextmanager
    def connection(timeout: int | None = None) -> Iterator[BufferedRWPair]:
        with file:
            yield file

    pyspark_worker: Any = worker_util
    pyspark_worker.get_sock_file_to_executor = connection
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run(sys.argv[1])
