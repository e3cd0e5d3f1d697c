"""No name of an object is made again once it was deleted. So a request to delete that reaches the store late, when its
sender has long ended, finds nothing to delete."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore
from penstock.start.startpoint_manager import StartpointManager
from tests.support.world.sums_job import TASKS, SumsWorld, drain_and_commit


class Names:
    """Watches all object stores of this process that are in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.deleted: set[str] = set()
        self.again: list[str] = []
        self._lock = threading.Lock()
        kind = type(open_store("memory://names"))
        delete, create, replace = kind.delete, kind.put_if_absent, kind.put_if_match

        def deletes(store: ObjectStore, key: str) -> None:
            with self._lock:
                self.deleted.add(key)
            delete(store, key)

        def creates(store: ObjectStore, key: str, data: bytes) -> bool:
            return self._made(key, create(store, key, data))

        def replaces(store: ObjectStore, key: str, data: bytes, tag: str | None) -> bool:
            return self._made(key, replace(store, key, data, tag))

        monkeypatch.setattr(kind, "delete", deletes)
        monkeypatch.setattr(kind, "put_if_absent", creates)
        monkeypatch.setattr(kind, "put_if_match", replaces)

    def _made(self, key: str, done: bool) -> bool:
        with self._lock:
            if done and key in self.deleted:
                self.again.append(key)
        return done

    def folders(self) -> set[str]:
        """The folders of what was deleted, below that of the job."""
        return {"/".join(key.split("/")[1 : 3 if "/metadata/" in key else 2]) for key in self.deleted}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_a_life_with_losses_starts_and_requests(names: Names, tmp_path: Path, seed: int) -> None:
    """Two backends, exactly-once output, requests for positions, to drain and to stop."""
    chance = random.Random(seed)
    world = SumsWorld(tmp_path)
    keys: dict[str, Any] = {
        "stores.sums.backup.factories": "changelog-files,blob",
        "streams.m.sums.output.guarantee": "exactly-once",
        "systems.m.samza.factory": "memory",
        "task.checkpoint.retained": "1",
        "job.retry.max": 100,
    }
    driver = world.started(**keys)
    epochs = Counter[str]()
    for _ in range(30):
        world.put(*range(chance.randrange(6)))
        match chance.choice(["step", "step", "commit", "commit", "lose", "restart", "drain"]):
            case "step":
                driver.loop.step()
            case "commit" if not driver.fleet.any_lost:
                drain_and_commit(driver)
            case "lose":
                driver.fleet.lose(0)
                driver.loop.step()
                epochs["lost"] += 1
            case "restart":
                driver.close()
                ssp = SystemStreamPartition("m", "events", chance.randrange(TASKS))
                StartpointManager(world.objects, world.paths).write_startpoint(ssp, ps.StartpointUpcoming())
                driver = world.started(**keys)
                epochs["started"] += 1
            case "drain" if not driver.fleet.any_lost:
                world.drains.cancel(world.ask_to_drain(driver), "a test")
                driver.loop.step()
    drain_and_commit(driver)
    driver.close()
    world.started(**keys).close()
    assert {"checkpoints", "outbox", "state", "metadata/probe"} <= names.folders()
    assert epochs["lost"]
    assert epochs["started"]
    assert names.again == []
