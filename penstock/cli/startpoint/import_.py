"""`penstock startpoint import`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from penstock.admin.startpoint.exchange import imported_requests
from penstock.admin.startpoint.inputs import open_startpoint_job
from penstock.cli.checkpoint.offsets import read_text
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.startpoint.asked import ask_for
from penstock.cli.startpoint.set import AppOption, DryRun
from penstock.errors import ConfigError
from penstock.wording import counted


def import_startpoints(
    job: JobName,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help='Lines of {"key": ..., "value": ...}, as `startpoint export` prints them; - for standard input.',
            show_default=False,
        ),
    ],
    dry_run: DryRun = False,
    application: AppOption = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Ask for the startpoints in messages of Samza's coordinator stream: the inverse of `export`.

    What Samza has fanned out to a task becomes that task's. Expired ones are passed over.
    """
    found, notes = imported_requests(read_text(file).split("\n"))
    with open_startpoint_job(job, application, config, assignments) as target:
        now_ms, ttl_ms = time.time_ns() // 1_000_000, target.found.config.job.startpoint_ttl_ms
        live = [request for request in found if not request.is_expired(now_ms, ttl_ms)]
        if len(live) < len(found):
            expired = counted(len(found) - len(live), "startpoint")
            notes.append(f"passed over: {expired} older than job.startpoint.ttl.ms")
        if not live:
            raise ConfigError("; ".join(["there is no startpoint to apply in the file", *notes]))
        ask_for(target, live, dry_run=dry_run, as_json=as_json, notes=notes)
