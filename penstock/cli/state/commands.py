"""`penstock state`: `list`, `verify` and `gc`; the others have separate files. All load Arrow when they are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.admin.state.version import FORMS
from penstock.base.wording import size_text
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import JobName, JsonCall, command
from penstock.cli.shared.output import print_facts, print_json, print_table, to_json
from penstock.cli.state.import_spark import import_spark
from penstock.cli.state.read import Version, diff_versions, get_value, scan_entries
from penstock.cli.state.repartition import repartition

if TYPE_CHECKING:
    from penstock.admin.state.garbage import CollectedGarbage
    from penstock.admin.state.held import HeldVersion, StateFacts
    from penstock.admin.state.reading import StateVerdict
    from penstock.state.backends.registry import StoredObjects

_SHOWN = 20
app = typer.Typer(help="Read, compare, verify and move the backed-up state of a job.", no_args_is_help=True)


def list_state(
    job: JobName,
    version: Annotated[
        str | None, typer.Option("--version", "--checkpoint", metavar="V", help=f"Only this version: {FORMS}.")
    ] = None,
    by_task: Annotated[bool, typer.Option("--tasks", help="List each task instead of their sum.")] = False,
    *,
    call: JsonCall,
) -> None:
    """List the objects of each store and backend, for every retained checkpoint and under the job root.

    Nothing is restored. --json prints every task and whole markers.
    """
    from penstock.admin.state.held import state_versions

    with call.open(job) as found:
        facts = state_versions(found, version)
    if call.as_json:
        document = to_json(facts)
        del document["damaged"]
        print_json(document)
    else:
        _show_versions(facts, by_task=by_task)
    for each in facts.side_stores:
        say(f"note: {each.note(facts.copied)}")
    if facts.damaged:
        say(
            f"the checkpoint log is damaged, so this may not be all: `penstock checkpoint list {facts.job}` shows where"
        )


def _show_versions(facts: StateFacts, *, by_task: bool) -> None:
    from penstock.state.backends.registry import summed

    columns = ("checkpoint", "batch", "store", "backend", "task" if by_task else "tasks", "version")
    rows = [row for held in facts.versions for row in (_task_rows(held) if by_task else [_row(held)])]
    print_table(f"State of {facts.job}", columns, rows, right="batch task tasks", first_to_go="batch, version")
    objects = facts.objects if by_task else summed(facts.objects)
    print_table(f"Under {facts.root}", *_object_table(objects, by_task=by_task), right="task objects size")


def _row(held: HeldVersion) -> tuple[object, ...]:
    from penstock.state.backends.registry import span_text

    span = span_text(each.version for each in held.versions) if held.versions else None
    place = (held.checkpoint, held.batch, held.store, held.backend)
    return (*place, f"{len(held.versions)}/{held.tasks}", span)


def _task_rows(held: HeldVersion) -> list[tuple[object, ...]]:
    there = {each.task: each.version for each in held.versions}
    place = (held.checkpoint, held.batch, held.store, held.backend)
    return [(*place, task, there.get(task)) for task in range(held.tasks)]


def _object_table(
    objects: Sequence[StoredObjects], *, by_task: bool
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    columns = ("store", *(["task"] if by_task else []), "backend", "kind", "objects", "size")
    rows: list[tuple[object, ...]] = [
        (
            each.store,
            *([each.task] if by_task else []),
            each.backend,
            each.kind,
            f"{each.count:,}",
            size_text(each.size_bytes),
        )
        for each in objects
    ]
    return columns, [*rows, _total(objects, len(columns))] if rows else rows


def _total(objects: Sequence[StoredObjects], columns: int) -> tuple[object, ...]:
    count, size = sum(each.count for each in objects), sum(each.size_bytes for each in objects)
    return ("total", *[""] * (columns - 3), f"{count:,}", size_text(size))


def verify_state(
    job: JobName,
    version: Version = "latest",
    store: Annotated[
        list[str] | None, typer.Option("--store", metavar="STORE", help="Only this store; may be repeated.")
    ] = None,
    *,
    call: JsonCall,
) -> None:
    """Restore a retained version from each backend to a scratch folder, and compare the entries key by key.

    The exit status is 1 if a backend cannot be restored or two backends of a store differ: it is not safe to switch.
    """
    from penstock.admin.state.reading import verify
    from penstock.cli.state.reading import restoring

    with call.open(job) as found, restoring() as view:
        verdict = verify(found, version, store or (), watcher=view)
    call.show(verdict, _show_verdict)
    if not verdict.agrees:
        raise typer.Exit(1)


def _show_verdict(found: StateVerdict) -> None:
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


def collect_garbage(
    job: JobName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    *,
    call: JsonCall,
) -> None:
    """Delete objects that no retained checkpoint needs, such as those of failed runs and of dropped backends.

    A running job does this by itself; without --dry-run the job must be stopped.
    """
    from penstock.admin.state import garbage

    with call.open(job) as found:
        collected = garbage.collect_garbage(found, dry_run=dry_run)
    call.show(collected, _show_garbage)


def _show_garbage(collected: CollectedGarbage) -> None:
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
