"""A stopped job as the commands find it: a checkpoint log and input streams on disk, made without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.log import CheckpointLog, LogView
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Claim
from penstock.checkpoint.sections import Sections
from penstock.checkpoint.streams import CHANGELOG_STREAM, ChangelogStreamMarker
from penstock.checkpoint.task_versions import build_versions
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from penstock.system.local import LocalSystem
from tests.support.jobs.home import LOCK
from tests.support.stores.checkpoints import checkpoint
from tests.support.tools import cli

SSP = SystemStreamPartition
PATHS = JobPaths("flights", "1")
STREAM = "dep.flights"
CHANGELOG = "flights-1-aircraft-changelog"
"""The name that the configuration gives the changelog of store `aircraft` by default."""


def ssp(partition: int) -> SystemStreamPartition:
    return SSP("local", STREAM, partition)


def position(partition: int, offset: str | None, generation: str | None = None) -> str:
    return ChangelogStreamMarker(SSP("local", CHANGELOG, partition), offset, generation).serialize()


class StoppedJob:
    """Job flights-1: two tasks, one input of two partitions with ten messages each."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.objects = FileObjectStore(home / "jobs")
        self.system = LocalSystem("local", str(home / "streams"))
        self.system.admin().create_stream(STREAM, 2)
        for partition in range(2):
            self.publish(partition, 10)

    def publish(self, partition: int, count: int) -> None:
        """Append messages to a partition of the input."""
        writer = self.system.writer(None)
        writer.append(ssp(partition), [(0, b"key", b"value")] * count)
        writer.close()

    @property
    def log(self) -> LogView:
        """The log as it is on disk, which has to be whole."""
        return CheckpointLog(self.objects, PATHS).read()

    @property
    def last(self) -> CheckpointRecord:
        latest = self.log.latest
        assert latest is not None
        return latest

    def run(self, *records: CheckpointRecord, run_id: str = "run-a") -> Claim:
        """A run that claims the job and appends checkpoints like these."""
        log = CheckpointLog(self.objects, PATHS)
        claim = log.claim(run_id)
        for record in records:
            log.append(replace(record, epoch=claim.epoch, run_id=claim.run_id, writer=claim.writer))
        return claim

    def files(self) -> dict[str, bytes]:
        """Every object of the job but the lease and the audit log, and no lock of the store."""
        root = self.home / "jobs" / PATHS.root
        files = [path for path in root.rglob("*") if path.is_file() and not {"lease", "audit", LOCK} & set(path.parts)]
        return {str(path.relative_to(root)): path.read_bytes() for path in files}


def saved(number: int, offsets: tuple[int, int] = (4, 7), **changes: Any) -> CheckpointRecord:
    """Checkpoint `number`: next offsets of both partitions, store `aircraft` in two backends."""
    versions = changes.pop("versions", (2,))
    found = changes.pop("markers", None)
    checkpoint_id = CheckpointId(1_700_000_000_000 + number, 5)
    if found is None:
        found = {
            task: {
                "changelog-files": {"aircraft": f"m-{number}-{task}"},
                CHANGELOG_STREAM: {"aircraft": position(task, "8")},
            }
            for task in range(2)
        }
    record = replace(
        checkpoint(Claim(0, "", ""), number),
        id=checkpoint_id,
        task_count=2,
        batch=number,
        stores={"aircraft": "totals string json"},
        next_offsets={task: {ssp(task): offset} for task, offset in enumerate(offsets)},
        tasks={
            task: build_versions(
                checkpoint_id, {ssp(task): str(offset - 1)} if offset else {}, found.get(task, {}), versions
            )
            for task, offset in enumerate(offsets)
        },
        ended="stopped",
    )
    return replace(record, **changes)


def call(*arguments: str, status: int = 0, text: str | None = None, group: str = "checkpoint") -> tuple[str, str]:
    """`penstock checkpoint ...`, or another group of commands, in this process; what it prints and says."""
    return cli.call(group, *arguments, status=status, stdin=text)


def call_json(*arguments: str, text: str | None = None) -> Any:
    """The same with `--json`."""
    return json.loads(call(*arguments, "--json", text=text)[0])


def replaced_sections(log: CheckpointLog, sections: Sections) -> CheckpointRecord:
    """Append the last checkpoint once more, as one that has these sections."""
    last = log.read().checkpoints[-1]
    claim = log.claim(last.run_id)
    record = replace(
        last,
        id=replace(last.id, millis=last.id.millis + 1),
        parent=last.id,
        epoch=claim.epoch,
        writer=claim.writer,
        retained=None,
        sections=sections,
    )
    log.append(record)
    return record
