"""The message that ends processes is found; no other one becomes a dead letter."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.batch.batch import Batch, Culprit, WatchedTask
from penstock.errors import PenstockError
from penstock.host.position_page import TIMER, MessageId, Span, Spot
from penstock.testing.in_process import InProcessDriver
from penstock.wire.containers import ProcessDeath
from penstock.wire.ports import RunBrokenError
from penstock.wire.protocol import dump, load
from tests.support.world.sums_job import TASKS, SumsWorld, drain, drain_and_commit, raising, state

EXIT, SEGFAULT, KILLED, UNKNOWN = 3, -11, -9, None
BATCH = Batch(1, 1, 0)
BURIES: dict[str, Any] = {"task_dead_letter_stream": "m.dead", "systems_m_samza_factory": "memory"}
POISON = MessageId(1, 0, 0, 1, 7, 0)
"""Offset 7 of partition 1."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SumsWorld]:
    world = SumsWorld(tmp_path)
    world.system.admin().create_stream("dead", 1)
    yield world
    world.close()


class Ends:
    """The ends of processes that a fleet tells of."""

    def __init__(self, driver: InProcessDriver) -> None:
        self.driver = driver
        self.deaths: list[ProcessDeath] = []
        driver.fleet.deaths = lambda: list(self.deaths)  # type: ignore[method-assign]
        self.suspects = driver.loop.parts.failures.suspects

    def ended(self, status: int | None, *spots: Spot) -> int:
        """Another process has ended. Returns how many ends are answered by that."""
        self.deaths.append(ProcessDeath(f"container {len(self.deaths)}", status, spots))
        return self.suspects.look()

    @property
    def culprits(self) -> list[MessageId]:
        return [each.message for each in self.suspects.watch(BATCH).culprits]

    @property
    def watched(self) -> list[tuple[int, int]]:
        return [(each.stage, each.task) for each in self.suspects.watch(BATCH).watched]


@pytest.fixture
def ends(world: SumsWorld) -> Ends:
    world.put(1)
    return Ends(world.driver(**BURIES))


def piece(first: int = 0, last: int = 20, *, stage: int = 1, task: int = 0, origin: int = 1) -> Spot:
    return Spot("piece", 1, 1, 1, stage, task, Span(origin, origin, first, last), None, 0.0)


def alone(message: MessageId = POISON) -> Spot:
    span = Span(message.origin, message.origin, message.offset, message.offset)
    return Spot("message", 1, 1, 1, message.stage, message.task, span, message, 0.0)


def step() -> Spot:
    return Spot("step", 1, 1, 1, 1, 0, Span(-1, -1, -1, -1), None, 0.0)


@pytest.mark.parametrize("status", [EXIT, SEGFAULT, -6, 0])
def test_the_second_end_at_a_place_names_its_message(ends: Ends, status: int) -> None:
    assert (ends.ended(status, piece()), ends.watched, ends.culprits) == (0, [(1, 0)], [])
    assert (ends.ended(status, alone()), ends.culprits) == (2, [POISON])


@pytest.mark.parametrize("status", [KILLED, -15, UNKNOWN])
def test_what_somebody_else_may_have_done_needs_another_end(ends: Ends, status: int | None) -> None:
    ends.ended(status, piece())
    assert [ends.ended(status, alone()) for _ in range(2)] == [0, 0]
    assert ends.culprits == []
    assert (ends.ended(status, alone()), ends.culprits) == (3, [POISON])


@pytest.mark.parametrize(
    "first",
    [
        (EXIT, piece()),
        (SEGFAULT, piece(8, 20)),
        (SEGFAULT, piece(0, 6)),
        (SEGFAULT, piece(origin=2)),
        (SEGFAULT, piece(task=1)),
        (SEGFAULT, piece(stage=2)),
        (SEGFAULT, step()),
    ],
)
def test_an_end_elsewhere_or_otherwise_says_nothing_about_it(ends: Ends, first: tuple[int, Spot]) -> None:
    ends.ended(*first)
    assert (ends.ended(SEGFAULT, alone()), ends.culprits) == (0, [])
    assert ends.ended(SEGFAULT, alone()) == 2


def test_two_at_work_name_none(ends: Ends) -> None:
    other = MessageId(2, 0, 1, 1, 7, 0)
    for _ in range(4):
        assert ends.ended(SEGFAULT, alone(), alone(other)) == 0
    assert (ends.watched, ends.culprits) == ([(1, 0), (2, 0)], [])


@pytest.mark.parametrize(
    "other",
    [
        MessageId(1, 0, 0, 1, 8, 0),
        MessageId(1, 0, 0, 2, 7, 0),
        MessageId(1, 0, 1, 1, 7, 0),
        MessageId(1, 0, 0, 1, 7, 1),
        MessageId(1, 1, 0, 1, 7, 0),
    ],
)
def test_ends_at_different_messages_do_not_add_up(ends: Ends, other: MessageId) -> None:
    for message in (POISON, other):
        assert ends.ended(SEGFAULT, alone(message)) == 0
    assert ends.culprits == []


def test_an_end_in_a_piece_speaks_against_one_message(ends: Ends) -> None:
    """A message that looks different each time is never found, and its ends count as failures."""
    ends.ended(SEGFAULT, piece())
    marks = [MessageId(2, 0, 0, 1, 7, mark) for mark in range(4)]
    ends.ended(SEGFAULT, piece(stage=2))
    assert [ends.ended(SEGFAULT, alone(message)) for message in marks] == [2, 0, 0, 0]


def test_a_timer_is_named_after_an_end_in_such_a_step(ends: Ends) -> None:
    timer = MessageId(1, 0, TIMER, -1 << 32, -2, 99)
    ends.ended(SEGFAULT, step())
    assert (ends.ended(SEGFAULT, alone(timer)), ends.culprits) == (2, [timer])


