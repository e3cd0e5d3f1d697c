"""`penstock startpoint`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Literal

import typer

from penstock.admin.startpoint.set import AskedFacts
from penstock.admin.startpoint.set import import_startpoints as write_startpoints
from penstock.admin.startpoint.set import set_startpoint as write_startpoint
from penstock.admin.startpoint.waiting import (
    DeletedFacts,
    delete_startpoints,
    export_startpoints,
    startpoints,
    waiting_facts,
)
from penstock.admin.stream.found import full_name
from penstock.api import requests
from penstock.base.retry import SYSTEM_CLOCK
from penstock.base.wording import milliseconds
from penstock.cli.shared.errors import say, with_options
from penstock.cli.shared.options import Call, JobName, JsonCall, command, read_text
from penstock.cli.shared.output import print_json, print_lines, show
from penstock.errors import ConfigError, PenstockError

_DAY_MS = 86_400_000
_DAYS = {"today": 0, "yesterday": 1}
"""Names of midnights, and how many days ago they were."""
app = typer.Typer(help="Choose where the next start of a job begins to read.", no_args_is_help=True)

AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="APP",
        help="The application, as for `penstock run`; needed if the job has no checkpoint, or its last one does not "
        "have the input.",
    ),
]
StreamOption = Annotated[
    str,
    typer.Option(
        "--stream",
        metavar="STREAM",
        help="The input: `system.stream`, or a name without a dot for one of `local`.",
        callback=full_name,
    ),
]
PartitionOption = Annotated[
    list[int] | None, typer.Option("--partition", metavar="N", min=0, help="A partition; may be repeated.")
]
AllPartitions = Annotated[bool, typer.Option("--all-partitions", help="Every partition of the stream.")]
TaskOption = Annotated[
    str | None, typer.Option("--task", metavar="TASK", help="For this task only: N, or `Partition N`.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what it would do.")]


def _chosen(
    partitions: Sequence[int] | None, *, all_partitions: bool, offset: str | None = None
) -> Sequence[int] | None:
    """The partitions that the options name; None: all, or that of the message with the name `offset`. Raises
    ConfigError if they name none, or in two ways."""
    if offset is not None and not offset.lstrip("-").isdigit() and not partitions and not all_partitions:
        return None
    if bool(partitions) == all_partitions:
        raise ConfigError("name the partitions: --partition N, which may be repeated, or --all-partitions")
    return partitions or None


@command(app, "set")
def set_startpoint(
    job: JobName,
    stream: StreamOption,
    partition: PartitionOption = None,
    all_partitions: AllPartitions = False,
    task: TaskOption = None,
    offset: Annotated[str | None, typer.Option("--offset", metavar="OFFSET")] = None,
    timestamp: Annotated[str | None, typer.Option("--timestamp", metavar="TIME")] = None,
    oldest: Annotated[bool, typer.Option("--oldest")] = False,
    upcoming: Annotated[bool, typer.Option("--upcoming")] = False,
    clamp: Annotated[bool, typer.Option("--clamp")] = False,
    with_state: Annotated[Literal["nearest", "clear", "keep"] | None, typer.Option("--with-state")] = None,
    with_output: Annotated[Literal["again", "after"] | None, typer.Option("--with-output")] = None,
    accept_state: Annotated[bool, typer.Option("--accept-state")] = False,
    dry_run: DryRun = False,
    application: AppOption = None,
    *,
    call: JsonCall,
) -> None:
    """Set where the next start of a job begins to read an input.

    The job may be running. The position is inclusive. The next start resolves it and applies it once; the command
    prints the offset that it means now. Only the input moves: --with-state chooses what happens to the state.

    Args:
        offset: Begin with the message at this offset: an integer or, for a folder, a file or FILE:ROW, which need no
            --partition.
        timestamp: Begin with the first message at or after this time: ISO 8601 with a zone (2013-06-01T00:00Z), epoch
            milliseconds, today or yesterday (00:00 UTC), or a duration such as '2h ago'.
        oldest: Begin with the oldest message.
        upcoming: Begin with the next message written after the start.
        clamp: Begin at the nearest offset if --offset does not exist at the start.
        with_state: nearest: begin all inputs and stores at the newest retained checkpoint at or before the position;
            clear: empty the stores first; keep (the default): leave them as they are.
        with_output: again (the default): send the output of messages that are read again; after: send nothing before
            all inputs have come to their old positions, which applications with windows or timers cannot do.
        accept_state: Declare that the state is right although positions were moved while it stayed: nearest then passes
            over no checkpoint for that reason, and keep does not mark those that follow.
    """
    startpoint = _startpoint(offset, timestamp, oldest=oldest, upcoming=upcoming)
    if clamp and offset is None:
        raise ConfigError("--clamp is for --offset only: the other positions always exist")
    chosen = _chosen(partition, all_partitions=all_partitions, offset=offset)
    with call.target(job, application) as found:
        facts = write_startpoint(
            found,
            stream,
            startpoint,
            partitions=chosen,
            task=task,
            clamp=clamp,
            with_state=with_state,
            with_output=with_output,
            accept_state=accept_state,
            dry_run=dry_run,
        )
    _show_asked(facts, call)


def time_of(text: str, now_ms: int) -> int:
    """The epoch milliseconds of a time as people write it.

    Args:
        text: an ISO 8601 time with a zone, epoch milliseconds, `today` or `yesterday` (midnight, UTC), or a duration
            with `ago`.
        now_ms: the present, in epoch milliseconds.

    Raises:
        ConfigError: it is none of these, or it names no zone.
    """
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    if text in _DAYS:
        return (now_ms // _DAY_MS - _DAYS[text]) * _DAY_MS
    if text.endswith(" ago"):
        return now_ms - milliseconds("--timestamp", text.removesuffix(" ago"), most=now_ms)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"--timestamp `{text}` is neither a time such as 2013-06-01T00:00Z, `yesterday` or `2h ago` nor epoch "
            f"milliseconds: {error}"
        ) from error
    if moment.tzinfo is None:
        raise ConfigError(
            f"--timestamp `{text}` has no time zone: write `{text}Z` for UTC, or add an offset such as +02:00"
        )
    return round(moment.timestamp() * 1000)


def _startpoint(offset: str | None, timestamp: str | None, *, oldest: bool, upcoming: bool) -> requests.Startpoint:
    if sum((offset is not None, timestamp is not None, oldest, upcoming)) != 1:
        raise ConfigError("choose one position: --timestamp TIME, --offset OFFSET, --oldest or --upcoming")
    if offset is not None:
        return requests.StartpointSpecific(offset)
    if timestamp is not None:
        return requests.StartpointTimestamp(time_of(timestamp, SYSTEM_CLOCK.now_ms()))
    return requests.StartpointOldest() if oldest else requests.StartpointUpcoming()


@command(app, "import")
def import_startpoints(
    job: JobName,
    file: Annotated[str, typer.Argument(metavar="FILE")],
    dry_run: DryRun = False,
    application: AppOption = None,
    *,
    call: JsonCall,
) -> None:
    """Set the startpoints in messages of Samza's coordinator stream: the inverse of `export`.

    A startpoint that Samza has fanned out to a task applies to that task. Expired ones are skipped.

    Args:
        file: Lines of {"key": ..., "value": ...}, as `startpoint export` prints them; - for standard input.
    """
    lines = read_text(file).split("\n")
    with call.target(job, application) as found:
        facts = write_startpoints(found, lines, dry_run=dry_run)
    _show_asked(facts, call)


@command(app, "list")
def list_startpoints(job: JobName, application: AppOption = None, *, call: JsonCall) -> None:
    """List the startpoints that wait for the job's next start, and the offsets that they mean now."""
    with call.open(job) as found:
        facts = startpoints(found, resolve=False)
    if facts:
        try:
            with call.target(job, application) as whole:
                facts = startpoints(whole)
        except PenstockError as error:
            say(f"warning: the offsets that they mean now are unknown: {error}")
    if call.as_json:
        print_json([replace(each, problem=each.problem and with_options(each.problem)) for each in facts])
    else:
        show(waiting_facts(facts, starts=True))


