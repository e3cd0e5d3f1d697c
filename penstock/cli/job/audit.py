"""`penstock job audit`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.admin.job.audit import AuditRecord, UnreadableAuditRecord
from penstock.admin.job.audit import audit as audit_log
from penstock.admin.jobs import open_job
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.output import print_json, print_table
from penstock.wording import utc_text


def audit(
    job: JobName,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Show so many of the newest records.")] = 50,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show what operators did to a job, newest last: who, when, with which command, what changed, and the outcome.

    The log stays when the job is deleted.
    """
    with open_job(job, config, assignments, deleted=True) as found:
        records = audit_log(found, limit)
    if as_json:
        print_json(records)
        return
    print_table(
        f"Audit log of {found.paths.root}",
        ("time", "who", "action", "changed", "outcome", "program"),
        map(_row, records),
        first_to_go="program",
    )


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
