"""Whole jobs whose backends meet faults, and what must come out of each backend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson

from penstock.base.plugins import BACKENDS
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.task_versions import markers_of
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.state.reading.reader import StateReader
from tests.support.faults.plan import Faults
from tests.support.jobs.home import Home, Totals, same
from tests.support.tools.places import ROOT

FAULTY = {"changelog-files": "FaultyFiles", "blob": "FaultyBlob", "changelog-stream": "FaultyStream"}
"""By the backend it wraps."""
_COMBINATIONS = (
    ("changelog-files",),
    ("blob",),
    ("changelog-stream",),
    ("changelog-files", "blob"),
    ("changelog-stream", "blob"),
)


def faulty(*backends: str) -> str:
    """The wrapped backends as a value of `stores.backup.factories`."""
    return ",".join(f"tests.support.faults.fault_backend:{FAULTY.get(name, name)}" for name in backends)


def combinations() -> list[tuple[str, ...]]:
    """Backends to test together, of those there are."""
    return [names for names in _COMBINATIONS if all(name in BACKENDS for name in names)]


class FaultHome(Home):
    """A job whose backends are wrapped ones."""

    faults: Faults

    def __init__(
        self,
        folder: Path,
        backends: tuple[str, ...] = ("changelog-files",),
        config: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(folder)
        self.config |= {"stores.backup.factories": faulty(*backends), **(config or {})}
        self.faults = Faults.of_root(str(self.config["job.root"]))

    def stored(self, store: str, record: CheckpointRecord | None = None) -> Totals:
        """A store as of a checkpoint, from whichever backend can."""
        return self.stored_by(None, store, record or self.checkpoints[-1])

    def stored_by(self, backend: str | None, store: str, record: CheckpointRecord) -> Totals:
        """A store as of a checkpoint, from one backend."""
        config = self.loaded()
        objects = open_store(config.job.root)
        found: Totals = {}
        paths = JobPaths(config.job.name, config.job.id)
        try:
            with StateReader(config, paths, objects, {"local": self.system}) as reader:
                for task in record.tasks:
                    with reader.open(record, store, task, backend) as engine:
                        own = {key.decode(): orjson.loads(value) for key, value in engine.scan(None, None)}
                    assert not own.keys() & found.keys(), f"a key of store {store} is in two tasks"
                    found |= own
        finally:
            objects.close()
        return found

    def verify(self) -> None:
        """The last checkpoint, the outputs, and every checkpoint that can be restored."""
        log = self.log
        self.verify_ended(log)
        for record in log.restorable:
            self.verify_checkpoint(record)

    def verify_checkpoint(self, record: CheckpointRecord) -> None:
        """Every backend that has markers of all tasks holds exactly what the checkpoint's offsets make."""
        by_key, by_region = self.expected(record)
        for store, expected in (("totals", by_key), ("regions", by_region)):
            complete = [
                name
                for name in markers_of(record, 0)
                if all(store in markers_of(record, task).get(name, {}) for task in record.tasks)
            ]
            assert complete, f"no backend can restore store {store} at {record.id}"
            for backend in complete:
                same(self.stored_by(backend, store, record), expected, f"store {store} at {record.id} in {backend}")


def executor_env() -> dict[str, str]:
    """With this in its session's configuration, a job's containers find the modules of the tests."""
    return {"spark.executorEnv.PYTHONPATH": str(ROOT)}
