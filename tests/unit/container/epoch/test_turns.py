"""Attempts of a batch with suspects work one after the other: what ends the process is the doing of one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.batch.batch import Batch
from penstock.batch.suspects import WatchedTask
from penstock.container.epoch.attempts import Attempts, RunningAttempt
from penstock.runtime.messages.packet import Packet

PLAIN = Batch(1, 1, 0)
WATCHED = PLAIN.with_suspects((WatchedTask(1, 0, ()),), ())


@pytest.mark.parametrize(("batch", "together"), [(PLAIN, True), (WATCHED, False)])
def test_attempts_of_a_batch_with_suspects_take_turns(batch: Batch, together: bool) -> None:
    meeting, both, attempts = threading.Barrier(2), [], Attempts(1, {})

    def accept(packet: Packet) -> Iterator[Packet]:
        try:
            meeting.wait(10 if together else 0.1)
            both.append(True)
        except threading.BrokenBarrierError:
            both.append(False)
        return iter(())

    def running(task: int) -> RunningAttempt:
        attempt: Any = SimpleNamespace(batch=batch, stage=1, task=task, accept=accept)
        return RunningAttempt(attempt, 1)

    packet: Any = None
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(attempts.process, running(task), [packet]) for task in range(2)]:
            done.result()
    assert both == [together] * 2
