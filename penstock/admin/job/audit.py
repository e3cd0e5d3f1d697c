"""The audit log of a job: who changed what, when, with which command, and how it ended."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Literal

import psutil

from penstock.admin.jobs import FoundJob
from penstock.base.retry import SYSTEM_CLOCK
from penstock.base.secrets import PROGRAM
from penstock.base.wording import utc_text
from penstock.errors import PenstockError
from penstock.facts import Facts, FactTable
from penstock.job.commands import AuditEntry, AuditLog

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord(AuditEntry):
    """A change of a job by an operator. `record` is the key of its object in the job root. Times are epoch milliseconds
    by the clock of the operator's host. `program` is the command line without secrets, or `python`. `changes` are texts
    by what was changed, `before -> after` where the command knew both."""

    record: str
    outcome: Literal["done", "failed", "unknown"]
    """`unknown`: the command has not ended; it is at work, or was killed."""


@dataclass(frozen=True, slots=True)
class UnreadableAuditRecord:
    """A record that cannot be read; `problem` is the reason."""

    record: str
    problem: str


@dataclass(slots=True)
class AuditedChange:
    """A change that is under way. What is put into `changes` is written with the outcome."""

    record: str
    changes: dict[str, str]


def audit_facts(records: Sequence[AuditRecord | UnreadableAuditRecord], job: str) -> Facts:
    """The audit log of a job for people."""
    rows = map(_row, records)
    return Facts({}, (FactTable.of(f"Audit log of {job}", "time, who, action, changed, outcome, program?1", rows),))


def _row(record: AuditRecord | UnreadableAuditRecord) -> tuple[str | None, ...]:
    if isinstance(record, UnreadableAuditRecord):
        return (None, None, None, None, f"unreadable: {record.problem}", None)
    reason = "the command has not ended" if record.outcome == "unknown" else record.error
    return (
        utc_text(record.time_ms),
        f"{record.user}@{record.host}",
        record.action,
        "; ".join(f"{name}: {change}" for name, change in record.changes.items()) or None,
        f"{record.outcome}: {reason}" if reason else record.outcome,
        record.program,
    )


def audit(job: FoundJob, limit: int | None = None) -> tuple[AuditRecord | UnreadableAuditRecord, ...]:
    """The audit log of a job, newest last: one record for each call or command that changed something of the job.

    A record is written before the change. At most the newest 10,000 are kept.

    Args:
        job: the job. If it was deleted, `open_job` finds its log with `deleted=True`.
        limit: list only so many of the newest records; None for all.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     _ = admin.set_startpoint(job, "local.trips", ps.StartpointOldest(), partitions=[0], with_state="keep")
        ...     [(each.action, each.outcome, each.changes["local.trips 0"]) for each in admin.audit(job)]
        [('startpoint set', 'done', 'oldest, state keep: 3 -> 0')]
    """
    return tuple(_record(key, found) for key, found in AuditLog(job.objects, job.paths).read(limit))


def operator() -> str:
    """The name of the user who runs this process, or the user's number, because in a container it may have no name."""
    return psutil.Process().username()


def this_process() -> str:
    """The operator and the process, for the messages of other processes."""
    return f"{operator()} on host `{socket.gethostname()}` (process {os.getpid()})"


@contextmanager
def audited(job: FoundJob, action: str, changes: Mapping[str, str] | None = None) -> Iterator[AuditedChange]:
    """Record a change of the job: that it begins before the block, and its outcome after it.

    Args:
        job: the job.
        action: the verb and noun, as in the command.
        changes: what is going to change.

    Raises:
        PenstockError: the record could not be written. The block has not begun.
    """
    log = AuditLog(job.objects, job.paths)
    entry = AuditEntry(SYSTEM_CLOCK.now_ms(), operator(), socket.gethostname(), PROGRAM.get(), action, changes or {})
    try:
        change = AuditedChange(log.begin(entry), dict(entry.changes))
    except PenstockError as error:
        raise type(error)(f"nothing was changed, because the audit log could not be written: {error}") from error
    failure = None
    try:
        yield change
    except BaseException as error:
        failure = f"{type(error).__name__}: {error}"
        raise
    finally:
        _end(log, change, replace(entry, changes=change.changes, ended_ms=SYSTEM_CLOCK.now_ms(), error=failure))


def _end(log: AuditLog, change: AuditedChange, entry: AuditEntry) -> None:
    """Never fails: the change is done, even if the log cannot record the outcome."""
    try:
        log.end(change.record, entry)
    except PenstockError as error:
        logger.warning("the audit log does not have the outcome of this command: %s", error)


def _record(key: str, found: AuditEntry | str) -> AuditRecord | UnreadableAuditRecord:
    if isinstance(found, str):
        return UnreadableAuditRecord(key, found)
    outcome: Literal["done", "failed", "unknown"] = "unknown"
    if found.ended_ms is not None:
        outcome = "done" if found.error is None else "failed"
    own = {each.name: getattr(found, each.name) for each in fields(found)}
    return AuditRecord(**own, record=key, outcome=outcome)