def test_an_end_is_counted_once_however_often_it_is_told(ends: Ends) -> None:
    ends.ended(SEGFAULT, alone())
    assert [ends.suspects.look() for _ in range(5)] == [0] * 5
    assert ends.culprits == []


@pytest.mark.parametrize("seed", range(20))
def test_kills_at_random_beside_messages_that_kill(ends: Ends, seed: int) -> None:
    """A life of a task, run after run: at most two kills from outside at one message bury nothing."""
    chance = random.Random(seed)
    messages = [MessageId(1, 0, 0, chance.randrange(3), offset, 0) for offset in range(40)]
    poison = set(chance.sample(messages, chance.randrange(4)))
    kills = {message: chance.randrange(3) for message in messages}
    for _ in range(200):
        batch = ends.suspects.watch(BATCH)
        buried = {each.message for each in batch.culprits}
        victim = chance.choice(messages)
        outside = kills[victim] > 0 and chance.random() < 0.5
        for message in messages:
            if message in buried:
                continue
            if message in poison or (outside and message == victim):
                status = SEGFAULT if message in poison else KILLED
                kills[message] -= message not in poison
                ends.ended(status, alone(message) if batch.watched else piece(0, 40, origin=message.origin))
                break
        else:
            if not any(kills.values()):
                break
    assert set(ends.culprits) == poison


def settled(world: SumsWorld, driver: InProcessDriver) -> None:
    driver.loop.start()
    drain_and_commit(driver)


def test_a_checkpoint_behind_it_ends_the_watch(world: SumsWorld) -> None:
    world.put(1, 2, 3, 4)
    driver = world.driver(**BURIES)
    ends = Ends(driver)
    ends.ended(SEGFAULT, piece(0, 1, origin=0))
    ends.ended(SEGFAULT, piece(0, 99, origin=1))
    settled(world, driver)
    assert ends.suspects._evidence == [each for each in ends.suspects._evidence if each.spot.span.last_offset == 99]
    assert len(ends.suspects._evidence) == 1


def test_watched_tasks_do_the_same(world: SumsWorld) -> None:
    world.put(*range(1, 40))
    driver = world.driver()
    ends = Ends(driver)
    for task in range(TASKS):
        for stage in (0, 1):
            ends.ended(KILLED, piece(stage=stage, task=task, last=10**6))
    settled(world, driver)
    world.check(driver)


def test_only_the_culprit_becomes_a_dead_letter(world: SumsWorld) -> None:
    """Key k comes again and again: the sum lacks this one message."""
    world.put(*range(1, 40))
    driver = world.driver(**BURIES)
    ends = Ends(driver)
    key, value = world.given.pop(13)
    found = [MessageId(1, task, 0, 13 % TASKS, 13 // TASKS, 0) for task in range(TASKS)]
    for message in found:
        ends.ended(SEGFAULT, alone(message))
        ends.ended(SEGFAULT, alone(message))
    assert ends.culprits == found
    settled(world, driver)
    assert state(driver) == world.sums
    letters = [(record[2] or b"").decode() for record in world.records("dead")]
    assert len(letters) == 1
    assert f'"offset":{13 // TASKS}' in letters[0]
    assert '"operator":"sum"' in letters[0]
    assert "ProcessEndedError: the process that processed it was killed by SIGSEGV (11); 2 processes" in letters[0]
    assert (key, value) not in world.given


def test_ends_that_are_answered_do_not_count_as_failures(world: SumsWorld) -> None:
    world.put(*range(1, 20))
    driver = world.driver(**BURIES, job_retry_max=2)
    ends = Ends(driver)
    driver.loop.start()
    broken = [alone(MessageId(1, 9, 0, 0, number // 2, 0)) for number in range(12)]

    def fail(_: object) -> None:
        if broken:
            ends.deaths.append(ProcessDeath(f"c{len(broken)}", SEGFAULT, (broken.pop(0),)))
            raising(RunBrokenError("its process ended"))()

    driver.runner.at = fail
    drain(driver)
    assert not broken, "six messages, each with two ends, and no more than two failures in a row"


def test_without_dead_letters_the_error_says_what_to_do(world: SumsWorld) -> None:
    world.put(1)
    driver = world.driver(job_retry_max=2)
    ends = Ends(driver)
    driver.loop.start()

    def fail(_: object) -> None:
        ends.deaths.append(ProcessDeath(f"c{len(ends.deaths)}", SEGFAULT, (alone(),)))
        raising(RunBrokenError("its process ended"))()

    driver.runner.at = fail
    with pytest.raises(PenstockError, match=r"processes ended while they processed offset 7 .*task.dead.letter.stream"):
        drain(driver)


def test_a_batch_says_what_is_watched() -> None:
    watched, culprits = (WatchedTask(1, 0, (Span(1, 1, 2, 5),)),), (Culprit(POISON, "why"),)
    batch = BATCH.with_suspects(watched, culprits)
    assert batch.next_run() == Batch(1, 2, 0, watched=watched, culprits=culprits)
    assert load(Batch, dump(batch)) == batch


@pytest.mark.parametrize(
    ("span", "suspects"),
    [
        (Span(1, 1, 5, 9), True),
        (Span(1, 1, 6, 9), False),
        (Span(1, 1, 0, 1), False),
        (Span(0, 3, 0, 9), True),
        (Span(2, 2, 2, 5), False),
    ],
)
def test_only_messages_that_may_be_it_are_processed_one_at_a_time(span: Span, suspects: bool) -> None:
    assert WatchedTask(1, 0, (Span(8, 8, 0, 9), Span(1, 1, 2, 5))).suspects(span) is suspects
