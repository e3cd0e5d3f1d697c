"""`penstock drain`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.admin.job.drain import DrainFacts, ExportedDrains, cancel_drain, export_drains, import_drains
from penstock.admin.job.drain import drain as drain_job
from penstock.admin.jobs import open_job
from penstock.cli.job.drain_table import print_drain
from penstock.cli.shared.errors import say
from penstock.cli.shared.files import read_text
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.output import print_json
from penstock.errors import ConfigError


def drain(
    job: JobName,
    config: ConfigFile = None,
    assignments: Assignments = None,
    run_id: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="ID",
            help="The run that is to drain, by its app.run.id. By default the present one, or the next if there is "
            "none.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the run has drained.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Withdraw the requests: the run continues from its last checkpoint.")
    ] = False,
    export: Annotated[
        bool,
        typer.Option("--export", help="Only print the waiting requests, as messages of Samza's coordinator stream."),
    ] = False,
    import_file: Annotated[
        str | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help='Write the requests of this file: lines of {"key": ..., "value": ...}, as --export prints them; - for '
            "standard input.",
            show_default=False,
        ),
    ] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait.")] = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Ask a job to process everything in flight and then end.

    The run reads no more input. All windows, timers and joins fire, whatever their time. The next start may then be of
    a changed program. A run that was killed drains at its next start, and so does the next run of a job that has none.
    """
    if wait + cancel + export + (import_file is not None) > 1:
        raise ConfigError("give at most one of --wait, --cancel, --export and --import FILE: they exclude each other")
    if run_id is not None and (cancel or export or import_file is not None):
        raise ConfigError("--run names the run to ask, so it does not go with --cancel, --export and --import FILE")
    lines = None if import_file is None else read_text(import_file).split("\n")
    with open_job(job, config, assignments) as found:
        if export:
            _print_exported(export_drains(found))
            return
        if lines is not None:
            facts = import_drains(found, lines)
        elif cancel:
            facts = cancel_drain(found, timeout_s=timeout_s)
        else:
            facts = drain_job(found, run_id=run_id, wait=wait, timeout_s=timeout_s)
    if as_json:
        print_json(facts)
    else:
        for note in facts.notes:
            say(f"note: {note}")
        typer.echo(_text(facts))
        if facts.summary is not None:
            print_drain(facts.summary)


def _print_exported(exported: ExportedDrains) -> None:
    for note in exported.notes:
        say(f"note: {note}")
    sys.stdout.writelines(f"{line}\n" for line in exported.lines)


def _text(facts: DrainFacts) -> str:
    run = f"job {facts.job}, {'the next run' if facts.run_id is None else f'run {facts.run_id}'},"
    begins = "" if facts.is_running else "; it is not running: it drains at its next start, without reading input"
    match facts.status:
        case "asked":
            return f"{run} was asked to drain{begins}"
        case "asked before":
            return f"{run} has already been asked to drain{begins}"
        case "drained":
            return f"{run} has drained; the last checkpoint is {facts.last_checkpoint}"
        case "cancelled":
            return f"{run} no longer drains; it continues from checkpoint {facts.last_checkpoint}"
