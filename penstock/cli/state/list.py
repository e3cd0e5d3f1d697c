"""`penstock state list`. What it needs of Arrow is imported when it is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.admin.jobs import open_job
from penstock.admin.state.version import FORMS
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.output import print_json, print_table, to_json
from penstock.wording import size_text

if TYPE_CHECKING:
    from penstock.admin.state.held import HeldVersion, StateFacts
    from penstock.state.reading.inventory import StoredObjects


def list_state(
    job: JobName,
    version: Annotated[
        str | None,
        typer.Option("--version", "--checkpoint", metavar="V", help=f"Only this version: {FORMS}.", show_default=False),
    ] = None,
    by_task: Annotated[bool, typer.Option("--tasks", help="List each task instead of their sum.")] = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """List the objects of each store and backend, for every retained checkpoint and under the job root.

    Nothing is restored. --json prints every task and whole markers.
    """
    from penstock.admin.state.held import state_versions

    with open_job(job, config, assignments) as found:
        facts = state_versions(found, version)
    if as_json:
        document = to_json(facts)
        del document["damaged"]
        print_json(document)
    else:
        _show(facts, by_task=by_task)
    for each in facts.side_stores:
        say(f"note: {each.note(facts.copied)}")
    if facts.damaged:
        say(
            f"the checkpoint log is damaged, so this may not be all: `penstock checkpoint list {facts.job}` shows where"
        )


def _show(facts: StateFacts, *, by_task: bool) -> None:
    from penstock.state.reading.inventory import summed

    columns = ("checkpoint", "batch", "store", "backend", "task" if by_task else "tasks", "version")
    rows = [row for held in facts.versions for row in (_task_rows(held) if by_task else [_row(held)])]
    print_table(f"State of {facts.job}", columns, rows, right="batch task tasks", first_to_go="batch, version")
    objects = facts.objects if by_task else summed(facts.objects)
    print_table(f"Under {facts.root}", *_object_table(objects, by_task=by_task), right="task objects size")


def _row(held: HeldVersion) -> tuple[object, ...]:
    from penstock.state.reading.inventory import span_text

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
