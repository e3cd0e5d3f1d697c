"""`penstock state verify` and `gc`. What they need of Arrow and RocksDB is imported when they are called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.cli.errors import say
from penstock.cli.jobs import FoundJob, JobName, open_job
from penstock.cli.options import AsJson, Assignments, ConfigFile
from penstock.cli.output import print_facts, print_json, print_table, size_text, stderr_console
from penstock.errors import NotFoundError

if TYPE_CHECKING:
    from penstock.state.backends.base import Garbage
    from penstock.state.reader import StateReader
    from penstock.state.verify import StoreVerdict

app = typer.Typer(help="Look at the backed-up state of a job.", no_args_is_help=True)
_SHOWN = 20


@app.command("verify")
def verify_state(
    job: JobName,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="ID", help="The checkpoint; the last one if none is named.")
    ] = None,
    store: Annotated[list[str] | None, typer.Option("--store", help="Only this store; may be repeated.")] = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Restore each backend of a checkpoint to scratch and compare what they hold, key by key.

    Exit status 1 if a backend cannot be restored or two of one store differ: it is not safe to switch to it.
    """
    from penstock.state.verify import verify

    with open_job(job, config, assignments) as found:
        record = _pick(CheckpointLog(found.objects, found.paths).read(), checkpoint, found)
        unknown = [name for name in store or () if name not in record.stores]
        if unknown:
            known = ", ".join(record.stores) or "none"
            raise NotFoundError(f"checkpoint {record.id} has no store `{unknown[0]}`; it has: {known}")
        with _reading(found) as (reader, said):
            verdicts = verify(reader, record, store or sorted(record.stores), said)
    if as_json:
        print_json({"checkpoint": str(record.id), "stores": verdicts})
    else:
        _show(record, verdicts)
    if not all(verdict.agrees for verdict in verdicts):
        raise typer.Exit(1)


@app.command("gc")
def collect_garbage(
    job: JobName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Delete what no retained checkpoint needs: what is left of runs that ended badly, and of backends that were
    dropped. A running job does so by itself; without --dry-run the job must be stopped."""
    from penstock.cli.ownership import owned_job
    from penstock.state.admins import BackendAdmins
    from penstock.system.registry import open_systems

    with open_job(job, config, assignments) as found:
        log = CheckpointLog(found.objects, found.paths)
        last = _pick(log.read(), None, found)
        admins = BackendAdmins(
            found.config, found.paths, found.objects, last.task_count, sorted(last.stores), open_systems(found.config)
        )
        with owned_job(found, log, wanted=not dry_run) as epoch:
            view = log.read()
            garbage = admins.collect(epoch, view.restorable, list(view.left.values()), sweep=True, dry_run=dry_run)
        admins.close()
    if as_json:
        print_json({"dryRun": dry_run, "backends": garbage})
    else:
        _show_garbage(garbage, dry_run=dry_run)


def _pick(view: LogView, checkpoint: str | None, found: FoundJob) -> CheckpointRecord:
    """The checkpoint of an id, or the last one. Raises NotFoundError."""
    if checkpoint is not None:
        return view.find(checkpoint)
    if view.latest is None:
        raise NotFoundError(f"job `{found.paths.root}` has no checkpoint yet")
    return view.latest


class _Said:
    """Shows which backend of which store is being restored, and how many bytes were."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("restoring to scratch")
        self._bytes = 0
        self._last = ""

    def read(self, count: int) -> None:
        self._bytes += count
        self._show()

    def __call__(self, store: str, backend: str, task: int) -> None:
        self._last = f": {store} from {backend}, task {task} done"
        self._show()

    def _show(self) -> None:
        self._progress.update(self._task, description=f"restoring to scratch, {size_text(self._bytes)}{self._last}")


@contextmanager
def _reading(found: FoundJob) -> Iterator[tuple[StateReader, _Said]]:
    from penstock.state.reader import StateReader
    from penstock.system.registry import open_systems

    with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=stderr_console(), transient=True) as bar:
        said = _Said(bar)
        with StateReader(found.config, found.paths, found.objects, open_systems(found.config), said.read) as reader:
            yield reader, said


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
    print_table(f"State of checkpoint {record.id}", columns, rows, right="entries size")
    for verdict in verdicts:
        if not verdict.agrees:
            say(f"store `{verdict.store}`: its backends do not all hold the same: it is not safe to switch")


def _show_garbage(garbage: dict[str, Garbage], *, dry_run: bool) -> None:
    verb = "would be deleted" if dry_run else "deleted"
    print_facts((backend, f"{len(found.names)} {verb}") for backend, found in garbage.items())
    for backend, found in garbage.items():
        if found.names:
            print_table("", (backend,), ((name,) for name in found.names[:_SHOWN]))
        if len(found.names) > _SHOWN:
            say(f"{backend}: and {len(found.names) - _SHOWN} more; --json names them all")
