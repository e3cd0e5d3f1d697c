"""`penstock logs` and `penstock dashboard`: what a person watches until Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.wording import escaped, listed
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import Call, JobName, JsonCall, job_names
from penstock.errors import NotFoundError

if TYPE_CHECKING:
    from penstock.admin.jobs import FoundJob


def logs(
    job: JobName,
    *,
    call: JsonCall,
    lines: Annotated[int, typer.Option("-n", min=0, metavar="LINES")] = 200,
    follow: Annotated[bool, typer.Option("--follow", "-f")] = False,
) -> None:
    """Show what a job's containers on this host have logged and printed, by time.

    Each line begins with the name of its container. The driver's own log is where the program writes it.

    Args:
        lines: At most this many lines, of all containers together.
        follow: Continue with new lines, until Ctrl-C.
    """
    from penstock.admin.job.logs import container_logs
    from penstock.cli.shared.output import print_json_line

    try:
        with call.open(job) as found:
            for line in container_logs(found, lines, follow=follow):
                if call.as_json:
                    print_json_line(line)
                else:
                    typer.echo(f"{escaped(line.container)}  {escaped(line.text)}")
    except KeyboardInterrupt:
        if not follow:
            raise


PORT = 8450
TOKEN = "PENSTOCK_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable
"""The variable with the token: an option could be read by others on the host."""


def dashboard(
    jobs: Annotated[list[str] | None, typer.Argument(metavar="JOB", autocompletion=job_names)] = None,
    *,
    call: Call,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="PORT", min=0, max=65535)] = PORT,
) -> None:
    """Serve a page on which people look at jobs, until Ctrl-C.

    The page shows whether a job keeps up and what holds it back, its graph, inputs, batches, commits, stores and
    errors, running or not. It can stop and drain a job and set startpoints. It asks for the token in the address
    that this command prints. PENSTOCK_DASHBOARD_TOKEN sets the token, which then is not printed.

    Args:
        jobs: Only these jobs; without any, all.
        host: The address to listen on. All but 127.0.0.1 can be reached.
        port: 0 for any free one.
    """
    from penstock.admin.jobs import open_all_jobs
    from penstock.dashboard.server import Dashboard
    from penstock.dashboard.watch import Watches

    names = []
    for each in jobs or ():
        with call.open(each) as found:
            names.append(found.paths.root)

    @contextmanager
    def open_job(name: str) -> Iterator[FoundJob]:
        if names and name not in names:
            raise NotFoundError(f"this dashboard shows {listed([f'`{each}`' for each in names])} only")
        with call.open(name) as found:
            yield found

    @contextmanager
    def open_all() -> Iterator[list[FoundJob]]:
        with open_all_jobs(call.config, call.assignments) as found:
            yield [each for each in found if not names or each.paths.root in names]

    ended = threading.Event()

    def end(number: int, _: object) -> None:
        if ended.is_set():
            os._exit(128 + number)
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    watches = Watches(open_job, open_all)
    home = names[0] if len(names) == 1 else ""
    served = Dashboard(watches, open_job, host=host, port=port, token=os.environ.get(TOKEN) or None, home=home)
    try:
        typer.echo(served.printed_url)
        token = "" if not os.environ.get(TOKEN) else f" It asks for the token in {TOKEN}."
        say(f"Open this address in a browser.{token} Ctrl-C ends the dashboard, and no job.")
        ended.wait()
    finally:
        served.close()
