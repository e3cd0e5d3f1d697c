"""`penstock checkpoint import`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from penstock.admin.checkpoint.target import ImportTarget, find_target, open_target
from penstock.checkpoint.adopt import Target, adopt
from penstock.checkpoint.edit import offset_changes, refuse_outside
from penstock.checkpoint.imported import SamzaCheckpoint, read_samza
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.cli.checkpoint.change import Manner, Plan, Yes, carry_out, refuse_running
from penstock.cli.checkpoint.offsets import read_text
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName


def import_checkpoint(
    job: JobName,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help='Lines of {"key": ..., "value": ...}, as `checkpoint export` prints them; - for standard input.',
            show_default=False,
        ),
    ],
    application: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="APP",
            help="The application, as `penstock run` takes it: for a job that has no checkpoint yet.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Make a checkpoint of a stopped job from messages of Samza's checkpoint topic: the inverse of `export`.

    Positions and state markers of all tasks become those of the file; the rest is as in the last checkpoint or, while
    there is none, as the application has it. A partition of which the file says nothing, or null, was never processed:
    it begins at its oldest message. Markers of backends that cannot be used are left out, and named; a store that has
    no other is refused.
    """
    manner = Manner.of(yes=yes, as_json=as_json, file=file)
    lines = read_text(file).split("\n")
    with open_target(job, application, config, assignments) as (found, app):
        refuse_running(found, manner)
        log = CheckpointLog(found.objects, found.paths)
        view = log.read()
        target = find_target(found, view, app)
        samza = read_samza(lines, found.config.task.checkpoint_read_versions, target.changelogs)
        carry_out(found, log, view, _plan(view, target, samza), "import", manner)


def _plan(view: LogView, whole: ImportTarget, samza: SamzaCheckpoint) -> Plan:
    target, new_stores = whole.covering(samza)
    adopted = adopt(samza, Target(target.inputs, target.base.stores), target.ends.ends, target.unusable(samza))
    old = {} if target.before is None else target.before.next_offsets
    changes = offset_changes(old, adopted.content.next_offsets)
    refuse_outside(changes, target.ends.ends, target.ends.unknown)
    return Plan(
        target.base,
        target.before,
        adopted.content,
        changes,
        notes=(*samza.notes, *adopted.notes, *new_stores),
        warnings=(*target.ends.warnings(), *_foreign(view, target, samza)),
    )


def _foreign(view: LogView, target: ImportTarget, samza: SamzaCheckpoint) -> Iterator[str]:
    """Markers name what is in the folder of the job that made them, by names that another job's may have too."""
    known = {record.id for record in view.checkpoints}
    ids = sorted({task.id for task in samza.tasks.values() if task.id is not None} - known)
    if target.before is not None and ids and not target.finds_everywhere(samza):
        yield (
            f"checkpoint {ids[-1]} of the file is not in the log of this job: its state can be restored only if it "
            "was this very job's and is still there. `penstock state verify` tells, before the job is started"
        )
