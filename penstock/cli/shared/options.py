"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.shared.errors import show_tracebacks

if TYPE_CHECKING:
    from penstock.config.model import JobConfig

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Configuration: a YAML or properties file.", show_default=False),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("-c", metavar="KEY=VALUE", help="A configuration key; may be repeated.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, to standard output.")]
Debug = Annotated[
    bool, typer.Option("--debug", callback=show_tracebacks, help="Show Python's traceback of a failure as well.")
]

NO_JOB = "none"
"""Stands for `job.name` where a command needs none."""


def load_without_job(file: Path | None, assignments: list[str] | None) -> JobConfig:
    """The configuration for a command that needs no `job.name`: what was given, else a placeholder."""
    from penstock.config.load import load_config

    return load_config(file, assignments=assignments or (), default_job_name=NO_JOB)
