"""`penstock startpoint set`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Literal

import typer

from penstock.admin.startpoint.inputs import StartpointJob, open_startpoint_job
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.startpoint import (
    Startpoint,
    StartpointOldest,
    StartpointSpecific,
    StartpointTimestamp,
    StartpointUpcoming,
)
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.startpoint.asked import ask_for
from penstock.errors import ConfigError
from penstock.startpoint.request import RequestKey, StartpointRequest, task_name, task_number

AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="APP",
        help="The application, as `penstock run` takes it: for a job without a checkpoint, or for an input that its "
        "last checkpoint does not have.",
        show_default=False,
    ),
]
StreamOption = Annotated[
    str, typer.Option("--stream", metavar="STREAM", help="The input, `system.stream`.", show_default=False)
]
PartitionOption = Annotated[
    list[int] | None,
    typer.Option("--partition", metavar="N", min=0, help="A partition; may be repeated.", show_default=False),
]
AllPartitions = Annotated[bool, typer.Option("--all-partitions", help="Every partition of the stream.")]
TaskOption = Annotated[
    str | None,
    typer.Option("--task", metavar="TASK", help="For this task only: N, or `Partition N`.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what it would do.")]


def set_startpoint(
    job: JobName,
    stream: StreamOption,
    partition: PartitionOption = None,
    all_partitions: AllPartitions = False,
    task: TaskOption = None,
    offset: Annotated[
        int | None,
        typer.Option("--offset", metavar="N", help="Begin with the message of this offset.", show_default=False),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp",
            metavar="TIME",
            help="Begin with the first message of this time or later: ISO 8601 with a zone (2013-06-01T00:00Z), or "
            "epoch milliseconds.",
            show_default=False,
        ),
    ] = None,
    oldest: Annotated[bool, typer.Option("--oldest", help="Begin with the oldest message.")] = False,
    upcoming: Annotated[bool, typer.Option("--upcoming", help="Begin with what is written after the start.")] = False,
    clamp: Annotated[
        bool, typer.Option("--clamp", help="Accept the nearest offset if --offset is not there at the start.")
    ] = False,
    with_state: Annotated[
        Literal["nearest", "clear", "keep"] | None,
        typer.Option(
            "--with-state",
            help="nearest: begin all inputs and stores at the newest retained checkpoint at or before the position; "
            "clear: empty the stores first; keep: leave them as they are, which is what happens if nothing is said.",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
    application: AppOption = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Ask for the position a job begins at in an input, at its next start, whether it runs now or not.

    The position is resolved when the job starts, and what is printed is what it means now. It is inclusive. It applies
    once, and moves the input only: --with-state says what becomes of the state.
    """
    kind = _kind(offset, timestamp, oldest=oldest, upcoming=upcoming)
    if clamp and offset is None:
        raise ConfigError("--clamp belongs to --offset: the other positions are always there")
    with open_startpoint_job(job, application, config, assignments) as found:
        keys = list(request_keys(found, stream, partition, all_partitions=all_partitions, task=task))
        created = _creation(found, {key.ssp for key in keys})
        startpoint = _startpoint(kind, offset, timestamp, created)
        requests = [StartpointRequest(key, uuid.uuid4().hex, startpoint, with_state, clamp=clamp) for key in keys]
        ask_for(found, requests, dry_run=dry_run, as_json=as_json)


def request_keys(
    found: StartpointJob, stream: str, partitions: Sequence[int] | None, *, all_partitions: bool, task: str | None
) -> Iterator[RequestKey]:
    """What the options name.

    Raises:
        ConfigError: no partition is named, or in two ways; or `--task` names no task.
    """
    name = parse_task(task)
    parsed = SystemStream.parse(stream)
    if bool(partitions) == all_partitions:
        raise ConfigError("name the partitions: --partition N, which may be repeated, or --all-partitions")
    if partitions:
        numbers = sorted(set(partitions))
    else:
        numbers = sorted({s.partition for own in found.inputs.tasks.values() for s in own if s.system_stream == parsed})
        numbers = numbers or [0]  # that it is no input is reported where all requests are checked
    for number in numbers:
        yield RequestKey(SystemStreamPartition(parsed.system, parsed.stream, number), name)


def parse_task(text: str | None) -> str | None:
    """A task's name, given by its number or as a whole. Raises ConfigError if it is neither."""
    if text is None:
        return None
    return task_name(int(text)) if text.isascii() and text.isdigit() else task_name(task_number(text))


def parse_timestamp(text: str) -> int:
    """Epoch milliseconds of an ISO 8601 time, or of epoch milliseconds.

    Raises:
        ConfigError: it is neither, or it names no zone.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"--timestamp `{text}` is neither a time such as 2013-06-01T00:00Z nor epoch milliseconds: {error}"
        ) from error
    if moment.tzinfo is None:
        raise ConfigError(f"--timestamp `{text}` names no zone: write `{text}Z` for UTC, or +02:00 for another one")
    return round(moment.timestamp() * 1000)


Kind = Literal["offset", "timestamp", "oldest", "upcoming"]


def _kind(offset: int | None, timestamp: str | None, *, oldest: bool, upcoming: bool) -> Kind:
    given: dict[Kind, bool] = {
        "offset": offset is not None,
        "timestamp": timestamp is not None,
        "oldest": oldest,
        "upcoming": upcoming,
    }
    kinds = [kind for kind, there in given.items() if there]
    if len(kinds) != 1:
        raise ConfigError("say where to begin, in one way: --timestamp TIME, --offset N, --oldest or --upcoming")
    return kinds[0]


def _startpoint(kind: Kind, offset: int | None, timestamp: str | None, created: int) -> Startpoint:
    match kind:
        case "offset":
            return StartpointSpecific(str(offset), creation_timestamp=created)
        case "timestamp":
            return StartpointTimestamp(parse_timestamp(timestamp or ""), creation_timestamp=created)
        case "oldest":
            return StartpointOldest(creation_timestamp=created)
        case "upcoming":
            return StartpointUpcoming(creation_timestamp=created)


def _creation(found: StartpointJob, ssps: set[SystemStreamPartition]) -> int:
    """Now, but after everything that was asked for these partitions before, whatever the clocks of others say."""
    before = [r.startpoint.creation_timestamp for r in found.manager.requests() if r.key.ssp in ssps]
    return max([time.time_ns() // 1_000_000, *(created + 1 for created in before)])
