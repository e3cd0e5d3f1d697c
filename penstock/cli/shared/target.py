"""The job that a command changes, which its application describes where it has no checkpoint yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from penstock.admin.checkpoint.target import NAME_IT
from penstock.admin.jobs import FoundJob, open_job
from penstock.cli.shared.application import load_application
from penstock.errors import NotFoundError


@contextmanager
def open_target(
    name: str, application: str | None, file: Path | None, assignments: list[str] | None
) -> Iterator[FoundJob]:
    """The job of a name; with its application it need not have been started before.

    Raises:
        NotFoundError: there is no such job.
        ConfigError: the application is another job's; or as loading it.
    """
    with ExitStack() as stack:
        if application is not None:
            app = load_application(application).app
            yield stack.enter_context(open_job(name, file, assignments, app=app, called=application))
            return
        try:
            found = stack.enter_context(open_job(name, file, assignments))
        except NotFoundError as error:
            raise NotFoundError(f"{error}. If it was never started: {NAME_IT}") from error
        yield found
