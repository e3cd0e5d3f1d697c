"""`penstock state gc`. What it needs of Arrow and RocksDB is imported when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.admin.jobs import open_job
from penstock.admin.state.version import choose_version
from penstock.checkpoint.log import CheckpointLog
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.output import print_facts, print_json, print_table

if TYPE_CHECKING:
    from penstock.state.backends.base import Garbage

_SHOWN = 20


def collect_garbage(
    job: JobName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Delete what no retained checkpoint needs: what is left of runs that ended badly, and of backends that were
    dropped. A running job does so by itself; without --dry-run the job must be stopped."""
    from penstock.admin.job.ownership import owned_job
    from penstock.metadata.identity import known_uid
    from penstock.state.admins import BackendAdmins
    from penstock.system.registry import open_systems

    with open_job(job, config, assignments) as found:
        log = CheckpointLog(found.objects, found.paths)
        last = choose_version(log, found, "latest")
        admins = BackendAdmins(
            found.config,
            found.paths,
            found.objects,
            last.task_count,
            sorted(last.stores),
            open_systems(found.config),
            known_uid(found.objects, found.paths),
        )
        with owned_job(found, log, wanted=not dry_run) as epoch:
            view = log.read()
            garbage = admins.collect(epoch, view.restorable, list(view.left.values()), sweep=True, dry_run=dry_run)
        admins.close()
    if as_json:
        print_json({"dryRun": dry_run, "backends": garbage})
    else:
        _show_garbage(garbage, dry_run=dry_run)


def _show_garbage(garbage: dict[str, Garbage], *, dry_run: bool) -> None:
    verb = "would be deleted" if dry_run else "deleted"
    print_facts((backend, f"{len(found.names)} {verb}") for backend, found in garbage.items())
    for backend, found in garbage.items():
        if found.names:
            print_table("", (backend,), ((name,) for name in found.names[:_SHOWN]))
        if len(found.names) > _SHOWN:
            say(f"{backend}: and {len(found.names) - _SHOWN} more; --json names them all")
