"""Checks that streams which meet in a table or a join bring the messages of one key to one task. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.state.side_inputs import PushedTable
from penstock.base.refusals import Refusals
from penstock.base.wording import counted, listed
from penstock.config.values.broadcast import PartitionRange
from penstock.errors import ConfigError
from penstock.graph.specs import ApplicationGraph, OperatorSpec
from penstock.graph.stores import StoreSpec


@dataclass(frozen=True, slots=True)
class Member:
    """A stream that meets others."""

    stream: str
    """The id of the operator that emits it; for a stream that fills a table from outside, a name that no operator
    has."""
    does: str
    """Its part in the meeting, as in "`join-1` reads"."""
    copies: bool = False
    """It fits all others if every task gets all of its messages. That holds for streams that are stored in a table."""
    keys: str | None = None
    """The serde of its keys, if no operator emits it; None if the operator has it."""


@dataclass(frozen=True, slots=True)
class CopartitionedStreams:
    """Streams whose messages of one key must come to the same task."""

    what: str
    """The table or the join where the streams meet, in words: "table `airlines`"."""
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True, order=True)
class _Spread:
    """The assignment of some messages' keys to tasks: by hash, over a number of partitions."""

    partitions: int
    """0: every task gets every message. -1: every task gets some partitions, and one of the others."""
    source: str
    keys: str
    """The name of the serde whose bytes were hashed."""


def check_copartitioning(
    graph: ApplicationGraph,
    partitions: Collection[SystemStreamPartition],
    tasks: int,
    broadcast: Sequence[PartitionRange] = (),
) -> None:
    """Refuse streams that meet although equal keys of them may be in different tasks.

    Args:
        partitions: every partition of every input.
        tasks: the number of the job's tasks.
        broadcast: `task.broadcast.inputs`.

    Raises:
        ConfigError: the streams have keys of different serdes, or are partitioned differently. It says how each of them
            is partitioned, and what to do.
    """
    found = list(meetings(graph))
    if not found:
        return
    specs = {op.id: op for op in graph.operators}
    spreads = _spreads(graph, partitions, tasks, broadcast) | _of_side_tables(graph, tasks)
    refusals = Refusals("the streams of the application do not meet")
    for meeting in found:
        with refusals.noted():
            _check_keys(meeting, specs, spreads)
            _check_spreads(meeting, spreads, tasks)
    refusals.check()


def meetings(graph: ApplicationGraph) -> Iterator[CopartitionedStreams]:
    tables: dict[str, list[Member]] = {}
    for op in graph.operators:
        if op.writes_table is not None:
            tables.setdefault(op.writes_table, []).append(Member(op.upstream[0], f"`{op.id}` writes", copies=True))
        if op.reads_table is not None:
            tables.setdefault(op.reads_table, []).append(Member(op.upstream[0], f"`{op.id}` joins"))
        if op.sides:
            names = zip(("left", "right"), op.sides, strict=True)
            yield CopartitionedStreams(
                f"join `{op.id}`", tuple(Member(side, f"its {name} side has") for name, side in names)
            )
    for spec in graph.side_stores:
        if spec.name in tables:
            tables[spec.name] += [Member(name, does, copies=True, keys=s.keys) for name, does, s in _fillers(spec, 1)]
    for table, members in tables.items():
        yield CopartitionedStreams(f"table `{table}`", tuple(members))


def _check_keys(
    meeting: CopartitionedStreams, specs: Mapping[str, OperatorSpec], spreads: Mapping[str, frozenset[_Spread]]
) -> None:
    by_member = {
        member: sorted({_keys_of(member, specs), *(each.keys for each in spreads[member.stream])})
        for member in meeting.members
    }
    if len({name for names in by_member.values() for name in names}) > 1:
        keys = listed([f"{each.does} {listed([f'`{n}`' for n in names])} keys" for each, names in by_member.items()])
        raise ConfigError(
            f"{meeting.what}: {keys}. Equal keys have equal bytes only with one serde: declare the same one for all, "
            "with key= of app.input(...) or .partition_by(...)"
        )


def _keys_of(member: Member, specs: Mapping[str, OperatorSpec]) -> str:
    return specs[member.stream].key_serde.name if member.keys is None else member.keys


def _check_spreads(meeting: CopartitionedStreams, spreads: Mapping[str, frozenset[_Spread]], tasks: int) -> None:
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
        f"keys before each of these that reads an input directly: then all keys are spread over the job's "
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
    """By operator, the ways in which its output came to tasks; several if streams are merged. A task of the application
    is taken to keep the keys of its messages."""
    found: dict[str, frozenset[_Spread]] = {}
    for op in graph.operators:
        if op.input_stream is not None:
            found[op.id] = frozenset({_of_input(op.input_stream, op.key_serde.name, partitions, broadcast)})
        elif op.spreads_keys:
            what = f"the keys of `{op.id}` ({counted(tasks, 'task')})"
            found[op.id] = frozenset({_Spread(tasks, what, op.key_serde.name)})
        else:
            found[op.id] = frozenset().union(*(found[each] for each in op.fed_by))
    return found


def found_by_hash(graph: ApplicationGraph) -> frozenset[str]:
    """The stores and tables in which operators look for messages that a `partition_by` has sent to their task."""
    behind: set[str] = set()
    found: set[str] = set()
    for op in graph.operators:
        if op.spreads_keys or not behind.isdisjoint(op.fed_by):
            behind.add(op.id)
            found.update(op.stores)
            if op.reads_table is not None:
                found.add(op.reads_table)
    return frozenset(found)


def _of_side_tables(graph: ApplicationGraph, tasks: int) -> dict[str, frozenset[_Spread]]:
    return {name: frozenset({how}) for spec in graph.side_stores for name, _, how in _fillers(spec, tasks)}


def _fillers(spec: StoreSpec, tasks: int) -> Iterator[tuple[str, str, _Spread]]:
    """The streams, or the pushed table, that fill a store from outside: a name, the part in the meeting, and the
    assignment of keys to tasks. A stream is spread over all tasks, whatever its number of partitions, and a processor
    is taken to keep the keys of messages."""
    own = spec.key_serde.for_keys().name
    if isinstance(spec.side, PushedTable):
        how = _Spread(0, "all rows to every task", own) if spec.side.broadcast else None
        does = f"the pushed table `{spec.side.path}` brings"
        yield f"{spec.name}=>pushed", does, how or _Spread(tasks, f"its keys ({counted(tasks, 'task')})", own)
    elif spec.side is not None:
        for each in spec.side.streams:
            keys = own if spec.side.processor is not None else each.key_serde.name
            how = _Spread(0, "all messages to every task", keys) if spec.side.broadcast else None
            brings = how or _Spread(tasks, f"its keys ({counted(tasks, 'task')})", keys)
            yield f"{spec.name}=>{each.stream}", f"the side input `{each.stream}` brings", brings


def _of_input(
    stream: SystemStream,
    keys: str,
    partitions: Collection[SystemStreamPartition],
    broadcast: Sequence[PartitionRange],
) -> _Spread:
    own = [ssp for ssp in partitions if ssp.system_stream == stream]
    shared = sum(any(ssp in each for each in broadcast) for ssp in own)
    if shared == len(own):
        return _Spread(0, f"the broadcast input `{stream}` (all messages in every task)", keys)
    what = f"input `{stream}` ({counted(len(own), 'partition')}"
    if shared:
        return _Spread(-1, f"{what}, {shared} of them in every task)", keys)
    return _Spread(len(own), f"{what})", keys)
