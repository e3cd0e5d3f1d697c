"""`penstock checkpoint`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import typer
from msgspec import Struct

from penstock.admin.checkpoint.change import CheckpointChange, plan_offsets, write_checkpoint
from penstock.admin.checkpoint.exchange import export_checkpoint as export_lines
from penstock.admin.checkpoint.exchange import left_out, plan_import
from penstock.admin.checkpoint.facts import (
    CheckpointFacts,
    IntermediateFacts,
    ListedCheckpoint,
    Problem,
    checkpoints,
    read_checkpoint,
)
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.documents import convert
from penstock.base.wording import counted, listed, size_text, utc_text
from penstock.checkpoint.edit import OffsetKey
from penstock.cli.shared.errors import say
from penstock.cli.shared.input import Confirmation, YesOnly, read_text
from penstock.cli.shared.options import Call, JobName, JsonCall, command
from penstock.cli.shared.output import effect, print_facts, print_json, print_table, to_json
from penstock.errors import ConfigError

_FORM = (
    'expected stream -> partition -> next offset, for example {"local.flights": {"3": 1200, "5": 0}}, or what '
    "`penstock checkpoint show --json` prints"
)

app = typer.Typer(help="Show the checkpoints of a job, or write one by hand.", no_args_is_help=True)

_RANGES = 5
CheckpointText = Annotated[str | None, typer.Argument(metavar="ID", help="The checkpoint; by default the last one.")]


@command(app, "list")
def list_checkpoints(job: JobName, call: JsonCall) -> None:
    """List the checkpoints, oldest first, and report damaged ones.

    A run can begin with any `retained` checkpoint (--from). The others are being deleted.
    """
    with call.open(job) as found:
        listed = checkpoints(found)
    if call.as_json:
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


@command(app, "show")
def show_checkpoint(job: JobName, checkpoint: CheckpointText = None, *, call: JsonCall) -> None:
    """Show a checkpoint: next offsets, stores, and the markers that each store can be restored from."""
    with call.open(job) as found:
        facts = read_checkpoint(found, checkpoint)
    call.show(facts, _show)


@command(app, "export")
def export_checkpoint(
    job: JobName,
    checkpoint: CheckpointText = None,
    version: Annotated[
        Literal["1", "2"], typer.Option("--version", help="The version of Samza's checkpoint values.")
    ] = "2",
    *,
    call: Call,
) -> None:
    """Print a checkpoint in the form of Samza's checkpoint topic: one JSON line with key and value for each task."""
    with call.open(job) as found:
        lines = export_lines(found, checkpoint, int(version))
        notes = left_out(found, checkpoint, int(version))
    sys.stdout.writelines(f"{line}\n" for line in lines)
    for note in notes:
        say(f"note: {note}")


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
    if facts.moved:
        moved = listed([f"`{each}`" for each in facts.moved])
        say(f"note: positions in {moved} were moved while the state stayed: the state does not agree with them")
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


@command(app, "set")
def set_offsets(
    job: JobName,
    offsets: Annotated[
        str,
        typer.Option(
            "--offsets",
            metavar="FILE",
            help='JSON: stream -> partition -> the NEXT offset to read, {"local.flights": {"3": 1200, "5": 0}}, or '
            "what `checkpoint show --json` prints; - for standard input.",
        ),
    ],
    from_checkpoint: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="ID", help="Begin with this checkpoint, not the last one, and change its offsets."
        ),
    ] = None,
    yes: YesOnly = False,
    *,
    call: JsonCall,
) -> None:
    """Set where a stopped job continues to read its inputs.

    The command writes a new checkpoint, like the last one except for the offsets in the file. Each of them is that of
    the NEXT message to read (Samza's checkpoints hold the last one processed). Partitions that the file does not name
    keep their positions. The state does not move with the input.
    """
    confirmation = Confirmation.of(yes=yes, as_json=call.as_json, file=offsets)
    wanted = parse_offsets(read_text(offsets), offsets)
    with call.open(job) as found:
        confirmation.refuse_running(found)
        carry_out(plan_offsets(found, wanted, from_checkpoint), confirmation)


@command(app, "import")
def import_checkpoint(
    job: JobName,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help='Lines of {"key": ..., "value": ...}, as `checkpoint export` prints them; - for standard input.',
        ),
    ],
    application: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="APP",
            help="The application, as for `penstock run`; needed if the job has no checkpoint yet.",
        ),
    ] = None,
    yes: YesOnly = False,
    *,
    call: JsonCall,
) -> None:
    """Make a checkpoint of a stopped job from messages of Samza's checkpoint topic: the inverse of `export`.

    The positions and state markers of all tasks come from the file; everything else comes from the last checkpoint or,
    if there is none, from the application. A partition without an offset in the file was never processed: it begins at
    its oldest message. Markers of backends that the job cannot use are left out, and a note names them. The import is
    refused if a store then has no marker.
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
            _show_change(change)
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


def _show_change(change: CheckpointChange) -> None:
    job = change.job.paths.root
    rows = [
        (each.task, each.ssp.system_stream, each.ssp.partition, each.old, each.new, effect(each.old, each.new))
        for each in change.changes
    ]
    if rows:
        columns = ("task", "stream", "partition", "next", "new next", "messages")
        print_table(f"Positions of {job} that change", columns, rows, right="task partition next")
    if change.moves_markers:
        markers = [(store, name, count) for name, own in change.markers.items() for store, count in own.items()]
        print_table(f"State of {job} from then on", ("store", "backend", "tasks"), markers, right="tasks")


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
    except (ValueError, TypeError, ConfigError) as error:
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
