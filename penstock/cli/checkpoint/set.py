"""`penstock checkpoint set`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.admin.checkpoint.change import plan_offsets
from penstock.admin.jobs import open_job
from penstock.cli.checkpoint.change import carry_out
from penstock.cli.checkpoint.offsets import parse_offsets
from penstock.cli.shared.confirm import Confirmation, YesOnly
from penstock.cli.shared.files import read_text
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName


def set_offsets(
    job: JobName,
    offsets: Annotated[
        str,
        typer.Option(
            "--offsets",
            metavar="FILE",
            help='JSON: stream -> partition -> the NEXT offset to read, {"local.flights": {"3": 1200, "5": 0}}, or '
            "what `checkpoint show --json` prints; - for standard input.",
            show_default=False,
        ),
    ],
    from_checkpoint: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="ID",
            help="Begin with this checkpoint, not the last one, and change its offsets.",
            show_default=False,
        ),
    ] = None,
    yes: YesOnly = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Set where a stopped job continues to read its inputs.

    The command writes a new checkpoint, like the last one except for the offsets in the file. Each of them is that of
    the NEXT message to read (Samza's checkpoints hold the last one processed). Partitions that the file does not name
    keep their positions. The state does not move with the input.
    """
    confirmation = Confirmation.of(yes=yes, as_json=as_json, file=offsets)
    wanted = parse_offsets(read_text(offsets), offsets)
    with open_job(job, config, assignments) as found:
        confirmation.refuse_running(found)
        carry_out(plan_offsets(found, wanted, from_checkpoint), confirmation)
