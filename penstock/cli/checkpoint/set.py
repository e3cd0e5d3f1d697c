"""`penstock checkpoint set`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from penstock.admin.jobs import open_job
from penstock.checkpoint.edit import (
    Content,
    OffsetChange,
    choose_origin,
    content_of,
    offset_changes,
    refuse_outside,
    with_offsets,
)
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.cli.checkpoint.change import Manner, Plan, Yes, carry_out, changelogs, refuse_running, stream_ends
from penstock.cli.checkpoint.offsets import parse_offsets, read_text
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.errors import NotFoundError


def set_offsets(
    job: JobName,
    offsets: Annotated[
        str,
        typer.Option(
            "--offsets",
            metavar="FILE",
            help='JSON: stream -> partition -> the NEXT offset to read, {"local.flights": {"3": 1200, "5": 0}}, or '
            "what `checkpoint show --json` prints; - for standard input.",
            show_default=False,
        ),
    ],
    from_checkpoint: Annotated[
        str | None,
        typer.Option("--from", metavar="ID", help="Begin with this checkpoint, not the last one.", show_default=False),
    ] = None,
    yes: Yes = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Set where a stopped job reads on: a new checkpoint, as the last one but for the next offsets in the file.

    An offset is that of the NEXT message to read (Samza's checkpoints hold the last one processed). Partitions that
    the file does not name stay where they are. So does the state: it is not moved with the input.
    """
    manner = Manner.of(yes=yes, as_json=as_json, file=offsets)
    wanted = parse_offsets(read_text(offsets), offsets)
    with open_job(job, config, assignments) as found:
        refuse_running(found, manner)
        log = CheckpointLog(found.objects, found.paths)
        view = log.read()
        base = choose_origin(view, from_checkpoint, found.config.task)
        if base is None:
            raise NotFoundError(f"job `{found.paths.root}` has no checkpoint yet, so it reads from nowhere yet")
        before = content_of(base, lambda task: changelogs(found.config, base, task))
        content = Content(with_offsets(base, wanted), before.markers)
        changes = offset_changes(before.next_offsets, content.next_offsets)
        asked = stream_ends(found.config, {change.ssp.system_stream for change in changes})
        refuse_outside(changes, asked.ends, asked.unknown)
        warnings = (*asked.warnings(), *_older(base, view.latest), *_state(base, changes))
        carry_out(found, log, view, Plan(base, before, content, changes, warnings=warnings), "set", manner)


def _older(base: CheckpointRecord, latest: CheckpointRecord | None) -> Iterator[str]:
    if latest is not None and latest.id != base.id:
        yield (
            f"checkpoint {base.id} is not the last one, which is {latest.id}: the state, and the positions that the "
            "file does not name, go back to it as well"
        )


def _state(base: CheckpointRecord, changes: Sequence[OffsetChange]) -> Iterator[str]:
    """The state was built from the old positions."""
    if not base.stores or not changes:
        return
    stores = ", ".join(f"`{store}`" for store in sorted(base.stores))
    moves = [change.new - change.old for change in changes if change.old is not None]
    twice = "messages that are read once more count twice in it" if min(moves) < 0 else ""
    never = "messages that are skipped never come into it" if max(moves) > 0 else ""
    yield f"the state ({stores}) stays as it is: {' and '.join(filter(None, (twice, never)))}"
