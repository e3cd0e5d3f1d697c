"""`penstock checkpoint`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import typer
from msgspec import Struct

from penstock.admin.checkpoint.change import CheckpointChange, plan_offsets, write_checkpoint
from penstock.admin.checkpoint.facts import ListedCheckpoint, checkpoints, list_facts, read_checkpoint
from penstock.admin.checkpoint.labels import label_checkpoint, unlabel_checkpoint
from penstock.admin.samza import export_checkpoint as export_lines
from penstock.admin.samza import left_out, plan_import
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.documents import convert
from penstock.checkpoint.edit import OffsetKey
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import Call, Confirmation, JobName, JsonCall, YesOnly, command, read_text
from penstock.cli.shared.output import print_json, print_lines, show, to_json
from penstock.errors import ConfigError

_FORM = (
    'expected stream -> partition -> next offset, for example {"local.flights": {"3": 1200, "5": 0}}, or what '
    "`penstock checkpoint show --json` prints"
)

app = typer.Typer(help="Show, keep and make the checkpoints of a job.", no_args_is_help=True)

_RANGES = 5
CheckpointText = Annotated[
    str | None, typer.Argument(metavar="ID", help="The checkpoint, by its ID or label; by default the last one.")
]


@command(app, "list")
def list_checkpoints(job: JobName, call: JsonCall) -> None:
    """List the checkpoints, oldest first, and report damaged ones.

    A run can begin with any `retained` checkpoint (--from). The others are being deleted.
    """
    with call.open(job) as found:
        listed = checkpoints(found)
    if call.as_json:
        print_json([_flat(line) for line in listed])
    else:
        show(list_facts(listed, found.paths.root))


@command(app, "show")
def show_checkpoint(job: JobName, checkpoint: CheckpointText = None, *, call: JsonCall) -> None:
    """Show a checkpoint: next offsets, stores, and the markers that each store can be restored from."""
    with call.open(job) as found:
        facts = read_checkpoint(found, checkpoint)
    call.show(facts)


@command(app, "export")
def export_checkpoint(
    job: JobName,
    checkpoint: CheckpointText = None,
    version: Annotated[Literal["1", "2"], typer.Option("--version")] = "2",
    *,
    call: Call,
) -> None:
    """Print a checkpoint in the form of Samza's checkpoint topic: one JSON line with key and value for each task.

    Args:
        version: The version of Samza's checkpoint values.
    """
    with call.open(job) as found:
        lines = export_lines(found, checkpoint, int(version))
        notes = left_out(found, checkpoint, int(version))
    print_lines(lines, notes)


@command(app, "label")
def label(
    job: JobName,
    checkpoint: Annotated[str, typer.Argument(metavar="ID", help="The checkpoint: its ID, `latest`, or `latest-N`.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The label.")],
    *,
    call: JsonCall,
) -> None:
    """Give a checkpoint a label, which keeps it whatever `task.checkpoint.retained` says.

    The job may run. Give the label wherever a command takes a checkpoint: `penstock run ... --from NAME`.
    """
    with call.open(job) as found:
        made = label_checkpoint(found, checkpoint, name)
    for warning in made.warnings:
        say(f"warning: {warning}")
    if call.as_json:
        print_json(made)
    else:
        has = "now has" if made.changed else "has"
        say(f"checkpoint {made.checkpoint} of job `{made.job}` {has} the label `{name}`")


@command(app, "unlabel")
def unlabel(
    job: JobName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The label.")],
    *,
    call: JsonCall,
) -> None:
    """Take a label off a checkpoint. The checkpoint may then leave with the next commit. The job may run."""
    with call.open(job) as found:
        made = unlabel_checkpoint(found, name)
    if call.as_json:
        print_json(made)
    else:
        say(
            f"checkpoint {made.checkpoint} of job `{made.job}` no longer has the label `{name}`: it stays as long as "
            "task.checkpoint.retained or another label keeps it"
        )


def _flat(line: ListedCheckpoint) -> dict[str, Any]:
    """One object a line: a checkpoint's own fields stand beside those of the list."""
    document = dict(to_json(line))
    return {**document.pop("checkpoint"), **document} if line.checkpoint else {"id": None, **document}


@command(app, "set")
def set_offsets(
    job: JobName,
    offsets: Annotated[str, typer.Option("--offsets", metavar="FILE")],
    from_checkpoint: Annotated[str | None, typer.Option("--from", metavar="ID")] = None,
    yes: YesOnly = False,
    *,
    call: JsonCall,
) -> None:
    """Set where a stopped job continues to read its inputs.

    The command writes a new checkpoint, like the last one except for the offsets in the file. Each of them is that of
    the NEXT message to read (Samza's checkpoints hold the last one processed). Partitions that the file does not name
    keep their positions. The state does not move with the input.

    Args:
        offsets: JSON: stream -> partition -> the NEXT offset to read, {"local.flights": {"3": 1200, "5": 0}}, or what
            `checkpoint show --json` prints; - for standard input.
        from_checkpoint: Begin with this checkpoint, not the last one, and change its offsets.
    """
    confirmation = Confirmation.of(yes=yes, as_json=call.as_json, file=offsets)
    wanted = parse_offsets(read_text(offsets), offsets)
    with call.open(job) as found:
        confirmation.refuse_running(found)
        carry_out(plan_offsets(found, wanted, from_checkpoint), confirmation)


