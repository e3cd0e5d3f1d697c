"""`penstock check`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.shared.application import load_application
from penstock.cli.shared.options import JsonCall


def check(
    application: Annotated[str, typer.Argument(metavar="APP")],
    from_checkpoint: Annotated[str | None, typer.Option("--from", metavar="ID")] = None,
    reset_operators: Annotated[list[str] | None, typer.Option("--reset-operator", metavar="ID")] = None,
    *,
    call: JsonCall,
) -> None:
    """Say everything for which a start of an application would be refused, without a start and without Spark.

    The command reads the configuration, the application, its streams and the last checkpoint, and writes nothing. It
    ends with status 0 if the job could start now.

    Args:
        application: The application, as `penstock run` takes it.
        from_checkpoint: As for `penstock run`: begin with this checkpoint.
        reset_operators: As for `penstock run`; may be repeated.
    """
    from penstock.admin.configuration import check_application

    loaded = load_application(application)
    facts = check_application(
        loaded.app,
        call.config,
        call.assignments,
        from_checkpoint=from_checkpoint,
        reset_operators=reset_operators or (),
    )
    call.show(facts)
