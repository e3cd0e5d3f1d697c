"""`penstock state verify`. What it needs of Arrow and RocksDB is imported when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.admin.jobs import open_job
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.output import print_json, print_table
from penstock.cli.state.options import Version
from penstock.wording import size_text

if TYPE_CHECKING:
    from penstock.admin.state.reading import StateVerdict


def verify_state(
    job: JobName,
    version: Version = "latest",
    store: Annotated[
        list[str] | None, typer.Option("--store", metavar="STORE", help="Only this store; may be repeated.")
    ] = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Restore a retained version from each backend to a scratch folder, and compare the entries key by key.

    The exit status is 1 if a backend cannot be restored or two backends of a store differ: it is not safe to switch.
    """
    from penstock.admin.state.reading import verify
    from penstock.cli.state.reading import restoring

    with open_job(job, config, assignments) as found, restoring() as view:
        verdict = verify(found, version, store or (), watcher=view)
    if as_json:
        print_json(verdict)
    else:
        _show(verdict)
    if not verdict.agrees:
        raise typer.Exit(1)


def _show(found: StateVerdict) -> None:
    rows = []
    for verdict in found.stores:
        for backend in verdict.backends:
            digest = backend.digest
            rows.append(
                (
                    verdict.store,
                    backend.backend,
                    None if digest is None else digest.entries,
                    None if digest is None else size_text(digest.size_bytes),
                    None if digest is None else digest.sha256[:16],
                    backend.problem or ("the same" if verdict.agrees else "restored"),
                )
            )
    columns = ("store", "backend", "entries", "size", "digest", "verdict")
    print_table(f"State of checkpoint {found.checkpoint}", columns, rows, right="entries size", first_to_go="digest")
    for verdict in found.stores:
        if not verdict.agrees:
            say(f"the backends of store `{verdict.store}` differ: it is not safe to switch")
