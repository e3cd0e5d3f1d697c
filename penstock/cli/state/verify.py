"""`penstock state verify`. What it needs of Arrow and RocksDB is imported when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.admin.jobs import open_job
from penstock.admin.state.version import Version, choose_version
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.output import print_json, print_table
from penstock.cli.state.reading import reading
from penstock.errors import NotFoundError
from penstock.wording import size_text

if TYPE_CHECKING:
    from penstock.state.reading.verify import StoreVerdict


def verify_state(
    job: JobName,
    version: Version = "latest",
    store: Annotated[list[str] | None, typer.Option("--store", help="Only this store; may be repeated.")] = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Restore each backend of a retained version to scratch and compare what they hold, key by key.

    Exit status 1 if a backend cannot be restored or two of one store differ: it is not safe to switch to it.
    """
    from penstock.state.reading.verify import verify

    with open_job(job, config, assignments) as found:
        record = choose_version(CheckpointLog(found.objects, found.paths), found, version)
        unknown = [name for name in store or () if name not in record.stores]
        if unknown:
            known = ", ".join(record.stores) or "none"
            raise NotFoundError(f"checkpoint {record.id} has no store `{unknown[0]}`; it has: {known}")
        with reading(found) as (reader, said):
            verdicts = verify(reader, record, store or sorted(record.stores), said)
    if as_json:
        print_json({"checkpoint": str(record.id), "stores": verdicts})
    else:
        _show(record, verdicts)
    if not all(verdict.agrees for verdict in verdicts):
        raise typer.Exit(1)


def _show(record: CheckpointRecord, verdicts: list[StoreVerdict]) -> None:
    rows = []
    for verdict in verdicts:
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
    print_table(f"State of checkpoint {record.id}", columns, rows, right="entries size", first_to_go="digest")
    for verdict in verdicts:
        if not verdict.agrees:
            say(f"store `{verdict.store}`: its backends do not all hold the same: it is not safe to switch")
