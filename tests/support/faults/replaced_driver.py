"""Drivers of one job, one after the other, whose state follows from the number of batches. As a process: `python
replaced_driver.py ROOT FOLDER CONFIG` (JSON), which stops itself where its first collection would read what a retained
checkpoint names, and goes on at SIGCONT."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def changes(batch: int) -> dict[bytes, bytes]:
    """Keys behind those of all earlier batches, so that RocksDB's tables of these remain as they are, and checkpoints
    share them. The values do not compress."""
    values = random.Random(batch)
    return {b"%09d" % (batch * 1000 + n): values.randbytes(300) for n in range(150)}


def expected(batch: int) -> dict[bytes, bytes]:
    """The oracle: what the store holds after so many batches."""
    return {key: value for number in range(1, batch + 1) for key, value in changes(number).items()}


def reads_an_index(call: str, key: str) -> bool:
    """True if this is a collection that reads what a checkpoint names."""
    return call == "get" and "/state/" in key and threading.current_thread().name.startswith("collect")


@contextmanager
def driver(
    objects: ObjectStore, folder: Path, config: Mapping[str, object]
) -> Iterator[tuple[StorageJob, Callable[[], None]]]:
    """A driver that has taken the job over: the job, and what runs a batch and commits it."""
    job = StorageJob(folder, objects, {"local": MemorySystem("local")}, tasks=1, stores=("sums",), config=config)
    log = job.start()
    claim = log.claim("run")
    record = log.latest_before(claim)
    commits = job.open(log, claim, record, {"container": (0,)})
    batch = 0 if record is None else record.batch

    def commit() -> None:
        nonlocal batch
        batch += 1
        job.run_batch({("sums", 0): changes(batch)})
        job.commit(commits, claim)

    try:
        assert job.content() == {("sums", 0): expected(batch)}
        yield job, commit
    finally:
        job.leave()
        commits.close()


def main() -> None:
    """One driver, one commit."""
    root, folder, config = sys.argv[1:]
    hooked = HookedStore(FileObjectStore(Path(root)))

    def stop(call: str, key: str) -> None:
        if reads_an_index(call, key):
            hooked.before = nothing
            os.kill(os.getpid(), signal.SIGSTOP)

    hooked.before = stop
    with driver(hooked, Path(folder), json.loads(config)) as (_, commit):
        commit()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

from penstock.objects.file import FileObjectStore  # noqa: E402
from penstock.objects.store import ObjectStore  # noqa: E402
from penstock.system.memory import MemorySystem  # noqa: E402
from tests.support.stores.hooked_store import HookedStore, nothing  # noqa: E402
from tests.support.stores.storage_job import StorageJob  # noqa: E402

if __name__ == "__main__":
    main()
