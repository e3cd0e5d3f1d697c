"""`penstock state`: `list`, `verify` and `gc`; the others have separate files. All load Arrow when they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from penstock.admin.jobs import VERSION_FORMS
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import JobName, JsonCall, command
from penstock.cli.shared.output import print_json, show, to_json
from penstock.cli.state.import_spark import import_spark
from penstock.cli.state.read import Version, diff_versions, get_value, scan_entries
from penstock.cli.state.repartition import repartition

_SHOWN = 20
app = typer.Typer(help="Read, compare, verify and move the backed-up state of a job.", no_args_is_help=True)


def list_state(
    job: JobName,
    version: Annotated[
        str | None, typer.Option("--version", "--checkpoint", metavar="V", help=f"Only this version: {VERSION_FORMS}.")
    ] = None,
    by_task: Annotated[bool, typer.Option("--tasks")] = False,
    *,
    call: JsonCall,
) -> None:
    """List the objects of each store and backend, for every retained checkpoint and under the job root.

    Nothing is restored. --json prints every task and whole markers.

    Args:
        by_task: List each task instead of their sum.
    """
    from penstock.admin.state.held import state_versions

    with call.open(job) as found:
        facts = state_versions(found, version)
    if call.as_json:
        document = to_json(facts)
        del document["damaged"]
        print_json(document)
        for note in facts.notes:
            say(note)
    else:
        show(facts.facts_by(task=by_task))
    if facts.damaged:
        say(
            f"the checkpoint log is damaged, so this may not be all: `penstock checkpoint list {facts.job}` shows where"
        )


def verify_state(
    job: JobName,
    version: Version = "latest",
    store: Annotated[list[str] | None, typer.Option("--store", metavar="STORE")] = None,
    *,
    call: JsonCall,
) -> None:
    """Restore a retained version from each backend to a scratch folder, and compare the entries key by key.

    The exit status is 1 if a backend cannot be restored or two backends of a store differ: it is not safe to switch.

    Args:
        store: Only this store; may be repeated.
    """
    from penstock.admin.state.reading import verify
    from penstock.cli.state.reading import restoring

    with call.open(job) as found, restoring() as view:
        verdict = verify(found, version, store or (), watcher=view)
    call.show(verdict)
    if not verdict.agrees:
        raise typer.Exit(1)


def collect_garbage(
    job: JobName, dry_run: Annotated[bool, typer.Option("--dry-run")] = False, *, call: JsonCall
) -> None:
    """Delete objects that no retained checkpoint needs, such as those of failed runs and of dropped backends.

    A running job does this by itself; without --dry-run the job must be stopped.

    Args:
        dry_run: Only show what would be deleted.
    """
    from penstock.admin.state import held as garbage

    with call.open(job) as found:
        collected = garbage.collect_garbage(found, dry_run=dry_run)
    call.show(collected)


_COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_state,
    "get": get_value,
    "scan": scan_entries,
    "diff": diff_versions,
    "verify": verify_state,
    "gc": collect_garbage,
    "import-spark": import_spark,
    "repartition": repartition,
}
for _name, _function in _COMMANDS.items():
    command(app, _name)(_function)
