"""`penstock drain`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.admin.job.drain import DrainFacts, cancel_drain
from penstock.admin.job.drain import drain as drain_job
from penstock.admin.jobs import open_job
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.output import print_json


def drain(
    job: JobName,
    config: ConfigFile = None,
    assignments: Assignments = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the run has drained.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Take the requests back: the run goes back to its last checkpoint.")
    ] = False,
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait.")] = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Ask a job to process everything in flight, and to end.

    The next start may then be of a changed program. The run reads nothing more from its inputs. Windows, timers and
    joins fire, whatever their time. A run that was killed drains at its next start.
    """
    with open_job(job, config, assignments) as found:
        facts = cancel_drain(found, timeout_s=timeout_s) if cancel else drain_job(found, wait=wait, timeout_s=timeout_s)
    if as_json:
        print_json(facts)
    else:
        typer.echo(_text(facts))


def _text(facts: DrainFacts) -> str:
    run = f"job {facts.job}, run {facts.run_id},"
    begins = "" if facts.is_running else "; nobody runs it: it drains at its next start, without reading anything"
    match facts.status:
        case "asked":
            return f"{run} was asked to drain{begins}"
        case "asked before":
            return f"{run} has already been asked to drain{begins}"
        case "drained":
            return f"{run} has drained; the last checkpoint is {facts.last_checkpoint}"
        case "cancelled":
            return f"{run} no longer drains; it continues from checkpoint {facts.last_checkpoint}"
