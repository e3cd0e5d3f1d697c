"""Options of the commands about startpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from penstock.errors import ConfigError

AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="APP",
        help="The application, as for `penstock run`; needed if the job has no checkpoint, or its last one does not "
        "have the input.",
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


def chosen_partitions(partitions: Sequence[int] | None, *, all_partitions: bool) -> Sequence[int] | None:
    """The partitions that the options name; None: all. Raises ConfigError if they name none, or in two ways."""
    if bool(partitions) == all_partitions:
        raise ConfigError("name the partitions: --partition N, which may be repeated, or --all-partitions")
    return partitions or None
