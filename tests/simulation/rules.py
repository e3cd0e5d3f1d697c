"""The rules that a job keeps, each with the change that takes it out of a process, and with what misses it.

A rule that can be taken out unnoticed is no rule, or lacks a schedule. Most are missed by a life of the simulation: the
table names its subject and its seed. A rule behind another one that holds as well is missed by a test of its schedule
alone, and says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from penstock.batch import watermarks
from penstock.batch.batch import to_next_offsets
from penstock.batch.watermarks import TIME, TimeSection
from penstock.checkpoint import log, log_view
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.streams import STREAMS
from penstock.container.attempts import Attempts
from penstock.container.commit import TaskCommitManager
from penstock.container.container import Container, Epoch
from penstock.driver import watches
from penstock.driver.commit import record as records
from penstock.driver.commit.coordinator import CommitCoordinator
from penstock.driver.epochs import Epochs
from penstock.driver.feed.boundary import Boundary
from penstock.job.lease import acquire
from penstock.job.paths import JobPaths
from penstock.outbox import wing as outbox
from penstock.outbox.container import Publisher
from penstock.outbox.driver import Publishing
from penstock.runtime import reports
from penstock.runtime.messages.incoming import Sources
from penstock.runtime.stage.task_instance import TaskInstance
from penstock.start import prepare
from penstock.state.backends.registry import BackendAdmins
from penstock.state.engines.engine import merged
from penstock.system import memory
from penstock.system.contract import writer


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule.

    Attributes:
        text: the rule in words.
        missed_by: the subject and the seed of a life that is broken without it; or the id of a test that fails.
        remove: takes it out of this process.
    """

    text: str
    missed_by: tuple[str, int] | str
    remove: Callable[[], None]


WITHOUT = "PENSTOCK_SIMULATE_WITHOUT"
"""The variable of the environment that names the rule to take out."""
RULES: dict[str, Rule] = {}
"""Name → rule."""


def rule(text: str, *missed_by: Any) -> Callable[[Callable[[], None]], None]:
    """Declare the rule that a function removes."""

    def declare(remove: Callable[[], None]) -> None:
        RULES[remove.__name__] = Rule(text, missed_by if len(missed_by) > 1 else missed_by[0], remove)

    return declare


def take_out(name: str) -> None:
    """Take a rule out of this process."""
    RULES[name].remove()


def remove_asked() -> None:
    """Take the rule out that the environment names."""
    name = os.environ.get(WITHOUT)
    if name:
        take_out(name)


