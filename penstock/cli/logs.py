"""`penstock logs`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.base.wording import escaped
from penstock.cli.shared.options import JobName, JsonCall


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
