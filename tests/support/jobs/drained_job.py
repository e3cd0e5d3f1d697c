"""A job that is drained, and what must come out of it, by a plain computation over the same messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from penstock.api.requests import DrainNotification
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.watermarks import TIME
from penstock.checkpoint.record import CheckpointRecord
from penstock.drain.requests import DRAIN, DrainRequests, write_drain_notification
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from tests.support.apps.drained_app import HOUR_MS, OUTPUTS, Message, group_of
from tests.support.jobs.fault_jobs import FaultHome
from tests.support.jobs.home import wait_until

PATHS = JobPaths("drained", "1")
FIRST_MS = 1_700_000_400_000 // HOUR_MS * HOUR_MS
EVERY_MS = HOUR_MS // 4
KEYS = 4
"""In each partition; no other partition has them."""
Read = Mapping[SystemStreamPartition, int]
"""Messages read, by partition."""


@dataclass(frozen=True)
class Expected:
    """The result of some messages once the job is drained."""

    panes: Counter[tuple[str, int]]
    """Messages by key and hour."""
    keys: Counter[str]
    """Messages that the first task gets, by key."""
    groups: Counter[str]
    """Messages that the last task counts, by group."""

    def first(self) -> dict[str, int]:
        """The store of the first tasks, without the entries of their drains."""
        return {f"count {key}": count for key, count in self.keys.items()} | {f"fired {key}": 1 for key in self.keys}

    def last(self) -> dict[str, int]:
        """The store of the last tasks, without the entries of their drains."""
        return {f"count {group}": count for group, count in self.groups.items()}


class DrainHome(FaultHome):
    """The streams and the job root of one job."""

    def __init__(
        self,
        folder: Path,
        app: str,
        *,
        partitions: int = 2,
        backends: tuple[str, ...] = ("changelog-files",),
        config: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(folder, backends, {"job.name": "drained", "task.commit.ms": 0, **(config or {})})
        self.app = app
        self.given: dict[SystemStreamPartition, list[Message]] = {}
        for stream in ("a", "b"):
            if stream == "a" or app.startswith("two") or app.endswith("two_inputs"):
                self.system.admin().create_stream(stream, partitions)
                self.given |= {SystemStreamPartition("local", stream, p): [] for p in range(partitions)}
        for stream in OUTPUTS:
            self.system.admin().create_stream(stream, partitions)
        self.tasks = partitions
        self.firing = "drain"
        """The reason that fired timers give."""
        self.objects = FileObjectStore(folder / "jobs")

    def put(
        self, number: int, *, streams: Sequence[str] = ("a", "b"), partitions: Sequence[int] = (0, 1), **more: Any
    ) -> None:
        """Append so many messages to every partition, by ascending times. `more` is in the last one of each."""
        for ssp, there in self.given.items():
            if ssp.stream not in streams or ssp.partition not in partitions:
                continue
            new: list[Message] = [
                {"key": f"k{10 * ssp.partition + n % KEYS}", "t": FIRST_MS + n * EVERY_MS, "n": n}
                for n in range(len(there), len(there) + number)
            ]
            new[-1] |= more
            writer = self.system.writer(None)
            writer.append(ssp, [(5, each["key"].encode(), orjson.dumps(each)) for each in new])
            writer.close()
            there += new

    @property
    def everything(self) -> dict[SystemStreamPartition, int]:
        """All that was put so far, as read."""
        return {ssp: len(there) for ssp, there in self.given.items()}

    def read(self, record: CheckpointRecord | None = None) -> dict[SystemStreamPartition, int]:
        """Messages that a checkpoint, by default the last one, has read of the inputs."""
        record = record or self.checkpoints[-1]
        found = {ssp: offset for own in record.next_offsets.values() for ssp, offset in own.items()}
        return {ssp: found[ssp] for ssp in self.given}

    # The oracle.

    def expect(self, read: Read) -> Expected:
        """The result of a plain computation."""
        panes: Counter[tuple[str, int]] = Counter()
        keys: Counter[str] = Counter()
        groups: Counter[str] = Counter()
        for ssp, there in self.given.items():
            for message in there[: read[ssp]]:
                if self.app.startswith("two_exchanges"):
                    groups[group_of(message)] += 1
                    if ssp.stream == "b":
                        continue
                keys[message["key"]] += 1
                if not self.app.startswith("task"):
                    panes[message["key"], message["t"] // HOUR_MS * HOUR_MS] += 1
        return Expected(panes, keys, groups)

    # What came.

    def panes(self) -> list[tuple[tuple[str, int], int]]:
        return [((key, pane["from"]), pane["count"]) for _, _, key, pane in self.messages("panes")]

    def kept(self, store: str, record: CheckpointRecord | None = None) -> dict[str, Any]:
        """A store of a checkpoint, by default the last one."""
        return dict(self.stored(store, record))

    def drains(self, operator: str) -> dict[str, dict[str, int]]:
        """The store of each task of an operator at its last drain, without the entries of its drains."""
        found: dict[str, dict[str, int]] = {}
        for _, _, name, kept in self.messages("drained"):
            if name.startswith(operator):
                found[name] = {each: count for each, count in kept.items() if not each.startswith("drains")}
        return found

    # Requests.

    @property
    def requests(self) -> DrainRequests:
        return DrainRequests(self.objects, PATHS)

    def ask(self) -> DrainNotification:
        """Have the present run drain."""
        return write_drain_notification(self.objects, PATHS)

    def await_checkpoint(self, read: Read, running: Any) -> None:
        """Wait until one has read so much; `running`: whether the job still runs."""
        wait_until(lambda: (self.has_log() and self.read() == read) or not running(), f"a checkpoint of {read}")

    def has_log(self) -> bool:
        return (self.folder / "jobs" / str(PATHS.root) / "checkpoints").exists() and bool(self.checkpoints)

    # The verdict.

    def verify_drained(self, notification: DrainNotification, *before: Read) -> None:
        """The last checkpoint is of a drain, and holds exactly what was read up to it. All that waited came out: once
        each, or, after failures, at least once. `before`: what was read when they came, but for what the drain has
        read. The request is gone."""
        last = self.checkpoints[-1]
        assert last.ended == "drained"
        assert last.section(DRAIN).answered == (str(notification.uuid),)
        assert (last.section(TIME).event_times, last.section(TIME).watermarks) == ({}, {})
        assert self.requests.find().notifications == ()
        read = self.read(last)
        expected = self.expect(read)
        self.verify_stores(last, expected)
        self.verify_output(expected, [self.expect(each) for each in before])

    def verify_stores(self, record: CheckpointRecord, expected: Expected) -> None:
        """The application's stores, and no others."""
        operators = self.operators
        assert set(record.stores) == set(operators)
        drains = {f"drains {task}": 1 for task in range(self.tasks)}
        for operator in operators:
            assert self.kept(operator, record) == {**getattr(expected, operator)(), **drains}

    def verify_output(self, expected: Expected, before: Sequence[Expected]) -> None:
        """Panes, timers, and what tasks found when they were drained."""
        panes = self.panes()
        timers = [(key, firing) for _, _, key, firing in self.messages("timers")]
        if before:
            known = set().union(*(each.panes.items() for each in (expected, *before)))
            assert set(expected.panes.items()) <= set(panes) <= known
        else:
            assert sorted(panes) == sorted(expected.panes.items())
            assert len(timers) == len(expected.keys)
        assert set(timers) == {(key, self.firing) for key in expected.keys}
        for operator in self.operators:
            found = self.drains(operator)
            assert found.keys() == {f"{operator} {task}" for task in range(self.tasks)}
            together = {name: count for own in found.values() for name, count in own.items()}
            assert together == getattr(expected, operator)()

    @property
    def operators(self) -> tuple[str, ...]:
        return ("first", "last") if self.app.startswith("two_exchanges") else ("first",)
