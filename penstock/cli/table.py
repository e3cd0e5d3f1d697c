"""`penstock table`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.shared.errors import say
from penstock.cli.shared.options import JobName, JsonCall, command
from penstock.cli.shared.output import print_json, show

app = typer.Typer(help="Show the versions of pushed tables, or choose one.", no_args_is_help=True)
_NEWEST = "newest"
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="The name of the table.")]


@command(app, "versions")
def versions(
    job: JobName, table: Annotated[str | None, typer.Argument(metavar="TABLE")] = None, *, call: JsonCall
) -> None:
    """List the versions of one pushed table of a job, or of all of them.

    The version that the job is to use is marked. `penstock status` shows the version that a running job has loaded.

    Args:
        table: The name of the table; by default all.
    """
    from penstock.admin.table import table_versions

    with call.open(job) as found:
        tables = table_versions(found, table)
    if call.as_json:
        print_json(tables)
        return
    if not tables:
        say(f"job {found.paths.root} has no versions of pushed tables")
    for each in tables:
        show(each.as_facts())


@command(app, "use")
def use(
    job: JobName, table: TableName, version: Annotated[str, typer.Argument(metavar="VERSION")], call: JsonCall
) -> None:
    """Choose the version of a pushed table that a job uses, for example to go back to the previous one.

    A running job notices the choice within `tables.poll.ms`, and switches between two batches, in all tasks at once.

    Args:
        version: The number of the version; `newest` for the newest one, now and in future.
    """
    from penstock.admin.table import use_table

    if version != _NEWEST and not (version.isascii() and version.isdigit() and int(version) > 0):
        raise typer.BadParameter(f"a version is a number, or `{_NEWEST}`, not `{version}`")
    with call.open(job) as found:
        facts = use_table(found, table, None if version == _NEWEST else int(version))
    which = f"its newest version ({facts.to_use})" if facts.chosen is None else f"version {facts.chosen}"
    call.tell(facts, lambda _: say(f"table `{table}` of job {found.paths.root} uses {which} from the next batches on"))
