"""Whether the streams that meet in a table or a join bring the messages of one key to one task. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.api.graph import (
    ApplicationGraph,
    InputSpec,
    OperatorSpec,
    PartitionBySpec,
    SendToTableSpec,
    TableJoinSpec,
)
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.config.broadcast import PartitionRange
from penstock.errors import ConfigError
from penstock.wording import counted, listed


@dataclass(frozen=True, slots=True)
class Member:
    """A stream that meets others."""

    stream: str
    """The id of the operator that emits it."""
    does: str
    """What is done with it, as in "`join-1` reads"."""
    copies: bool = False
    """Whether it fits all others if every task gets all of its messages. That holds for what is stored in a table."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Streams whose messages of one key must come to the same task."""

    what: str
    """Where they meet, as in "table `airlines`"."""
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True, order=True)
class _Spread:
    """How the keys of some messages are assigned to tasks: by their hash, over so many partitions."""

    partitions: int
    """0: every task gets every message."""
    source: str


def check_copartitioning(
    graph: ApplicationGraph,
    partitions: Collection[SystemStreamPartition],
    tasks: int,
    broadcast: Sequence[PartitionRange] = (),
) -> None:
    """Refuse streams that meet although equal keys of them may be in different tasks.

    Args:
        partitions: every partition of every input.
        tasks: how many tasks the job has.
        broadcast: `task.broadcast.inputs`.

    Raises:
        ConfigError: the streams have keys of different serdes, or are partitioned differently. It says how each of them
            is partitioned, and what to do.
    """
    found = list(meetings(graph))
    if not found:
        return
    specs = {op.id: op for op in graph.operators}
    spreads = _spreads(graph, partitions, tasks, broadcast)
    for meeting in found:
        _check_keys(meeting, specs)
        _check_spreads(meeting, spreads, tasks)


def meetings(graph: ApplicationGraph) -> Iterator[Meeting]:
    """Which streams of an application meet."""
    tables: dict[str, list[Member]] = {}
    for op in graph.operators:
        if isinstance(op, SendToTableSpec):
            tables.setdefault(op.table, []).append(Member(op.upstream[0], f"`{op.id}` writes", copies=True))
        elif isinstance(op, TableJoinSpec):
            tables.setdefault(op.table, []).append(Member(op.upstream[0], f"`{op.id}` joins"))
    for table, members in tables.items():
        yield Meeting(f"table `{table}`", tuple(members))


def _check_keys(meeting: Meeting, specs: Mapping[str, OperatorSpec]) -> None:
    names = {specs[member.stream].key_serde.name for member in meeting.members}
    if len(names) > 1:
        keys = listed([f"{each.does} `{specs[each.stream].key_serde.name}` keys" for each in meeting.members])
        raise ConfigError(
            f"{meeting.what}: {keys}. Equal keys have equal bytes only with one serde: declare the same one for all, "
            "with key= of app.input(...) or .partition_by(...)"
        )


def _check_spreads(meeting: Meeting, spreads: Mapping[str, frozenset[_Spread]], tasks: int) -> None:
    everywhere = [all(not each.partitions for each in spreads[member.stream]) for member in meeting.members]
    members = [
        member for member, copied in zip(meeting.members, everywhere, strict=True) if not (copied and member.copies)
    ]
    if len(members) < len(meeting.members) and not any(member.copies for member in members):
        return  # every task has the whole table
    found = {each.partitions for member in members for each in spreads[member.stream]}
    if len(found) < 2:
        return
    how = "; ".join(f"{each.does} {_described(spreads[each.stream])}" for each in members)
    raise ConfigError(
        f"{meeting.what}: messages of one key would be in different tasks: {how}. Put .partition_by(...) with the same "
        f"keys before each of these operators that reads an input as it is: then all keys are spread over the job's "
        f"{counted(tasks, 'task')}"
    )


def _described(spreads: frozenset[_Spread]) -> str:
    return listed([each.source for each in sorted(spreads)])


def _spreads(
    graph: ApplicationGraph,
    partitions: Collection[SystemStreamPartition],
    tasks: int,
    broadcast: Sequence[PartitionRange],
) -> dict[str, frozenset[_Spread]]:
    """By operator, how the messages that it emits came to their tasks; several ways where streams are merged. A task of
    the application is taken to keep the keys of its messages."""
    found: dict[str, frozenset[_Spread]] = {}
    for op in graph.operators:
        if isinstance(op, InputSpec):
            found[op.id] = frozenset({_of_input(op.stream, partitions, broadcast)})
        elif isinstance(op, PartitionBySpec):
            found[op.id] = frozenset({_Spread(tasks, f"the keys of `{op.id}` ({counted(tasks, 'task')})")})
        else:
            found[op.id] = frozenset().union(*(found[up] for up in op.upstream))
    return found


def _of_input(
    stream: SystemStream, partitions: Collection[SystemStreamPartition], broadcast: Sequence[PartitionRange]
) -> _Spread:
    own = [ssp for ssp in partitions if ssp.system_stream == stream]
    if all(any(ssp in each for each in broadcast) for ssp in own):
        return _Spread(0, f"the broadcast input `{stream}` (all messages in every task)")
    return _Spread(len(own), f"input `{stream}` ({counted(len(own), 'partition')})")
