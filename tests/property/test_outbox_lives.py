"""Random lives of a job with exactly-once outputs: processes die at any step of a commit, a publication or a batch, and
containers are lost. Whatever happens, a reader of the outputs finds each message once, and in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.system.local import LocalSystem
from penstock.system.memory import MemorySystem
from tests.support.world.outbox_life import CRASHES, OutboxLife

ACTIONS = 25
SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 150))]


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_each_message_comes_once_in_order(
    kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = MemorySystem("m") if kind == "memory" else LocalSystem("m", str(tmp_path / "streams"))
    life = OutboxLife(system, tmp_path / "state", monkeypatch, seed)
    try:
        life.live(ACTIONS)
        life.check()
    except BaseException as error:
        error.add_note(f"seed {seed}: {', '.join(life.story)}")
        raise
    finally:
        life.close()


@pytest.mark.few(6)
@pytest.mark.parametrize("step", CRASHES)
def test_a_process_dies_at_each_step(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = OutboxLife(MemorySystem("m"), tmp_path, monkeypatch)
    try:
        for count in (1, 3):
            life.put(*range(1, 30), -1)
            life.end()
            life.attempt(lambda count=count: life.start(step, count))  # type: ignore[misc]
            for _ in range(2):
                life.drain()
                life.check()
                life.put(*range(1, 5), -1)
        life.drain()
        life.check()
    finally:
        life.close()
