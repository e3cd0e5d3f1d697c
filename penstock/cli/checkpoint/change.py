"""What `penstock checkpoint set` and `import` share: show what would change, ask, write it, and say so."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import typer

from penstock.admin.checkpoint.append import append_successor
from penstock.admin.job.lease import watch_lease
from penstock.admin.jobs import FoundJob
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.edit import Content, OffsetChange
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.cli.checkpoint.offsets import STDIN
from penstock.cli.shared.errors import say
from penstock.cli.shared.output import print_json, print_table
from penstock.config.model import JobConfig
from penstock.errors import ConfigError, PenstockError
from penstock.metadata.lease import LeaseHeldError
from penstock.system.base import PartitionOffsets
from penstock.system.registry import open_system

Yes = Annotated[bool, typer.Option("--yes", help="Do it without a question.")]


@dataclass(frozen=True, slots=True)
class Manner:
    """How a change is made: with a question, if there is a terminal and `--yes` was not given, and how it is shown."""

    yes: bool
    may_ask: bool
    as_json: bool

    @classmethod
    def of(cls, *, yes: bool, as_json: bool, file: str) -> Manner:
        """By the options of the call; `file` is what it reads. Raises ConfigError if they do not go together."""
        if as_json and not yes:
            raise ConfigError("--json prints nothing but JSON to a program, so it asks no question: add --yes")
        return cls(yes, sys.stdin.isatty() and file != STDIN, as_json)


@dataclass(frozen=True, slots=True)
class Plan:
    """A checkpoint to be made: `content`, and for the rest what `base` says. `before` is what holds now."""

    base: CheckpointRecord
    before: Content | None
    content: Content
    changes: tuple[OffsetChange, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PositionFacts:
    """A changed position, as it is shown."""

    task: int
    stream: str
    partition: int
    old_next: int | None
    new_next: int

    @classmethod
    def of(cls, change: OffsetChange) -> PositionFacts:
        """The facts of a change."""
        return cls(change.task, str(change.ssp.system_stream), change.ssp.partition, change.old, change.new)


@dataclass(frozen=True, slots=True)
class ChangeFacts:
    """What was done. Without a `checkpoint` nothing was to be changed, and nothing was written. `origin` is the one it
    was made from; `markers` says of how many tasks there is one, by backend and store."""

    job: str
    origin: str | None
    checkpoint: str | None
    changes: tuple[PositionFacts, ...]
    markers: Mapping[str, Mapping[str, int]]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StreamEnds:
    """What the systems know of streams, and why they know nothing of others."""

    ends: Mapping[SystemStreamPartition, PartitionOffsets]
    unknown: Mapping[SystemStream, str]

    def warnings(self) -> tuple[str, ...]:
        """What cannot be checked."""
        return tuple(
            f"the offsets of `{stream}` are not checked, which the job's next start does: {why}"
            for stream, why in self.unknown.items()
        )


def stream_ends(config: JobConfig, streams: Iterable[SystemStream]) -> StreamEnds:
    """Ask the systems for the ends of the streams."""
    ends: dict[SystemStreamPartition, PartitionOffsets] = {}
    unknown: dict[SystemStream, str] = {}
    for stream in sorted(set(streams)):
        try:
            admin = open_system(config.system(stream.system)).admin()
            try:
                found = admin.offsets(stream.stream)
            finally:
                admin.close()
        except PenstockError as error:
            unknown[stream] = str(error)
        else:
            ends |= {SystemStreamPartition(stream.system, stream.stream, number): end for number, end in found.items()}
    return StreamEnds(ends, unknown)


def changelogs(config: JobConfig, record: CheckpointRecord, task: int) -> dict[SystemStreamPartition, str]:
    """Which partition of which changelog stream is which store's, of a task of the checkpoint."""
    return config.changelog_partitions(record.stores, task)


def refuse_running(found: FoundJob, manner: Manner) -> None:
    """Raise LeaseHeldError if the job runs, before somebody thinks about an answer. Whoever is not asked finds that
    out when the job is claimed."""
    if manner.yes or not manner.may_ask:
        return
    lease = watch_lease(found.objects, found.paths.lease, wait=True)
    if lease.running == "running" and lease.holder is not None:
        raise LeaseHeldError(found.paths.lease, lease.holder)


def carry_out(found: FoundJob, log: CheckpointLog, seen: LogView, plan: Plan, command: str, manner: Manner) -> None:
    """Show the plan, ask, and write it; `seen` is the log it was made from. Nothing is written if nothing changes.

    Raises:
        ConfigError: there is nobody to ask.
        typer.Exit: the answer was no.
        What `append_successor` raises.
    """
    for note in plan.notes:
        say(f"note: {note}")
    record = None
    if plan.content != plan.before:
        if not manner.as_json:
            _show(found.paths.root, plan)
        for warning in plan.warnings:
            say(f"warning: {warning}")
        _ask(manner)
        record = append_successor(found, log, seen, plan.base, plan.content, command)
    if manner.as_json:
        print_json(_facts(found, plan, record))
    elif record is None:
        say(
            f"nothing to change: checkpoint {plan.base.id} says all of this already; if it is not the last one, "
            "`penstock run ... --from ID` begins with it"
        )
    else:
        say(f"checkpoint {record.id} is the last one of job `{found.paths.root}` now: its next start begins there")


def _ask(manner: Manner) -> None:
    if manner.yes:
        return
    if not manner.may_ask:
        raise ConfigError("nothing was changed: there is no terminal to ask on. --yes does it without a question")
    if not typer.confirm("Write a checkpoint that says so?", err=True):
        say("nothing was changed")
        raise typer.Exit(1)


def _show(job: str, plan: Plan) -> None:
    rows = [
        (each.task, each.ssp.system_stream, each.ssp.partition, each.old, each.new, _effect(each))
        for each in plan.changes
    ]
    if rows:
        columns = ("task", "stream", "partition", "next", "new next", "messages")
        print_table(f"Positions of {job} that change", columns, rows, right="task partition next")
    if plan.before is None or plan.before.markers != plan.content.markers:
        counts = _marker_counts(plan.content)
        markers = [(store, name, count) for name, own in counts.items() for store, count in own.items()]
        print_table(f"State of {job} from then on", ("store", "backend", "tasks"), markers, right="tasks")


def _effect(change: OffsetChange) -> str:
    if change.old is None:
        return "begins here"
    count = abs(change.new - change.old)
    return f"{count} back" if change.new < change.old else f"{count} ahead"


def _facts(found: FoundJob, plan: Plan, record: CheckpointRecord | None) -> ChangeFacts:
    return ChangeFacts(
        job=found.paths.root,
        origin=None if plan.before is None else str(plan.base.id),
        checkpoint=None if record is None else str(record.id),
        changes=tuple(PositionFacts.of(change) for change in plan.changes),
        markers=_marker_counts(plan.content),
        notes=plan.notes,
        warnings=plan.warnings,
    )


def _marker_counts(content: Content) -> dict[str, dict[str, int]]:
    counts = Counter((name, store) for task in content.markers.values() for name, own in task.items() for store in own)
    found: dict[str, dict[str, int]] = {}
    for (name, store), count in sorted(counts.items()):
        found.setdefault(name, {})[store] = count
    return found
