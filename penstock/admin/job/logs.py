"""The audit log of a job, and the logs of its containers on this host.

The audit log says who changed what, when, with which command, and how it ended; the others what tasks print and log.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import BinaryIO, Literal

import psutil

from penstock.admin.jobs import FoundJob
from penstock.base.retry import SYSTEM_CLOCK
from penstock.base.secrets import PROGRAM
from penstock.base.wording import utc_text
from penstock.errors import NotFoundError, PenstockError
from penstock.facts import Facts, FactTable
from penstock.host.logs import log_directory, logs_in
from penstock.job.commands import AuditEntry, AuditLog
from penstock.job.identity import uid_here

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


_TIME = re.compile(r'(?:\{"time":")?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)')
_TAIL_BYTES = 1 << 20
_READ_BYTES = 1 << 20
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a container's log. `time` is that of the line, or of the last line before it that has one, in UTC;
    empty if there is none."""

    container: str
    time: str
    text: str


def container_logs(job: FoundJob, lines: int = 200, *, follow: bool = False) -> Iterator[LogLine]:
    """The last lines of all containers' logs on this host, by time.

    Logs of containers that have ended are included, as long as the host keeps them.

    Args:
        job: the job.
        lines: how many, of all logs together; each log has its last megabyte.
        follow: continue with the lines that are written, without an end.

    Raises:
        NotFoundError: no container of the job has run on this host.

    Example:
        >>> with admin.open_job("flights") as job:  # doctest: +SKIP
        ...     [line.text for line in admin.container_logs(job, 1)]
        ['N14228 is new here']
    """
    folder = log_directory(job.config, job.paths, uid_here(job.objects, job.paths, job.config.job.root))
    logs = _Logs(folder)
    found = logs.last()
    if not logs.known and not follow:
        raise NotFoundError(
            f"no container of job `{job.paths.root}` has logged to `{folder}` on this host. Each container logs on the "
            "host that it runs on"
        )
    return _lines(logs, found[-lines:] if lines else [], follow=follow)


def _lines(logs: _Logs, found: list[LogLine], *, follow: bool) -> Iterator[LogLine]:
    yield from found
    while follow:
        time.sleep(_POLL_S)
        yield from logs.new()


class _Log:
    """One log, and how far it was read."""

    def __init__(self, path: Path, container: str) -> None:
        self._path = path
        self._container = container
        self._inode = 0
        self._position = 0
        self._time = ""

    def last(self) -> list[LogLine]:
        """The lines at the end."""
        with self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._inode, self._position = os.fstat(file.fileno()).st_ino, max(0, size - _TAIL_BYTES)
        lines = self.new()
        return lines[1:] if size > _TAIL_BYTES else lines  # the first one is not whole

    def new(self) -> list[LogLine]:
        """The whole lines that were written since. If the log was cut, they begin in the part before the cut."""
        found: list[LogLine] = []
        with self._path.open("rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._inode:
                found += self._rest()
                self._inode, self._position = inode, 0
            return found + self._read(file)

    def _rest(self) -> list[LogLine]:
        with suppress(FileNotFoundError), self._path.with_suffix(".log.1").open("rb") as file:
            if os.fstat(file.fileno()).st_ino == self._inode:
                return self._read(file)
        return []

    def _read(self, file: BinaryIO) -> list[LogLine]:
        file.seek(self._position)
        lines = []
        while (data := file.read(_READ_BYTES)) and (end := _whole_lines(data)):
            self._position += end
            file.seek(self._position)
            for line in data[:end].decode(errors="replace").splitlines():
                if (written := _TIME.match(line)) is not None:
                    self._time = written[1]
                lines.append(LogLine(self._container, self._time, line))
        return lines


def _whole_lines(data: bytes) -> int:
    """The length of the whole lines in the data. A line longer than one read is cut."""
    return data.rfind(b"\n") + 1 or (len(data) if len(data) == _READ_BYTES else 0)


class _Logs:
    """All logs in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.known: dict[Path, _Log] = {}

    def last(self) -> list[LogLine]:
        return self._sorted(first=True)

    def new(self) -> list[LogLine]:
        return self._sorted(first=False)

    def _sorted(self, *, first: bool) -> list[LogLine]:
        found: list[LogLine] = []
        paths = logs_in(self._folder)
        self.known = {path: log for path, log in self.known.items() if path in paths}
        for path, container in paths.items():
            log = self.known.setdefault(path, _Log(path, container))
            try:
                found += log.last() if first else log.new()
            except FileNotFoundError:
                continue  # it was deleted meanwhile
        return sorted(found, key=lambda line: line.time)
