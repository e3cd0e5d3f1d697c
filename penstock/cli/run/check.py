"""`penstock check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.shared.application import load_application
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import JsonCall
from penstock.cli.shared.output import print_facts

if TYPE_CHECKING:
    from penstock.admin.job.check import CheckFacts


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
    from penstock.admin.job.check import check_application

    loaded = load_application(application)
    facts = check_application(
        loaded.app,
        call.config,
        call.assignments,
        from_checkpoint=from_checkpoint,
        reset_operators=reset_operators or (),
    )
    call.tell(facts, _show)


def _show(facts: CheckFacts) -> None:
    begins = facts.begins_with or "nothing: the job has no checkpoint"
    state = " with empty stores" if facts.state_is_cleared else ""
    print_facts([("job", facts.job), ("tasks", facts.tasks), ("begins with", f"{begins}{state}")])
    for each in facts.notes:
        say(f"note: {each}")
    if facts.is_running:
        say("note: a driver has the job now: a start is refused until that one has ended")
    say(f"job {facts.job} could start")
