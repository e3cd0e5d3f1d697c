"""The attempts of a container: which one counts, those that are discarded or refused, turns, and who hears of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.batch.batch import Batch, WatchedTask
from penstock.container.attempts import Attempts, RunningAttempt
from penstock.container.container import Container
from penstock.container.handlers import serve
from penstock.errors import ContainerLostError
from penstock.runtime.messages.incoming import DiscardedAttemptError
from penstock.runtime.messages.packet import Packet
from penstock.testing import SettableClock
from penstock.wire.protocol import BEAT, Identity, NoArguments, StartRun
from tests.support.world.one_container import STAGE, OneContainer


@pytest.fixture
def container(tmp_path: Path) -> Iterator[OneContainer]:
    with closing(OneContainer(tmp_path)) as made:
        made.enter()
        made.run({"a": 1}, {"b": 2})
        yield made


def started(container: OneContainer, run: int = 1) -> tuple[Batch, Attempts]:
    """The next batch, whose run is admitted; and the attempts of the epoch."""
    batch = replace(container.batch(), run=run)
    assert container.epoch is not None
    container.epoch.start_run(StartRun(batch))
    return batch, container.epoch.attempts


def test_only_the_attempts_that_the_end_names_count(container: OneContainer) -> None:
    batch, attempts = started(container)
    first, second, other = (container.begin(batch, task) for task in (0, 0, 1))
    for running in (second, other):
        container.feed(running, {"a": 10})
        attempts.finish(running)
    with pytest.raises(DiscardedAttemptError, match="a newer one of its task has begun"):
        container.feed(first, {"a": 100})
    container.end(batch, [second.attempt.token, other.attempt.token])
    assert container.content() == {0: {"a": 11}, 1: {"a": 10, "b": 2}}


def test_an_attempt_that_is_abandoned_leaves_nothing(container: OneContainer) -> None:
    """Its stream broke after all its messages had come."""
    batch, attempts = started(container)
    broken, other = container.begin(batch, 0), container.begin(batch, 1)
    container.feed(broken, {"a": 10})
    attempts.abandon(broken)
    with pytest.raises(DiscardedAttemptError):
        attempts.finish(broken)
    container.feed(other, {})
    attempts.finish(other)
    with pytest.raises(ContainerLostError, match="has no finished attempt"):
        container.end(batch, [broken.attempt.token, other.attempt.token])
    assert container.content() == {0: {"a": 1}, 1: {"b": 2}}


def test_an_attempt_whose_input_is_not_complete_cannot_finish(container: OneContainer) -> None:
    batch, attempts = started(container)
    running = container.begin(batch, 0)
    with pytest.raises(DiscardedAttemptError, match="without the trailer"):
        attempts.finish(running)


def test_another_run_of_the_batch_discards_what_has_finished(container: OneContainer) -> None:
    """An attempt that has finished cannot be applied, and one that still runs cannot go on."""
    batch, attempts = started(container)
    done, running = container.begin(batch, 0), container.begin(batch, 1)
    container.feed(done, {"a": 10})
    attempts.finish(done)
    assert attempts.activity().processed[STAGE] == 1
    again, attempts = started(container, run=2)
    assert (attempts.activity().processed, attempts.activity().work) == ({}, [])
    with pytest.raises(DiscardedAttemptError):
        container.feed(running, {"b": 10})
    with pytest.raises(ContainerLostError, match="has no finished attempt"):
        container.end(batch, [done.attempt.token, running.attempt.token])
    with pytest.raises(ContainerLostError, match=r"an attempt of .* came during"):
        container.begin(batch, 0)
    with pytest.raises(ContainerLostError, match="came after a later run"):
        started(container, run=1)
    assert container.begin(again, 0).attempt.batch == again


def test_a_task_that_is_at_another_batch_refuses_an_attempt(container: OneContainer) -> None:
    """A driver that thinks of another epoch's state."""
    ahead = replace(container.batch(), number=container.batch().number + 1)
    assert container.epoch is not None
    container.epoch.start_run(StartRun(ahead))
    with pytest.raises(ContainerLostError, match="expects task 0 at batch 2; it is at batch 1"):
        container.begin(ahead, 0)
    with pytest.raises(ContainerLostError, match="expects task 7 at batch 2; it is not here"):
        container.begin(ahead, 7)


def test_an_end_must_name_all_tasks_and_the_next_batch(container: OneContainer) -> None:
    batch, attempts = started(container)
    tokens = []
    for task in range(2):
        running = container.begin(batch, task)
        container.feed(running, {"a": 10})
        attempts.finish(running)
        tokens.append(running.attempt.token)
    with pytest.raises(ContainerLostError, match=r"End names tasks \[0\], this container has \[0, 1\]"):
        container.end(batch, tokens[:1])
    container.end(batch, tokens)
    container.end(batch, tokens)  # asked again, because the answer was lost
    assert container.content() == {0: {"a": 11}, 1: {"a": 10, "b": 2}}


def test_the_end_of_an_epoch_ends_its_attempts(container: OneContainer) -> None:
    batch, attempts = started(container)
    running = container.begin(batch, 0)
    attempts.stop()
    with pytest.raises(DiscardedAttemptError):
        attempts.process(running, [])
    with pytest.raises(ContainerLostError, match="this container has left epoch 1"):
        container.begin(batch, 0)


def test_what_attempts_do_is_shown(container: OneContainer) -> None:
    batch, attempts = started(container)
    running = container.begin(batch, 0)
    container.feed(running, {"a": 1, "c": 2})
    shown = attempts.activity()
    assert (shown.batch, shown.processed, shown.processing, shown.stalled_ms) == (batch.number, {STAGE: 2}, "", 0)
    assert [(work.stage, work.task) for work in shown.work] == [(STAGE, 0)]


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


def test_a_container_knows_how_long_nobody_has_listened() -> None:
    clock = SettableClock()
    container = Container("c", "00ff", clock)
    clock.advance(60)
    assert container.audience.absent_s == 0.0  # nobody has listened yet

    body = BEAT.encode(Identity("00ff", -1), NoArguments())
    with closing(serve(BEAT, container, body)) as first:
        next(first)
        clock.advance(60)
        assert container.audience.absent_s == 0.0
        with closing(serve(BEAT, container, body)) as second:  # over another connection
            next(second)
            first.close()
            clock.advance(60)
            assert container.audience.absent_s == 0.0
    clock.advance(20)
    assert container.audience.absent_s == 20.0
