"""`penstock checkpoint`: `list`, `show` and `export`; `set` and `import` have separate files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

from penstock.admin.checkpoint.exchange import export_checkpoint as export_lines
from penstock.admin.checkpoint.exchange import left_out
from penstock.admin.checkpoint.facts import (
    CheckpointFacts,
    IntermediateFacts,
    ListedCheckpoint,
    Problem,
    checkpoints,
    read_checkpoint,
)
from penstock.admin.jobs import open_job
from penstock.cli.checkpoint import import_ as checkpoint_import
from penstock.cli.checkpoint import set as checkpoint_set
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.output import print_facts, print_json, print_table, to_json
from penstock.wording import counted, size_text, utc_text

app = typer.Typer(help="Show the checkpoints of a job, or write one by hand.", no_args_is_help=True)

_RANGES = 5
"""How many ranges of a partition are shown."""
CheckpointText = Annotated[str | None, typer.Argument(metavar="ID", help="The checkpoint; by default the last one.")]


@app.command("list")
def list_checkpoints(
    job: JobName, config: ConfigFile = None, assignments: Assignments = None, as_json: AsJson = False
) -> None:
    """List the checkpoints, oldest first, and report damaged ones.

    A run can begin with any `retained` checkpoint (--from). The others are being deleted.
    """
    with open_job(job, config, assignments) as found:
        listed = checkpoints(found)
    if as_json:
        print_json([_flat(line) for line in listed])
        return
    print_table(
        f"Checkpoints of {found.paths.root}",
        ("id", "kind", "ended", "retained", "batch", "batch time", "epoch", "run", "versions", "stores"),
        [_row(line) for line in listed],
        right="batch epoch",
        first_to_go="versions, stores, epoch, run, batch time, ended",
    )
    _print_problems([line.problem for line in listed if line.problem is not None])


@app.command("show")
def show_checkpoint(
    job: JobName,
    checkpoint: CheckpointText = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show a checkpoint: next offsets, stores, and the markers that each store can be restored from."""
    with open_job(job, config, assignments) as found:
        facts = read_checkpoint(found, checkpoint)
    if as_json:
        print_json(facts)
    else:
        _show(facts)


@app.command("export")
def export_checkpoint(
    job: JobName,
    checkpoint: CheckpointText = None,
    version: Annotated[
        Literal["1", "2"], typer.Option("--version", help="The version of Samza's checkpoint values.")
    ] = "2",
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Print a checkpoint in the form of Samza's checkpoint topic: one JSON line with key and value for each task."""
    with open_job(job, config, assignments) as found:
        lines = export_lines(found, checkpoint, int(version))
        notes = left_out(found, checkpoint, int(version))
    sys.stdout.writelines(f"{line}\n" for line in lines)
    for note in notes:
        say(f"note: {note}")


app.command("set")(checkpoint_set.set_offsets)
app.command("import")(checkpoint_import.import_checkpoint)


def _row(line: ListedCheckpoint) -> tuple[object, ...]:
    each = line.checkpoint
    if each is None:
        return (f"slot {line.slot}", "damaged", None, "no", *[None] * 6)
    return (
        each.id,
        each.kind,
        each.ended,
        _yes(line.retained),
        each.batch,
        _time(each.batch_time_ms),
        each.epoch,
        each.run_id,
        ", ".join(map(str, line.versions)),
        ", ".join(sorted(each.stores)),
    )


def _flat(line: ListedCheckpoint) -> dict[str, Any]:
    """One object a line: a checkpoint's own fields stand beside those of the list."""
    document = dict(to_json(line))
    return {**document.pop("checkpoint"), **document} if line.checkpoint else {"id": None, **document}


def _print_problems(found: list[Problem]) -> None:
    if not found:
        return
    print_table(
        "Damaged",
        ("slot", "record", "needed", "what is wrong"),
        ((each.slot, each.key, _yes(each.needed), each.what) for each in found),
        right="slot",
    )
    if any(each.needed for each in found):
        say(
            "a record that the job needs is damaged or missing. Start the job with `penstock run ... --from ID` and "
            "the id of a retained checkpoint, or restore the record"
        )


def _show(facts: CheckpointFacts) -> None:
    print_facts(
        [
            ("checkpoint", facts.id),
            ("parent", facts.parent),
            ("kind", facts.kind),
            ("ended", facts.ended),
            ("epoch", facts.epoch),
            ("run id", facts.run_id),
            ("slot", facts.slot),
            ("retained", _yes(facts.retained)),
            ("batch", facts.batch),
            ("batch time", _time(facts.batch_time_ms)),
            ("tasks", facts.task_count),
            ("partitioner", facts.partitioner),
            ("versions", ", ".join(map(str, facts.versions)) or None),
            ("startpoints", ", ".join(facts.consumed_startpoints) or None),
            ("reset operators", ", ".join(facts.reset_operators) or None),
            *_outbox_rows(facts),
        ]
    )
    offsets = [(each.task, ssp, offset) for each in facts.tasks for ssp, offset in each.next_offsets.items()]
    print_table("Positions", ("task", "input", "next"), offsets, right="task next")
    if facts.intermediate:
        _show_intermediate(facts.intermediate)
    if facts.stores:
        layouts = ((store, *_layout(layout)) for store, layout in sorted(facts.stores.items()))
        print_table("Stores", ("store", "operators", "key serde", "value serde"), layouts)
    found = [
        (each.task, store, backend, marker)
        for each in facts.tasks
        for backend, stores in sorted(each.markers.items())
        for store, marker in sorted(stores.items())
    ]
    if found:
        print_table("Markers", ("task", "store", "backend", "marker"), found, right="task")
    if facts.outbox:
        rows = [(each.output, each.messages, each.published) for each in facts.outbox]
        print_table("Exactly-once output", ("output", "messages", "published"), rows, right="messages published")
    if facts.lost:
        print_table("Lost before they were read", ("input", "messages"), facts.lost.items(), right="messages")
    for side in facts.side_stores:
        say(f"note: {side.note({store for _, store, _, _ in found})}")
    _print_problems(list(facts.problems))


def _outbox_rows(facts: CheckpointFacts) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    if facts.outbox_objects:
        rows.append(("outbox", f"{counted(facts.outbox_objects, 'object')}, {size_text(facts.outbox_bytes)}"))
    if facts.keepers:
        rows.append(("progress is kept in", ", ".join(facts.keepers)))
    return rows


def _show_intermediate(streams: Sequence[IntermediateFacts]) -> None:
    rows = [
        (each.stream, each.generation, part.partition, part.position, part.unread, _ranges(part.ranges))
        for each in streams
        for part in each.partitions
    ]
    columns = ("stream", "generation", "partition", "read up to", "unread", "ranges")
    print_table("Intermediate streams", columns, rows, right="generation partition unread")


def _ranges(ranges: Sequence[tuple[int, int]]) -> str | None:
    """The first and last offsets of each."""
    shown = [f"{start} to {end - 1}" for start, end in ranges[:_RANGES]]
    more = [f"and {len(ranges) - _RANGES} more"] if len(ranges) > _RANGES else []
    return ", ".join(shown + more) or None


def _layout(text: str) -> tuple[str | None, ...]:
    """The three parts of `operators key-serde value-serde`; a text of another form is in the first column."""
    parts = text.split(" ")
    return tuple(parts) if len(parts) == 3 else (text, None, None)


def _time(epoch_ms: int) -> str | None:
    return utc_text(epoch_ms) if epoch_ms else None


def _yes(value: bool) -> str:
    return "yes" if value else "no"
