"""The rules that a job keeps, each with the change that takes it out of this process.

The simulation has to find what happens without a rule. One that can go unnoticed is no rule, or lacks a schedule.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from penstock.checkpoint.log import CheckpointLog
from penstock.container.epoch.attempts import Attempts
from penstock.driver.commit.coordinator import CommitCoordinator
from penstock.runtime import reports
from penstock.runtime.messages.incoming import Sources
from penstock.runtime.stage.task_instance import TaskInstance
from penstock.system import memory
from penstock.system.contract import writer

WITHOUT = "PENSTOCK_SIMULATE_WITHOUT"
"""The variable of the environment that names the rule to take out."""
RULES: dict[str, tuple[str, Callable[[], None]]] = {}
"""Name → the rule in words, and what removes it."""


def rule(text: str) -> Callable[[Callable[[], None]], None]:
    """Declare the rule that a function removes."""

    def declare(remove: Callable[[], None]) -> None:
        RULES[remove.__name__] = text, remove

    return declare


def _replace(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


@rule("A batch is good only if everybody read the very attempts that reported.")
def one_token() -> None:
    _replace(reports, "_not_read", lambda *_: None)


@rule("An attempt finishes only when every source that it expects has been read to its end.")
def trailers() -> None:
    _replace(Sources, "check_complete", lambda self: None)


@rule("A container admits attempts of the present run of a batch only.")
def admission() -> None:
    def check(self: Attempts, call: Any, number: int) -> TaskInstance:
        self._check()
        return self._tasks[number]

    _replace(Attempts, "_check_attempt", check)


@rule("A task ends a batch once.")
def ends_once() -> None:
    real = TaskInstance.end

    def end(self: TaskInstance, batch: int, tokens: Any) -> None:
        if batch == self.last_ended and self._finished:
            self.last_ended -= 1
        real(self, batch, tokens)

    _replace(TaskInstance, "end", end)


@rule("A commit that was abandoned writes no record any more.")
def abandoned() -> None:
    _replace(CommitCoordinator, "_append", lambda self, record, abandoned: self._log.append(record))


@rule("A driver whose slot in the log is taken by another owner writes nothing more.")
def fenced_log() -> None:
    def append(self: CheckpointLog, record: Any) -> int:
        while self._create(self._next_slot, record) is not None:
            self._next_slot += 1
        self._reader.known[self._next_slot] = record
        self._next_slot += 1
        return self._next_slot - 1

    _replace(CheckpointLog, "append", append)


@rule("A writer whose epoch is over appends nothing.")
def fenced_outputs() -> None:
    _replace(memory, "_check_fence", lambda *_: None)


@rule("A publication goes on behind the progress that the output itself keeps.")
def progress() -> None:
    _replace(memory.MemoryWriter, "progress", lambda self, ssps: {})
    _replace(writer.Progress, "check_follows", lambda *_: None)


@rule("Snapshots of a store are taken between two batches.")
def held_copies() -> None:
    _replace(TaskInstance, "await_copies", lambda self, timeout_s: None)


@rule("What a retained checkpoint names is not collected.")
def retained() -> None:
    from penstock.state.backends.registry import BackendAdmins

    real = BackendAdmins.collect

    def collect(self: Any, epoch: int, retained: Any, left: Any, **more: Any) -> Any:
        return real(self, epoch, list(retained)[-1:], left, **more)

    _replace(BackendAdmins, "collect", collect)


@rule("A collection deletes what one view of the log says, however long it takes.")
def one_view() -> None:
    real = CheckpointLog.uncollected
    _replace(CheckpointLog, "uncollected", lambda self, view: real(self, self.known()))


# Rules of Kafka's writers and readers, which only lives with topics can miss.


@rule("A reader of Kafka takes only what is committed.")
def only_committed() -> None:
    from penstock.system.kafka import client

    _replace(client, "_CONSUMER_DECIDED", {**client._CONSUMER_DECIDED, "isolation.level": "read_uncommitted"})


@rule("A publication to Kafka goes on behind the marks of the job's topic.")
def kafka_progress() -> None:
    from penstock.system.kafka.writer import KafkaWriter

    _replace(KafkaWriter, "progress", lambda self, ssps: {})
    _replace(writer.Progress, "check_follows", lambda *_: None)


@rule("A producer whose end of a transaction may be under way twice begins no other one.")
def late_end() -> None:
    from penstock.system.kafka.writer_session import WriterSession

    real = WriterSession.lose_producer

    def lose_producer(self: Any, *, has_ended: bool = False) -> None:
        if not has_ended:
            real(self)

    _replace(WriterSession, "lose_producer", lose_producer)


def remove_asked() -> None:
    """Remove the rule that the environment names."""
    name = os.environ.get(WITHOUT)
    if name:
        RULES[name][1]()
