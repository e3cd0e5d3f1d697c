"""`penstock startpoint`: `list`, `delete` and `export`; `set` and `import` have separate files."""

from __future__ import annotations

import sys
from dataclasses import replace

import typer

from penstock.admin.jobs import open_job
from penstock.admin.startpoint.facts import RequestFacts
from penstock.admin.startpoint.waiting import delete_startpoints, export_startpoints, startpoints
from penstock.cli.shared.arguments import with_options
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.output import print_json, print_table, time_text
from penstock.cli.shared.target import open_target
from penstock.cli.startpoint import import_
from penstock.cli.startpoint import set as set_
from penstock.cli.startpoint.options import (
    AllPartitions,
    AppOption,
    PartitionOption,
    StreamOption,
    TaskOption,
    chosen_partitions,
)
from penstock.errors import PenstockError

app = typer.Typer(help="Choose where the next start of a job begins to read.", no_args_is_help=True)
app.command("set")(set_.set_startpoint)
app.command("import")(import_.import_startpoints)


@app.command("list")
def list_startpoints(
    job: JobName,
    application: AppOption = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """List the startpoints that wait for the job's next start, and the offsets that they mean now."""
    with open_job(job, config, assignments) as found:
        facts = startpoints(found, resolve=False)
    if facts:
        try:
            with open_target(job, application, config, assignments) as whole:
                facts = startpoints(whole)
        except PenstockError as error:
            say(f"warning: the offsets that they mean now are unknown: {error}")
    if as_json:
        print_json([replace(each, problem=each.problem and with_options(each.problem)) for each in facts])
    else:
        show_requests(facts)


@app.command("delete")
def delete_startpoint(
    job: JobName,
    stream: StreamOption,
    partition: PartitionOption = None,
    all_partitions: AllPartitions = False,
    task: TaskOption = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Delete startpoints that no start has applied yet: for the partitions or, with --task, for that task alone."""
    chosen = chosen_partitions(partition, all_partitions=all_partitions)
    with open_job(job, config, assignments) as found:
        facts = delete_startpoints(found, stream, partitions=chosen, task=task)
    if as_json:
        print_json(facts)
        return
    for each in facts.deleted:
        task_text = "" if each.task is None else f" of {each.task}"
        say(f"deleted: `{each.stream}` partition {each.partition}{task_text}, {each.text}")


@app.command("export")
def export(job: JobName, config: ConfigFile = None, assignments: Assignments = None) -> None:
    """Print the waiting startpoints in the form of Samza's coordinator stream: JSON lines with key and value.

    Samza has neither --with-state nor --clamp: they are left out, and a note names them.
    """
    with open_job(job, config, assignments) as found:
        exported = export_startpoints(found)
    for note in exported.notes:
        say(f"note: {note}")
    sys.stdout.writelines(f"{line}\n" for line in exported.lines)


def show_requests(facts: tuple[RequestFacts, ...]) -> None:
    """The requests as a table."""
    print_table(
        "Startpoints that wait for the next start",
        ("stream", "partition", "task", "startpoint", "means now", "state", "made", "expires", "status"),
        [
            (
                *(each.stream, each.partition, each.task, each.text, each.resolves_to, each.with_state),
                *(time_text(each.created_ms), time_text(each.expires_ms), each.status),
            )
            for each in facts
        ],
        right="partition",
        first_to_go="made, expires, means now, state",
    )
    for each in facts:
        if each.problem is not None:
            what = "" if each.status == "unreadable" else "the job will not start: "
            say(f"warning: {what}{each.problem}")
