"""`penstock state gc`. What it needs of Arrow and RocksDB is imported when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.admin.jobs import open_job
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.output import print_facts, print_json, print_table

if TYPE_CHECKING:
    from penstock.admin.state.garbage import CollectedGarbage

_SHOWN = 20


def collect_garbage(
    job: JobName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Delete objects that no retained checkpoint needs, such as those of failed runs and of dropped backends.

    A running job does this by itself; without --dry-run the job must be stopped.
    """
    from penstock.admin.state import garbage

    with open_job(job, config, assignments) as found:
        collected = garbage.collect_garbage(found, dry_run=dry_run)
    if as_json:
        print_json(collected)
    else:
        _show(collected)


def _show(collected: CollectedGarbage) -> None:
    verb = "would be deleted" if collected.dry_run else "deleted"
    kinds = {backend: found.names for backend, found in collected.backends.items()}
    if collected.tables:
        kinds["pushed tables"] = collected.tables
    if collected.outbox:
        kinds["outbox"] = collected.outbox
    print_facts((kind, f"{len(names)} {verb}") for kind, names in kinds.items())
    for kind, names in kinds.items():
        if names:
            print_table("", (kind,), ((name,) for name in names[:_SHOWN]))
        if len(names) > _SHOWN:
            say(f"{kind}: and {len(names) - _SHOWN} more; --json lists them all")