@command(app, "import")
def import_checkpoint(
    job: JobName,
    file: Annotated[str, typer.Argument(metavar="FILE")],
    application: Annotated[str | None, typer.Option("--app", metavar="APP")] = None,
    yes: YesOnly = False,
    *,
    call: JsonCall,
) -> None:
    """Make a checkpoint of a stopped job from messages of Samza's checkpoint topic: the inverse of `export`.

    The positions and state markers of all tasks come from the file; everything else comes from the last checkpoint or,
    if there is none, from the application. A partition without an offset in the file was never processed: it begins at
    its oldest message. Markers of backends that the job cannot use are left out, and a note names them. The import is
    refused if a store then has no marker.

    Args:
        file: Lines of {"key": ..., "value": ...}, as `checkpoint export` prints them; - for standard input.
        application: The application, as for `penstock run`; needed if the job has no checkpoint yet.
    """
    confirmation = Confirmation.of(yes=yes, as_json=call.as_json, file=file)
    lines = read_text(file).split("\n")
    with call.target(job, application) as found:
        confirmation.refuse_running(found)
        carry_out(plan_import(found, lines), confirmation)


def carry_out(change: CheckpointChange, confirmation: Confirmation) -> None:
    """Show the change, ask, and write it. Nothing is written if nothing changes.

    Raises:
        ConfigError: there is nobody to ask.
        typer.Exit: the answer was no.
        What `write_checkpoint` raises.
    """
    for note in change.notes:
        say(f"note: {note}")
    if change.is_needed:
        if not confirmation.as_json:
            show(change.as_facts())
        for warning in change.warnings:
            say(f"warning: {warning}")
        confirmation.ask("Write this checkpoint?", "nothing was changed")
    written = write_checkpoint(change)
    if confirmation.as_json:
        print_json(written)
    elif written.checkpoint is None:
        say(
            f"nothing to change: checkpoint {change.base.id} holds all of this already; if it is not the last one, "
            "`penstock run ... --from ID` begins with it"
        )
    else:
        say(f"checkpoint {written.checkpoint} is now the last one of job `{written.job}`: its next start begins there")


def parse_offsets(text: str, name: str) -> dict[OffsetKey, int]:
    """The next offset of each partition that is named, task by task where the text is so; `name` is the file's, for
    messages.

    Raises:
        ConfigError: the text has another form, or names a partition twice.
    """
    try:
        document = json.loads(text, object_pairs_hook=_once)
        if not isinstance(document, dict):
            raise TypeError("it is not an object")
        found: dict[OffsetKey, int] = {}
        for key, offset in _shown(document) if "tasks" in document else _given(document):
            if found.setdefault(key, offset) != offset:
                raise ValueError(f"{key} has two offsets, {found[key]} and {offset}")
    except (ValueError, TypeError, RecursionError, ConfigError) as error:
        raise ConfigError(f"`{name}` does not name next offsets: {error}; {_FORM}") from error
    if not found:
        raise ConfigError(f"`{name}` names no offset; {_FORM}")
    return found


def _given(document: Mapping[str, Any]) -> Iterator[tuple[OffsetKey, int]]:
    for name, partitions in document.items():
        stream = SystemStream.parse(name)
        if not isinstance(partitions, dict):
            raise TypeError(f"`{name}` needs an object of partitions and offsets, found {partitions!r}")
        for partition, offset in partitions.items():
            ssp = SystemStreamPartition.parse(f"{stream}.{partition}")
            if str(ssp.partition) != partition:
                raise ValueError(f"`{name}`: `{partition}` is not a partition number")
            yield OffsetKey(ssp), _offset(ssp, offset)


class _Task(Struct, rename="camel"):
    next_offsets: dict[str, int]
    task: int


class _Shown(Struct):
    tasks: list[_Task]


def _shown(document: Mapping[str, Any]) -> Iterator[tuple[OffsetKey, int]]:
    for task in convert(_Shown, document).tasks:
        for name, offset in task.next_offsets.items():
            yield OffsetKey(SystemStreamPartition.parse(name), task.task), offset


def _offset(ssp: SystemStreamPartition, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"`{ssp}` has {value!r}, which is not an integer")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"`{next(name for name in names if names.count(name) > 1)}` is listed twice")
    return found
