"""`penstock drain` and `penstock stop`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.admin.job.drain import DrainFacts, cancel_drain, export_drains, import_drains
from penstock.admin.job.drain import drain as drain_job
from penstock.admin.job.running import StopFacts
from penstock.admin.job.running import stop as stop_job
from penstock.base.wording import listed
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import JobName, JsonCall, read_text
from penstock.cli.shared.output import print_lines, show
from penstock.errors import ConfigError


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