def _replace(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


# ---- Attempts and batches.


@rule("A batch is good only if everybody read the very attempts that reported.", "sums", 125)
def one_token() -> None:
    _replace(reports, "_not_read", lambda *_: None)


@rule("An attempt finishes only when every source that it expects has been read to its end.", "sums", 10)
def trailers() -> None:
    _replace(Sources, "check_complete", lambda self: None)


@rule(
    "A container admits attempts of the present run of a batch only.",
    "tests/unit/container/test_epoch_attempts.py::test_a_task_that_is_at_another_batch_refuses_an_attempt",
)
def admission() -> None:
    def check(self: Attempts, call: Any, number: int) -> TaskInstance:
        self._check()
        return self._tasks[number]

    _replace(Attempts, "_check_attempt", check)


@rule("A call that comes late does not admit its run in the place of a later one.", "sums", 7)
def late_runs() -> None:
    def start_run(self: Epoch, request: Any) -> None:
        self.services.start_run(request.batch)

    _replace(Epoch, "start_run", start_run)


@rule("A discarded attempt takes all that it touched with it.", "sums", 6)
def discarded() -> None:
    def discard(self: TaskInstance, attempt: Any) -> None:
        if hasattr(attempt, "instance"):
            self._standing.setdefault(attempt.stage, attempt.instance)
        else:
            attempt.close()

    _replace(TaskInstance, "discard_attempt", discard)


@rule("The end of a batch applies the attempts that it names, and no others.", "calls", 6)
def named_attempts() -> None:
    real = TaskInstance.end

    def end(self: TaskInstance, batch: int, tokens: Any) -> None:
        def other(stage: int, token: str) -> str:
            return next((found for of, found in self._finished if of == stage and found != token), token)

        real(self, batch, {stage: other(stage, token) for stage, token in tokens.items()})

    _replace(TaskInstance, "end", end)


@rule("A batch that a task is asked to end once more is not applied again.", "calls", 2)
def ends_once() -> None:
    ended: WeakKeyDictionary[TaskInstance, dict[int, list[tuple[str, dict[bytes, Any]]]]] = WeakKeyDictionary()
    apply, real = TaskInstance._apply, TaskInstance.end

    def remembered(self: TaskInstance, attempts: list[Any]) -> None:
        overlays = [pair for each in attempts if hasattr(each, "instance") for pair in each.instance.overlays.items()]
        changes = [(store, dict(overlay.take())) for store, overlay in overlays]
        ended.setdefault(self, {})[self.last_ended + 1] = changes
        apply(self, attempts)

    def end(self: TaskInstance, batch: int, tokens: Any) -> None:
        if batch not in ended.get(self, {}):
            real(self, batch, tokens)
            return
        with self._lock:
            for store, changes in ended[self][batch]:
                self._engines[store].apply(changes)
                self._pending[store] = merged(self._pending.get(store), changes)

    _replace(TaskInstance, "_apply", remembered)
    _replace(TaskInstance, "end", end)


@rule(
    "A message is late if it is below the watermark of the batch before; that of its own batch does not count.",
    "graphs",
    1,
)
def late_watermark() -> None:
    real = watermarks.next_watermarks

    def next_watermarks(*given: Any, **named: Any) -> Any:
        found = real(*given, **named)
        return replace(found, late=found.firing)

    _replace(watermarks, "next_watermarks", next_watermarks)


@rule(
    "A watermark never falls.",
    "tests/unit/driver/feed/test_event_time_schedules.py::test_out_of_orderness_raised",
)
def standing_watermark() -> None:
    real = watermarks.next_watermarks

    def next_watermarks(flow: Any, readers: Any, event_times: Any, last: Any, **named: Any) -> Any:
        found = real(flow, readers, event_times, {}, **named)
        return replace(found, late=real(flow, readers, event_times, last, **named).late)

    _replace(watermarks, "next_watermarks", next_watermarks)


@rule(
    "The time of a batch is never before that of an earlier one, whatever the clock says.",
    "tests/unit/driver/feed/test_timer_schedules.py::test_the_clock_goes_back_between_two_batches_or_between_two_drivers",
)
def batch_time() -> None:
    _replace(Boundary, "time_at", lambda self, now_ms: now_ms)


@rule(
    "A call is for one process, and not for another one at its address.",
    "tests/unit/wire/test_container_calls.py::test_a_call_for_another_process_is_refused",
)
def incarnation() -> None:
    # A process that has no epoch refuses nearly all calls by itself.
    _replace(Container, "check_incarnation", lambda self, identity: None)


# ---- The log of checkpoints.


# A new claim follows in the same object of the log, which then takes no record of an older epoch; one that is appended
# before the claim is in the log that the claim reads. So no life is broken. But the log would change after the run.
@rule(
    "A commit that was abandoned writes no record any more.",
    "tests/unit/driver/test_run_loop.py::test_a_commit_that_takes_too_long_ends_the_run",
)
def abandoned() -> None:
    _replace(CommitCoordinator, "_append", lambda self, record, abandoned: self._log.append(record))


@rule("A driver whose slot in the log is taken by another owner writes nothing more.", "sums", 1)
def fenced_log() -> None:
    def append(self: CheckpointLog, record: Any) -> int:
        while self._create(self._next_slot, record) is not None:
            self._next_slot += 1
        self._reader.known[self._next_slot] = record
        self._next_slot += 1
        return self._next_slot - 1

    _replace(CheckpointLog, "append", append)


@rule(
    "A start that decided on a log with one checkpoint less is refused.",
    "tests/unit/outbox/driver/test_outbox_starts.py::test_a_record_of_another_driver_meanwhile_is_no_older_log",
)
def decided_on_the_last() -> None:
    _replace(prepare, "claim_log", lambda log, run_id, on_damage, decided_on: log.claim(run_id, on_damage))


@rule(
    "A claim in a slot that was freed never held.",
    "tests/property/test_checkpoint_log_pruning.py::test_a_claim_that_comes_late_into_a_freed_slot_does_not_count",
)
def void_claims() -> None:
    _replace(CheckpointLog, "_counts", lambda self, claim, slot: True)
    _replace(log_view, "void_claims", lambda records: {})


@rule("A checkpoint has the positions of all partitions, also of those that nothing came from.", "sums", 10)
def all_positions() -> None:
    real = to_next_offsets
    last: dict[Any, int] = {}

    def moved(positions: Any, tasks: int) -> Any:
        found = {at: offset for at, offset in positions.items() if last.get(at) != offset}
        last.update(positions)
        return real(found, tasks)

    _replace(records, "to_next_offsets", moved)


@rule(
    "Event times and watermarks are in the record.",
    "tests/unit/driver/feed/test_event_time_schedules.py::test_a_restart_goes_on_with_the_watermarks_of_the_checkpoint",
)
def recorded_times() -> None:
    real = records.Recorder._sections
    _replace(records.Recorder, "_sections", lambda self, boundary: {**real(self, boundary), TIME: TimeSection()})


@rule(
    "The run that a start belongs to is read while the lease is held.",
    "tests/unit/checkpoint/test_tenure.py::test_a_start_that_waits_while_the_old_run_ends_is_a_run_of_its_own",
)
def run_under_lease() -> None:
    run_of_start = watches.run_of_start
    before: list[Any] = []

    def acquired(objects: Any, paths: JobPaths, *given: Any) -> Any:
        before.append(CheckpointLog(objects, paths).read("report"))
        return acquire(objects, paths, *given)

    _replace(watches, "acquire", acquired)
    _replace(watches, "run_of_start", lambda view, named: run_of_start(before[-1], named))


@rule("A request for a startpoint is deleted behind the record that takes it.", "sums", 66)
def taken_requests() -> None:
    real = Epochs._write_start

    def write_start(self: Epochs, *given: Any, **more: Any) -> None:
        self._job.startpoints.delete(self._job.start.requests)
        real(self, *given, **more)

    _replace(Epochs, "_write_start", write_start)


@rule("A checkpoint with a label is retained by each record that follows.", "sums", 1)
def labels_kept() -> None:
    _replace(log, "taking_over", lambda record, names, retained: record)


@rule(
    "A fork pins the checkpoint that it begins with.",
    "tests/unit/admin/job/test_fork.py::test_a_fork_without_its_pin_does_not_start[label]",
)
def pinned() -> None:
    real = CheckpointLog.label

    def label(self: CheckpointLog, name: str, *given: Any) -> None:
        if not name.startswith("fork:"):
            real(self, name, *given)

    _replace(CheckpointLog, "label", label)


# ---- Backups.


@rule("Snapshots of a store are taken between two batches.", "sums", 144)
def held_copies() -> None:
    _replace(TaskInstance, "await_copies", lambda self, timeout_s: None)


@rule(
    "A commit in which a store would have no marker at all waits for its base.",
    "tests/unit/container/test_epoch_commits.py::test_a_checkpoint_waits_for_the_base_of_a_store_that_no_other_backend_has",
)
def base_before_marker() -> None:
    _replace(TaskCommitManager, "has_all", lambda self, markers: True)


@rule("What a dead epoch wrote is never taken for what a later one wrote.", "sums", 6)
def lineage() -> None:
    real = JobPaths.delta
    _replace(JobPaths, "delta", lambda self, store, task, version, epoch: real(self, store, task, version, 0))


@rule("What a retained checkpoint names is not collected.", "sums", 0)
def retained() -> None:
    real = BackendAdmins.collect

    def collect(self: Any, epoch: int, retained: Any, left: Any, **more: Any) -> Any:
        return real(self, epoch, list(retained)[-1:], left, **more)

    _replace(BackendAdmins, "collect", collect)


@rule(
    "A collection deletes what one view of the log says, however long it takes.",
    "tests/fault/test_collections_beside_commits.py::test_a_collection_deletes_nothing_that_a_later_checkpoint_needs"
    "[2-0-changelog-files]",
)
def one_view() -> None:
    real = CheckpointLog.uncollected
    _replace(CheckpointLog, "uncollected", lambda self, view: real(self, self.known()))


@rule("Of the present epoch only what a checkpoint named is collected.", "sums", 64)
def present_epoch() -> None:
    real = BackendAdmins.collect

    def collect(self: Any, epoch: int, *given: Any, **more: Any) -> Any:
        return real(self, epoch + 1, *given, **more)

    _replace(BackendAdmins, "collect", collect)


# ---- Outputs and streams.


@rule("A writer whose epoch is over appends nothing.", "sums", 2)
def fenced_outputs() -> None:
    _replace(memory, "_check_fence", lambda *_: None)


@rule("A publication goes on behind the progress that the output itself keeps.", "sums", 7)
def progress() -> None:
    _replace(memory.MemoryWriter, "progress", lambda self, ssps: {})
    _replace(writer.Progress, "check_follows", lambda *_: None)


@rule("What a record leaves to be published comes before the first batch of an epoch.", "sums", 5)
def owed_first() -> None:
    _replace(Publishing, "settle", lambda self, epoch: None)


@rule(
    "After an error a publisher asks again how far it is.",
    "tests/unit/outbox/container/test_publisher.py::test_what_may_pass_is_tried_again",
)
def asks_again() -> None:
    _replace(Publisher, "_forget", lambda self, system: None)


@rule("Output that is not published yet is not collected.", "sums", 71)
def owed_output() -> None:
    _replace(outbox.OwedOutput, "names", property(lambda self: frozenset()))


@rule(
    "Each record carries the output that earlier ones have left to be published.",
    "tests/unit/outbox/driver/test_outbox_schedules.py::TestRecord9::test_then_checkpoint_set",
)
def carried_output() -> None:
    real = outbox.outbox_section

    def section(*given: Any) -> Any:
        return replace(real(*given), unpublished=())

    _replace(outbox, "outbox_section", section)


@rule(
    "A durable stream is truncated only before what a retained checkpoint has still to read.",
    "tests/unit/start/test_durable_starts.py::test_streams_begin_at_the_oldest_retained_checkpoint",
)
def truncation() -> None:
    def needed(stream: Any, restorable: Any) -> dict[int, int]:
        own = list(restorable)[-1].section(STREAMS).streams.get(stream)
        return {} if own is None else dict(own.ends())

    _replace(records, "needed_offsets", needed)


# ---- Kafka.


@rule("A reader of Kafka takes only what is committed.", "topics", 0)
def only_committed() -> None:
    from penstock.system.kafka import client

    _replace(client, "_CONSUMER_DECIDED", {**client._CONSUMER_DECIDED, "isolation.level": "read_uncommitted"})


@rule("A publication to Kafka goes on behind the marks of the job's topic.", "topics", 1)
def kafka_progress() -> None:
    from penstock.system.kafka.writer import KafkaWriter

    _replace(KafkaWriter, "progress", lambda self, ssps: {})
    _replace(writer.Progress, "check_follows", lambda *_: None)


@rule(
    "A producer whose end of a transaction may be under way twice begins no other one.",
    "tests/kafka/test_kafka_late_requests.py::test_a_late_abort_loses_nothing",
)
def late_end() -> None:
    from penstock.system.kafka.writer_session import WriterSession

    real = WriterSession.lose_producer

    def lose_producer(self: Any, *, has_ended: bool = False) -> None:
        if not has_ended:
            real(self)

    _replace(WriterSession, "lose_producer", lose_producer)
