"""`penstock checkpoint list` and `show`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.checkpoint.log import CheckpointLog
from penstock.cli.checkpoint_facts import CheckpointFacts, CheckpointSummary, checkpoint_facts
from penstock.cli.jobs import JobName, open_job
from penstock.cli.options import AsJson, Assignments, ConfigFile
from penstock.cli.output import print_facts, print_json, print_table, utc_text

app = typer.Typer(help="Look at the checkpoints of a job.", no_args_is_help=True)


@app.command("list")
def list_checkpoints(
    job: JobName, config: ConfigFile = None, assignments: Assignments = None, as_json: AsJson = False
) -> None:
    """List the checkpoints, oldest first."""
    with open_job(job, config, assignments) as found:
        view = CheckpointLog(found.objects, found.paths).read()
    summaries = [CheckpointSummary.of(record) for record in view.checkpoints]
    if as_json:
        print_json(summaries)
        return
    print_table(
        f"Checkpoints of {found.paths.root}",
        ("id", "kind", "ended", "batch", "batch time", "epoch", "run", "stores"),
        (
            (
                each.id,
                each.kind,
                each.ended,
                each.batch,
                _time(each.batch_time_ms),
                each.epoch,
                each.run_id,
                ", ".join(sorted(each.stores)),
            )
            for each in summaries
        ),
        right="batch epoch",
    )


@app.command("show")
def show_checkpoint(
    job: JobName,
    checkpoint: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The checkpoint; the last one if none is named.")
    ] = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show everything a checkpoint says: next offsets, stores, and the marker each can be restored from."""
    with open_job(job, config, assignments) as found:
        view = CheckpointLog(found.objects, found.paths).read()
    facts = checkpoint_facts(view, checkpoint, found.paths.root)
    if as_json:
        print_json(facts)
    else:
        _show(facts)


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
            ("batch", facts.batch),
            ("batch time", _time(facts.batch_time_ms)),
            ("tasks", facts.task_count),
            ("partitioner", facts.partitioner),
            ("startpoints", ", ".join(facts.consumed_startpoints) or None),
        ]
    )
    offsets = [(each.task, ssp, offset) for each in facts.tasks for ssp, offset in each.next_offsets.items()]
    print_table("Positions", ("task", "input", "next"), offsets, right="task next")
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


def _layout(text: str) -> tuple[str | None, ...]:
    """The three parts of `operators key-serde value-serde`; a text of another form stands in the first column."""
    parts = text.split(" ")
    return tuple(parts) if len(parts) == 3 else (text, None, None)


def _time(epoch_ms: int) -> str | None:
    return utc_text(epoch_ms) if epoch_ms else None
