"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.shared.commands import remember_assignments, remember_file, remember_job
from penstock.cli.shared.errors import show_tracebacks

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The configuration, a YAML or properties file.",
        callback=remember_file,
        show_default=False,
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "-c",
        metavar="KEY=VALUE",
        help="Set a configuration key; may be repeated.",
        callback=remember_assignments,
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON to standard output.")]
Debug = Annotated[
    bool, typer.Option("--debug", callback=show_tracebacks, help="Show the Python traceback of a failure.")
]
JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="The job: `name-id`, or its name alone, to take `job.id` from the configuration.",
        callback=remember_job,
        show_default=False,
    ),
]
