"""`penstock startpoint import`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.admin.startpoint.set import import_startpoints as write_startpoints
from penstock.cli.shared.files import read_text
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.target import open_target
from penstock.cli.startpoint.asked import show_asked
from penstock.cli.startpoint.options import AppOption, DryRun


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
    """Set the startpoints in messages of Samza's coordinator stream: the inverse of `export`.

    A startpoint that Samza has fanned out to a task applies to that task. Expired ones are skipped.
    """
    lines = read_text(file).split("\n")
    with open_target(job, application, config, assignments) as found:
        facts = write_startpoints(found, lines, dry_run=dry_run)
    show_asked(facts, as_json=as_json)
