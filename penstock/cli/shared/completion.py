"""Completion of arguments in the shell."""

from __future__ import annotations

from contextlib import suppress

import typer


def job_names(ctx: typer.Context) -> list[str]:
    """The jobs in `job.root`, by the options that were typed before. The list is empty if the root cannot be read, or
    is an object store, which would take the shell too long."""
    from penstock.admin.jobs import load_without_job, open_all_jobs

    with suppress(Exception):  # the command itself reports it
        call = ctx.params.get("config"), ctx.params.get("assignments")
        if load_without_job(*call).job.root.startswith("file:"):
            with open_all_jobs(*call) as jobs:
                return [found.paths.root for found in jobs]
    return []
