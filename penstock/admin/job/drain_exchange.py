"""Drain notifications as messages of Samza's coordinator stream, out and in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.admin.coordinator_stream import coordinator_line, last_messages
from penstock.admin.job.drain import DrainFacts, ask_for_drain
from penstock.admin.jobs import FoundJob
from penstock.api.drain import DrainNotification
from penstock.drain.notification import NAMESPACE, decode_notification, encode_notification
from penstock.drain.requests import DrainRequests
from penstock.errors import CorruptError
from penstock.wording import counted


@dataclass(frozen=True, slots=True)
class ExportedDrains:
    """Messages of Samza's coordinator stream as JSON texts, and notes about what these leave out."""

    lines: tuple[str, ...]
    notes: tuple[str, ...]


def export_drains(job: FoundJob) -> ExportedDrains:
    """The requests to drain the job, whichever run they name, in the form of Samza's coordinator stream.

    What cannot be read is left out, and `notes` names it.

    Args:
        job: the job.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     admin.export_drains(job).lines
        ()
    """
    found = DrainRequests(job.objects, job.paths).find()
    notes = tuple(f"left out: {problem}" for _, problem in found.unreadable)
    return ExportedDrains(tuple(map(_exported_line, found.notifications)), notes)


def import_drains(job: FoundJob, lines: Iterable[str]) -> DrainFacts:
    """Ask the present run to drain with the requests in messages of Samza's coordinator stream, the inverse of
    `export_drains`. Each keeps its uuid. Requests for other runs are left out, unless the job has no run and theirs may
    still come.

    Args:
        job: the job.
        lines: JSON texts, `{"key": ..., "value": ...}`. Of equal keys the last one counts; one without a value deletes
            it.

    Raises:
        CorruptError: a line cannot be read; the message has its number. Nothing was written.
        NotFoundError: no line asks such a run to drain. Nothing was written.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     admin.import_drains(job, [])
        Traceback (most recent call last):
        ...
        penstock.errors.NotFoundError: no request asks the next run of job flights-1 to drain
    """
    notifications, notes = imported_notifications(lines)
    return ask_for_drain(job, notifications, notes)


def imported_notifications(lines: Iterable[str]) -> tuple[list[DrainNotification], list[str]]:
    """The notifications in lines of `{"key": ..., "value": ...}`, and what was passed over.

    Raises:
        CorruptError: a line cannot be read; it is named by its number.
    """
    messages, others = last_messages(lines, {NAMESPACE})
    found = []
    for line, _, key, value in messages:
        try:
            notification = decode_notification(value, key)
        except CorruptError as error:
            raise CorruptError(f"line {line}: {error}") from error
        if str(notification.uuid) != key:
            raise CorruptError(f"line {line}: the key is `{key}`, but the notification is {notification.uuid}")
        found.append(notification)
    return found, [f"skipped: {counted(others, 'message')} without a drain notification"] if others else []


def _exported_line(notification: DrainNotification) -> str:
    return coordinator_line(NAMESPACE, str(notification.uuid), encode_notification(notification).decode())