@command(app, "delete")
def delete_startpoint(
    job: JobName,
    stream: StreamOption,
    partition: PartitionOption = None,
    all_partitions: AllPartitions = False,
    task: TaskOption = None,
    *,
    call: JsonCall,
) -> None:
    """Delete startpoints that no start has applied yet: for the partitions or, with --task, for that task alone."""
    chosen = _chosen(partition, all_partitions=all_partitions)
    with call.open(job) as found:
        facts = delete_startpoints(found, stream, partitions=chosen, task=task)
    call.tell(facts, _show_deleted)


def _show_deleted(facts: DeletedFacts) -> None:
    for each in facts.deleted:
        task_text = "" if each.task is None else f" of {each.task}"
        say(f"deleted: `{each.stream}` partition {each.partition}{task_text}, {each.text}")


@command(app, "export")
def export(job: JobName, call: Call) -> None:
    """Print the waiting startpoints in the form of Samza's coordinator stream: JSON lines with key and value.

    Samza has none of --with-state, --with-output, --clamp and --accept-state: they are left out, and a note names them.
    """
    with call.open(job) as found:
        exported = export_startpoints(found)
    print_lines(exported.lines, exported.notes)


def _show_asked(facts: AskedFacts, call: JsonCall) -> None:
    if call.as_json:
        print_json(replace(facts, notes=tuple(map(with_options, facts.notes))))
        return
    show(facts.as_facts())
    if facts.dry_run:
        say("nothing was written (--dry-run)")
        return
    say(
        "written: the job's next start applies it once, even if that is a restart after a crash. A run that is "
        f"active now is not affected. `penstock startpoint list {facts.job}` lists the startpoints that wait, "
        "`penstock startpoint delete` deletes them"
    )
