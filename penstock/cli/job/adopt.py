"""`penstock job adopt`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.admin.job.ownership import adopt as adopt_job
from penstock.admin.jobs import open_job
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import Assignments, ConfigFile, JobName


def adopt(
    job: JobName,
    moved: Annotated[
        bool,
        typer.Option("--moved", help="The folder was moved and its old place is empty: it remains the same job."),
    ] = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Make a copied job folder a separate job, which can run beside the original.

    The copy continues from the copied checkpoints. It writes to the outputs of the original, as a separate writer,
    unless the configuration names others. Changelog streams belong to the original: name others for the copy.
    """
    with open_job(job, config, assignments) as found:
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
