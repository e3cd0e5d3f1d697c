"""`penstock deploy`: a changed application takes over from a running job."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer

from penstock.admin.job.deploy import Deployment
from penstock.admin.state.repartition import Mover
from penstock.cli.run import loaded_for_run, run_shown
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import Call, Debug, JobName
from penstock.config.model import JobConfig


def deploy(
    job: JobName,
    application: Annotated[str, typer.Argument(metavar="APP")],
    call: Call,
    tasks: Annotated[int | None, typer.Option("--tasks", metavar="N", min=1)] = None,
    from_checkpoint: Annotated[str | None, typer.Option("--from", metavar="CHECKPOINT")] = None,
    reset_operators: Annotated[list[str] | None, typer.Option("--reset-operator", metavar="ID")] = None,
    rollback: Annotated[bool, typer.Option("--rollback")] = False,
    debug: Debug = False,
) -> None:
    """Run a changed application as a new job that takes over from a running one, without a gap in the output.

    The new job is a fork. It makes the batches of the old one with its output held back, until it has caught up. Then
    the old job stops with a last checkpoint and hands over, and the new one makes the rest and sends from there on.
    From then on, the command is as `penstock run` of the new job.

    A process that dies leaves one of the two in charge: give the command again, and it goes on. Until the old job has
    handed over, Ctrl-C leaves it in charge.

    Args:
        application: The changed application, as for `penstock run`. Its job needs another name than JOB.
        tasks: The number of tasks of the new job; by default that of JOB.
        from_checkpoint: Begin with this checkpoint of JOB, by its ID or label; by default the last.
        reset_operators: Do not take along what waits in this operator, such as a window that the application does not
            have any more; may be repeated.
        rollback: The job of the application is one that has handed over to JOB: bring it back.
    """
    loaded, settings = loaded_for_run(application, call)
    with call.open(job) as old:
        deployment = Deployment(
            old,
            settings,
            loaded.app,
            from_checkpoint=from_checkpoint,
            tasks=tasks,
            reset_operators=reset_operators or (),
            rollback=rollback,
            mover=_on_spark,
        )
        try:
            run_shown(deployment.paths.root, settings.job.log_format, deployment.start, deployment.step)
        finally:
            if not deployment.is_over:
                say(deployment.outcome())


def _on_spark(config: JobConfig) -> Mover:
    moved: Any = importlib.import_module("penstock.spark.state_frames.stored_state")
    mover: Mover = moved.mover(config, f"{config.job.name}-{config.job.id} repartition")
    return mover
