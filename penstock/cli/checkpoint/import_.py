"""`penstock checkpoint import`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.admin.checkpoint.exchange import plan_import
from penstock.cli.checkpoint.change import carry_out
from penstock.cli.shared.confirm import Confirmation, YesOnly
from penstock.cli.shared.files import read_text
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.target import open_target


def import_checkpoint(
    job: JobName,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help='Lines of {"key": ..., "value": ...}, as `checkpoint export` prints them; - for standard input.',
            show_default=False,
        ),
    ],
    application: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="APP",
            help="The application, as for `penstock run`; needed if the job has no checkpoint yet.",
            show_default=False,
        ),
    ] = None,
    yes: YesOnly = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Make a checkpoint of a stopped job from messages of Samza's checkpoint topic: the inverse of `export`.

    The positions and state markers of all tasks come from the file; everything else comes from the last checkpoint or,
    if there is none, from the application. A partition without an offset in the file was never processed: it begins at
    its oldest message. Markers of backends that the job cannot use are left out, and a note names them. The import is
    refused if a store then has no marker.
    """
    confirmation = Confirmation.of(yes=yes, as_json=as_json, file=file)
    lines = read_text(file).split("\n")
    with open_target(job, application, config, assignments) as found:
        confirmation.refuse_running(found)
        carry_out(plan_import(found, lines), confirmation)
