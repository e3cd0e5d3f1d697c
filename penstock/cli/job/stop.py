"""`penstock stop`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.admin.job.stop import stop as stop_job
from penstock.admin.jobs import open_job
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.output import print_json


def stop(
    job: JobName,
    config: ConfigFile = None,
    assignments: Assignments = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the run has ended.")] = True,
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait.")] = 600.0,
    as_json: AsJson = False,
) -> None:
    """Ask a running job to stop after its current batch, with a last commit.

    The command works from any machine that can reach the job root. It never stops a later run. A run that was asked to
    drain drains first.
    """
    with open_job(job, config, assignments) as found:
        facts = stop_job(found, wait=wait, timeout_s=timeout_s)
    if as_json:
        print_json(facts)
    else:
        checkpoint = f"the last checkpoint is {facts.last_checkpoint}"
        if facts.status == "not running":
            typer.echo(f"job {facts.job} is not running; {checkpoint}")
        elif facts.status == "asked":
            first = "; it was asked to drain, and does so first" if facts.drains else ""
            typer.echo(f"job {facts.job}, run {facts.run_id}, was asked to stop after its current batch{first}")
        else:
            ended = "drained" if facts.drains else "ended"
            typer.echo(f"job {facts.job}, run {facts.run_id}, has {ended}; {checkpoint}")
