"""`penstock job`, `penstock drain` and `penstock stop`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.admin.job.delete import delete_job, job_content
from penstock.admin.job.drain import DrainFacts, cancel_drain, export_drains, import_drains
from penstock.admin.job.drain import drain as drain_job
from penstock.admin.job.fork import detach as detach_job
from penstock.admin.job.fork import fork as fork_job
from penstock.admin.job.fork import refuse_forked
from penstock.admin.job.logs import audit as audit_log
from penstock.admin.job.logs import audit_facts
from penstock.admin.job.ownership import SigningFacts
from penstock.admin.job.ownership import adopt as adopt_job
from penstock.admin.job.ownership import sign as sign_job
from penstock.admin.job.running import StopFacts, refuse_running
from penstock.admin.job.running import stop as stop_job
from penstock.base.wording import counted, listed, size_text
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import Call, JobName, JsonCall, Yes, command, confirm, read_text
from penstock.cli.shared.output import print_json, print_lines, show
from penstock.errors import ConfigError

app = typer.Typer(help="Delete, adopt, detach or sign a job, or show its audit log.", no_args_is_help=True)


@command(app, "delete")
def delete(job: JobName, yes: Yes = False, *, call: JsonCall) -> None:
    """Delete a job that is not running: its checkpoints, state and metadata, and its folders on this host.

    Its audit log stays. Its streams stay too, changelogs and intermediate streams included; `penstock stream delete`
    deletes those. If the command is interrupted, repeat it: until then, the job cannot be started.
    """
    with call.open(job) as found:
        refuse_running(found)
        refuse_forked(found)
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


@command(app, "detach")
def detach(job: JobName, call: JsonCall) -> None:
    """Copy what a fork still needs of its parent's objects, so that the parent may be deleted.

    The fork may run. If the command is interrupted, repeat it.
    """
    with call.open(job) as found:
        done = detach_job(found)
    if call.as_json:
        print_json(done)
    elif done.parent is None:
        say(f"job {done.job} needs no objects of another job; nothing was changed")
    else:
        copied = f"{counted(done.copied, 'object')}, {size_text(done.bytes)}"
        say(f"job {done.job} needs nothing of job {done.parent} any more: {copied} copied")


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


def drain(
    job: JobName,
    call: JsonCall,
    run_id: Annotated[str | None, typer.Option("--run", metavar="ID")] = None,
    operators: Annotated[list[str] | None, typer.Option("--operator", metavar="ID")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait")] = False,
    cancel: Annotated[bool, typer.Option("--cancel")] = False,
    export: Annotated[bool, typer.Option("--export")] = False,
    import_file: Annotated[str | None, typer.Option("--import", metavar="FILE")] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0)] = 3600.0,
) -> None:
    """Ask a job to process everything in flight and then end.

    The run reads no more input. All windows, timers and joins fire, whatever their time. The next start may then be of
    a changed program. A run that was killed drains at its next start, and so does the next run of a job that has none.
    With --operator, only what waits in these operators fires, and only they may be changed.

    Args:
        run_id: The run that is to drain, by its app.run.id. By default the present one, or the next if there is none.
        operators: Drain this operator alone, before its definition changes: all others keep what waits in them. May be
            repeated.
        wait: Wait until the run has drained.
        cancel: Withdraw the requests: the run continues from its last checkpoint.
        export: Only print the waiting requests, as messages of Samza's coordinator stream.
        import_file: Write the requests of this file: lines of {"key": ..., "value": ...}, as --export prints them; -
            for standard input.
        timeout_s: The longest time to wait.
    """
    if wait + cancel + export + (import_file is not None) > 1:
        raise ConfigError("give at most one of --wait, --cancel, --export and --import FILE: they exclude each other")
    if run_id is not None and (cancel or export or import_file is not None):
        raise ConfigError("--run names the run to ask, so it does not go with --cancel, --export and --import FILE")
    if operators and (cancel or export or import_file is not None):
        raise ConfigError("--operator names what drains, so it does not go with --cancel, --export and --import FILE")
    lines = None if import_file is None else read_text(import_file).split("\n")
    with call.open(job) as found:
        if export:
            exported = export_drains(found)
            print_lines(exported.lines, exported.notes)
            return
        if lines is not None:
            facts = import_drains(found, lines)
        elif cancel:
            facts = cancel_drain(found, timeout_s=timeout_s)
        else:
            facts = drain_job(found, run_id=run_id, operators=operators or (), wait=wait, timeout_s=timeout_s)
    call.tell(facts, _show_drain)


def _show_drain(facts: DrainFacts) -> None:
    for note in facts.notes:
        say(f"note: {note}")
    typer.echo(_text(facts))
    if facts.summary is not None:
        show(facts.summary.as_facts())


def _text(facts: DrainFacts) -> str:
    run = f"job {facts.job}, {'the next run' if facts.run_id is None else f'run {facts.run_id}'},"
    begins = "" if facts.is_running else "; it is not running: it drains at its next start, without reading input"
    alone = f" {listed([f'`{each}`' for each in facts.operators])} alone" if facts.operators else ""
    match facts.status:
        case "asked":
            return f"{run} was asked to drain{alone}{begins}"
        case "asked before":
            return f"{run} has already been asked to drain{alone}{begins}"
        case "drained":
            return f"{run} has drained{alone}; the last checkpoint is {facts.last_checkpoint}"
        case "cancelled":
            return f"{run} no longer drains; it continues from checkpoint {facts.last_checkpoint}"


def fork(
    job: JobName,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The fork: name-id, or a name alone.")],
    from_checkpoint: Annotated[str | None, typer.Option("--from", metavar="ID")] = None,
    *,
    call: JsonCall,
) -> None:
    """Make a job that begins with the state of another one, without a copy of it.

    It begins with the positions of that job, too. Both may run, and neither disturbs the other one. The fork's
    changelogs and durable streams are its own. Its outputs are those of its application: give them other names, unless
    both jobs are to write to the same streams. Start it with the application and the configuration of its parent, and
    `-c job.name=NEW`.

    Args:
        from_checkpoint: Fork this checkpoint, by its ID or label, instead of the last one.
    """
    with call.open(job) as found:
        made = fork_job(found, new, from_checkpoint)
    if call.as_json:
        print_json(made)
    else:
        name, _, job_id = made.job.rpartition("-")
        say(
            f"job {made.job} begins with checkpoint {made.parent_checkpoint} of job {made.parent}. Start it with its "
            f"name: penstock run ... -c job.name={name} -c job.id={job_id}"
        )


def stop(
    job: JobName,
    call: JsonCall,
    wait: Annotated[bool, typer.Option("--wait/--no-wait")] = True,
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0)] = 600.0,
) -> None:
    """Ask a running job to stop after its current batch, with a last commit.

    The command works from any machine that can reach the job root. It never stops a later run. A run that was asked to
    drain drains first.

    Args:
        wait: Wait until the run has ended.
        timeout_s: The longest time to wait.
    """
    with call.open(job) as found:
        call.tell(stop_job(found, wait=wait, timeout_s=timeout_s), _show_stop)


def _show_stop(facts: StopFacts) -> None:
    checkpoint = f"the last checkpoint is {facts.last_checkpoint}"
    if facts.status == "not running":
        typer.echo(f"job {facts.job} is not running; {checkpoint}")
    elif facts.status == "asked":
        first = "; it was asked to drain, and does so first" if facts.drains else ""
        typer.echo(f"job {facts.job}, run {facts.run_id}, was asked to stop after its current batch{first}")
    else:
        ended = "drained" if facts.drains else "ended"
        typer.echo(f"job {facts.job}, run {facts.run_id}, has {ended}; {checkpoint}")
