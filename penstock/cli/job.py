"""`penstock job`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.admin.job.audit import audit as audit_log
from penstock.admin.job.audit import audit_facts
from penstock.admin.job.delete import delete_job, job_content
from penstock.admin.job.ownership import SigningFacts
from penstock.admin.job.ownership import adopt as adopt_job
from penstock.admin.job.ownership import sign as sign_job
from penstock.admin.job.running import refuse_running
from penstock.base.wording import counted
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import Call, JobName, JsonCall, Yes, command, confirm
from penstock.cli.shared.output import print_json, show

app = typer.Typer(help="Delete, adopt or sign a job, or show its audit log.", no_args_is_help=True)


@command(app, "delete")
def delete(job: JobName, yes: Yes = False, *, call: JsonCall) -> None:
    """Delete a job that is not running: its checkpoints, state and metadata, and its folders on this host.

    Its audit log stays. Its streams stay too, changelogs and intermediate streams included; `penstock stream delete`
    deletes those. If the command is interrupted, repeat it: until then, the job cannot be started.
    """
    with call.open(job) as found:
        refuse_running(found)
        content = job_content(found)
        if not call.as_json:
            show(content.as_facts())
        confirm(f"Delete job {content.job}?", yes=yes)
        delete_job(found, content)
    if call.as_json:
        print_json(content)
    else:
        say(f"job {content.job} was deleted")
        if content.changelogs:
            commands = "\n".join(f"  penstock stream delete {stream}{call.options}" for stream in content.changelogs)
            say(f"its changelogs and intermediate streams are still there; to delete them:\n{commands}")


@command(app, "adopt")
def adopt(job: JobName, moved: Annotated[bool, typer.Option("--moved")] = False, *, call: Call) -> None:
    """Make a copied job folder a separate job, which can run beside the original.

    The copy continues from the copied checkpoints. It writes to the outputs of the original, as a separate writer,
    unless the configuration names others. Changelog streams belong to the original: name others for the copy.

    Args:
        moved: The folder was moved and its old place is empty: it remains the same job.
    """
    with call.open(job) as found:
        root = found.config.job.root
        before, after = adopt_job(found, moved=moved)
    name = found.paths.root
    if before == after:
        say(f"job {name} already belongs to {after.folder}; nothing was changed")
    elif before.uid == after.uid:
        say(f"job {name} now belongs to {after.folder}, and is the same job as before")
    else:
        say(
            f"job {name} in {root} is a separate job now, with the uid {after.uid}. It writes to the outputs "
            "of its application beside the original, unless the configuration names others"
        )


@command(app, "sign")
def sign(job: JobName, call: JsonCall) -> None:
    """Sign the objects of a job that is not running, and its records in Kafka, with `job.root.key`.

    The first time, the command trusts objects and records without a signature as they are: make sure before that nobody
    else could write to the root and to Penstock's topics. Later, it refuses such objects and leaves out such records.
    It verifies what is signed with `job.root.key.previous`, and signs it with the new key. If the command is
    interrupted, repeat it.
    """
    with call.open(job) as found:
        call.tell(sign_job(found), _show_signed)


def _show_signed(facts: SigningFacts) -> None:
    say(f"job {facts.job}: {counted(facts.signed, 'object')} of {facts.objects} signed; the others were before")


@command(app, "audit")
def audit(
    job: JobName, limit: Annotated[int, typer.Option("--limit", metavar="N", min=1)] = 50, *, call: JsonCall
) -> None:
    """Show what operators did to a job, newest last: who, when, with which command, what changed, and the outcome.

    The log stays when the job is deleted.

    Args:
        limit: Show so many of the newest records.
    """
    with call.open(job, deleted=True) as found:
        records = audit_log(found, limit)
    call.tell(records, lambda each: show(audit_facts(each, found.paths.root)))
