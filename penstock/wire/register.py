"""The containers that one run has started on one executor: a small file, where everyone finds it who starts some.

It is in Spark's scratch folder of the executor, so it does not outlive that. While the executor lives, the run removes
it: each container does, when the driver closes it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import orjson

from penstock.base.documents import decode, decoding
from penstock.base.files import PRIVATE_FILE, open_lock
from penstock.wire.address import ContainerAddress

_LARGEST = 16 << 20


class Register:
    """The file, and a lock beside it. Neither is made before it is used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = path.with_suffix(".lock")

    @classmethod
    def of(cls, run_id: str, executor_pid: int) -> Register:
        base = Path(os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0])
        return cls(base / f"penstock-{run_id}-{executor_pid}.json")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other processes while the block runs."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(open_lock(self._lock), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self) -> list[ContainerAddress]:
        """The containers that were started. Raises CorruptError."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            data = file.read(_LARGEST + 1)
        what = f"the list of this executor's containers, {self.path}, is damaged"
        with decoding(what):
            if len(data) > _LARGEST:
                raise ValueError(f"it has more than {_LARGEST} bytes")
            return decode(list[ContainerAddress], data, what)

    def write(self, containers: Sequence[ContainerAddress]) -> None:
        temporary = self.path.with_suffix(".tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(temporary, flags, PRIVATE_FILE), "wb") as file:
            file.write(orjson.dumps([asdict(address) for address in containers]))
        temporary.rename(self.path)

    def remove(self) -> None:
        """Remove the register at the end of the run. Idempotent, and any of its containers may do it.

        A Spark task that was cancelled may still be starting containers. It writes the file again, which then stays
        until the executor ends.
        """
        self.path.unlink(missing_ok=True)
        self._lock.unlink(missing_ok=True)
