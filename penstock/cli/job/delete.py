"""`penstock job delete`."""

from __future__ import annotations

from penstock.admin.job.delete import JobContent, delete_job, job_content
from penstock.admin.job.lease import refuse_running
from penstock.admin.jobs import open_job
from penstock.cli.shared.commands import as_pasted
from penstock.cli.shared.confirm import Yes, confirm
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.output import print_facts, print_json
from penstock.wording import counted, size_text


def delete(
    job: JobName,
    yes: Yes = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Delete a job that is not running: its checkpoints, state and metadata, and its folders on this host.

    Its audit log stays. Its streams stay too, changelogs and intermediate streams included; `penstock stream delete`
    deletes those. If the command is interrupted, repeat it: until then, the job cannot be started.
    """
    with open_job(job, config, assignments) as found:
        refuse_running(found)
        content = job_content(found)
        if not as_json:
            _show(content)
        confirm(f"Delete job {content.job}?", yes=yes)
        delete_job(found, content)
    if as_json:
        print_json(content)
    else:
        say(f"job {content.job} was deleted")
        if content.changelogs:
            commands = "\n".join("  " + as_pasted(f"penstock stream delete {stream}") for stream in content.changelogs)
            say(f"its changelogs and intermediate streams are still there; to delete them:\n{commands}")


def _show(content: JobContent) -> None:
    print_facts(
        [
            ("job", content.job),
            ("job root", content.root),
            *(("root of a backend", root) for root in content.roots),
            ("checkpoints", content.checkpoints),
            ("state", f"{counted(content.state_objects, 'object')}, {size_text(content.state_bytes)}"),
            *_tables(content),
            *_outbox(content),
            ("metadata", counted(content.metadata_objects, "object")),
            *(("folder of this host", folder) for folder in content.folders),
            *(("stream that stays", stream) for stream in content.changelogs),
        ]
    )


def _tables(content: JobContent) -> list[tuple[str, str]]:
    if not content.table_objects:
        return []
    return [("pushed tables", f"{counted(content.table_objects, 'object')}, {size_text(content.table_bytes)}")]


def _outbox(content: JobContent) -> list[tuple[str, str]]:
    if not content.outbox_objects:
        return []
    left = f", with {counted(content.unpublished_messages, 'message')} that may not be published yet"
    return [("outbox", counted(content.outbox_objects, "object") + (left if content.unpublished_messages else ""))]
