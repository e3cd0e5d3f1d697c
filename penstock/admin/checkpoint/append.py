"""Appending a checkpoint to the log of a stopped job."""

from __future__ import annotations

import time

from penstock.admin.job.ownership import claimed_job
from penstock.admin.jobs import FoundJob
from penstock.checkpoint.edit import Content, successor
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import IncompatibleError, PenstockError, RetryableError
from penstock.retry import Retry, retry

_APPEND = Retry(pause_s=0.2, tries=5)


def append_successor(
    found: FoundJob, log: CheckpointLog, seen: LogView, base: CheckpointRecord, content: Content, command: str
) -> CheckpointRecord:
    """Claim the job and append the record that `edit.successor` makes. `seen` is the log that all was decided on.

    The record is in the log as a whole or not at all; a process that dies before leaves a claim, which changes nothing.

    Raises:
        LeaseHeldError: the job runs.
        IncompatibleError: somebody wrote a checkpoint since, or no start would begin with this one.
        FencedError: another driver took the job over meanwhile.
        PenstockError: the store failed, and whether the record is in the log is not known.
    """
    latest = seen.latest
    with claimed_job(found, log, command) as claim:
        view = log.known()
        if view.latest != latest or view.retained != seen.retained:
            raise IncompatibleError(
                f"nothing was changed: another process wrote a checkpoint of job `{found.paths.root}` after this "
                "command read the log. Run it again and look at the new changes"
            )
        now_ms = time.time_ns() // 1_000_000
        record = successor(base, content, view, claim, found.config.task, now_ms, time.monotonic_ns())
        append_record(log, record, found.paths.root)
    return record


def append_record(log: CheckpointLog, record: CheckpointRecord, job: str) -> None:
    """Append a record for a claim that is held. Retries what may pass; the same record twice is one record.

    Raises:
        FencedError: another driver took the job over meanwhile.
        PenstockError: the store failed, and whether the record is in the log is not known.
    """
    try:
        retry(lambda: log.append(record), _APPEND)
    except RetryableError as error:
        raise PenstockError(
            f"checkpoint {record.id} could not be written in {_APPEND.tries} tries: {error}. `penstock checkpoint "
            f"list {job}` shows whether the log has it nevertheless"
        ) from error
