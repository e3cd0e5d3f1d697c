"""`penstock startpoint set`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import typer

from penstock.admin.startpoint.set import set_startpoint as write_startpoint
from penstock.api.startpoint import (
    Startpoint,
    StartpointOldest,
    StartpointSpecific,
    StartpointTimestamp,
    StartpointUpcoming,
)
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.target import open_target
from penstock.cli.startpoint.asked import show_asked
from penstock.cli.startpoint.options import (
    AllPartitions,
    AppOption,
    DryRun,
    PartitionOption,
    StreamOption,
    TaskOption,
    chosen_partitions,
)
from penstock.errors import ConfigError


def set_startpoint(
    job: JobName,
    stream: StreamOption,
    partition: PartitionOption = None,
    all_partitions: AllPartitions = False,
    task: TaskOption = None,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset",
            metavar="OFFSET",
            help="Begin with the message at this offset: an integer or, for a folder, a file or FILE:ROW.",
            show_default=False,
        ),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp",
            metavar="TIME",
            help="Begin with the first message at or after this time: ISO 8601 with a zone (2013-06-01T00:00Z), or "
            "epoch milliseconds.",
            show_default=False,
        ),
    ] = None,
    oldest: Annotated[bool, typer.Option("--oldest", help="Begin with the oldest message.")] = False,
    upcoming: Annotated[
        bool, typer.Option("--upcoming", help="Begin with the next message written after the start.")
    ] = False,
    clamp: Annotated[
        bool, typer.Option("--clamp", help="Begin at the nearest offset if --offset does not exist at the start.")
    ] = False,
    with_state: Annotated[
        Literal["nearest", "clear", "keep"] | None,
        typer.Option(
            "--with-state",
            help="nearest: begin all inputs and stores at the newest retained checkpoint at or before the position; "
            "clear: empty the stores first; keep (the default): leave them as they are.",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
    application: AppOption = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Set where the next start of a job begins to read an input.

    The job may be running. The position is inclusive. The next start resolves it and applies it once; the command
    prints the offset that it means now. Only the input moves: --with-state chooses what happens to the state.
    """
    startpoint = _startpoint(offset, timestamp, oldest=oldest, upcoming=upcoming)
    if clamp and offset is None:
        raise ConfigError("--clamp is for --offset only: the other positions always exist")
    chosen = chosen_partitions(partition, all_partitions=all_partitions)
    with open_target(job, application, config, assignments) as found:
        facts = write_startpoint(
            found,
            stream,
            startpoint,
            partitions=chosen,
            task=task,
            clamp=clamp,
            with_state=with_state,
            dry_run=dry_run,
        )
    show_asked(facts, as_json=as_json)


def parse_timestamp(text: str) -> int:
    """Epoch milliseconds of an ISO 8601 time, or of epoch milliseconds.

    Raises:
        ConfigError: it is neither, or it names no zone.
    """
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"--timestamp `{text}` is neither a time such as 2013-06-01T00:00Z nor epoch milliseconds: {error}"
        ) from error
    if moment.tzinfo is None:
        raise ConfigError(
            f"--timestamp `{text}` has no time zone: write `{text}Z` for UTC, or add an offset such as +02:00"
        )
    return round(moment.timestamp() * 1000)


def _startpoint(offset: str | None, timestamp: str | None, *, oldest: bool, upcoming: bool) -> Startpoint:
    if sum((offset is not None, timestamp is not None, oldest, upcoming)) != 1:
        raise ConfigError("choose one position: --timestamp TIME, --offset OFFSET, --oldest or --upcoming")
    if offset is not None:
        return StartpointSpecific(offset)
    if timestamp is not None:
        return StartpointTimestamp(parse_timestamp(timestamp))
    return StartpointOldest() if oldest else StartpointUpcoming()
