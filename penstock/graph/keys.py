"""Keys in an application's graph: checks of them, and keys by column.

Streams which meet in a table or a join must bring the messages of one key to one task, and messages must have keys
where an operator keeps or looks for something by them. By column, keys go from a column of Arrow to the bytes that
their serde writes, and back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.serdes import values
from penstock.api.serdes.base import Bytes, Serde, String
from penstock.api.side_inputs import PushedTable
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.given import is_bytes, is_text
from penstock.base.wording import counted, listed
from penstock.config.kinds import PartitionRange
from penstock.errors import ConfigError, Refusals
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


def check_keys(graph: ApplicationGraph, keyless: Container[SystemStream]) -> None:
    """Raise ConfigError if an operator works by key, and its messages have none: all of a partition would be one key.

    Args:
        keyless: the streams whose messages have no keys.
    """
    without: dict[str, SystemStream] = {}
    refusals = Refusals("operators work by key, and their messages have none")
    for op in graph.operators:
        if op.input_stream is not None:
            if op.input_stream in keyless:
                without[op.id] = op.input_stream
        elif not op.gives_keys and (found := [up for up in op.upstream if up in without]):
            stream = without[found[0]]
            if op.works_by_key:
                other = f", or {op.without_keys}" if op.without_keys else ""
                error = ConfigError(
                    f"operator `{op.id}` works by key, and the messages of `{stream}` have none: put "
                    f".partition_by(...) before it{other}"
                )
                refusals.note(error)
            without[op.id] = stream
    refusals.check()


_DOUBLES = (values.DoubleKey, values.OrderedDouble)
_SIGN_4 = np.uint32(1 << 31)
_SIGN_8 = np.uint64(1 << 63)


def keys_to_bytes(serde: Serde[Any], keys: pa.Array) -> pa.Array:
    """The bytes of each key, as `serde.to_bytes` makes them; a null stays null.

    Raises:
        Exception: a key does not fit the serde.
    """
    if pa.types.is_dictionary(keys.type):
        keys = keys.cast(keys.type.value_type)
    if type(serde) is String and (pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)):
        return keys.cast(pa.large_binary() if pa.types.is_large_string(keys.type) else pa.binary())
    if type(serde) is Bytes and (pa.types.is_binary(keys.type) or pa.types.is_large_binary(keys.type)):
        return keys
    encode = _NUMBERS.get(type(serde))
    is_number = pa.types.is_integer(keys.type) or (type(serde) in _DOUBLES and pa.types.is_floating(keys.type))
    if encode is not None and is_number:
        valid = None if keys.null_count == 0 else ~keys.is_null().to_numpy(zero_copy_only=False)
        return ByteArray.matrix(encode(keys)).to_arrow(valid)
    objects = keys.to_pylist()
    if pa.types.is_struct(keys.type):
        objects = [None if each is None else tuple(each.values()) for each in objects]
    return pa.array([None if each is None else serde.to_bytes(each) for each in objects], pa.binary())


def key_type(serde: Serde[Any]) -> pa.DataType | None:
    """The type of a column of keys: of tuples, a struct with the fields `f0`, `f1`, ... None if the serde has objects
    of several types."""
    if not isinstance(serde, values.Tuple):
        return _TYPES.get(type(serde))
    kinds = [key_type(each) for each in serde.fields]
    return None if None in kinds else pa.struct([pa.field(f"f{n}", kind) for n, kind in enumerate(kinds)])


def check_key_type(serde: Serde[Any], kind: pa.DataType, what: str) -> None:
    """Raise ConfigError, which begins with `what`, if a column of this type cannot be the keys of one of Penstock's own
    serdes."""
    wanted = key_type(serde)
    if wanted is not None and not _fits(wanted, kind):
        own = f"ps.{type(serde).__name__}()"
        raise ConfigError(f"{what}: the column is {kind}, and the keys are of {own}: {_advice(kind)}")


def _fits(wanted: pa.DataType, kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_null(kind):
        return True
    if pa.types.is_struct(wanted):
        parts = list(kind) if pa.types.is_struct(kind) else []
        return len(parts) == len(list(wanted)) and all(map(_fits, (f.type for f in wanted), (f.type for f in parts)))
    if pa.types.is_floating(wanted):
        return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
    return any(is_one(wanted) and is_one(kind) for is_one in (is_text, is_bytes, pa.types.is_integer))


def _advice(kind: pa.DataType) -> str:
    serde = _serde_for(kind)
    if serde is None:
        return "no keys of Penstock have this type, so make one of text or a number: partition_by(lambda row: ...)"
    return f"give key={serde}"


def _serde_for(kind: pa.DataType) -> str | None:
    """The serde of such keys, as a program writes it."""
    if pa.types.is_struct(kind):
        parts = [_serde_for(field.type) for field in kind]
        return None if None in parts else f"ps.Tuple({', '.join(part or '' for part in parts)})"
    families = (
        (is_text, "ps.String()"),
        (pa.types.is_integer, "ps.Long()"),
        (pa.types.is_floating, "ps.Double()"),
        (is_bytes, "ps.Bytes()"),
    )
    return next((name for is_one, name in families if is_one(kind)), None)


def keys_from_bytes(serde: Serde[Any], keys: pa.Array) -> pa.Array:
    """The keys of these bytes, as a column of their type, or without one of the type that Arrow finds."""
    if type(serde) is String:
        return keys.cast(pa.large_string() if pa.types.is_large_binary(keys.type) else pa.string())
    if type(serde) is Bytes:
        return keys
    kind = key_type(serde)
    found = [None if each is None else serde.from_bytes(each) for each in keys.to_pylist()]
    if isinstance(serde, values.Tuple) and kind is not None:
        found = [None if each is None else {f"f{n}": part for n, part in enumerate(each)} for each in found]
    return pa.array(found, kind)


def _integers(keys: pa.Array, kind: pa.DataType) -> Any:
    """Raises ArrowInvalid for a number that is no such integer."""
    return keys.cast(kind).fill_null(0).to_numpy(zero_copy_only=False)


def _doubles(keys: pa.Array) -> Any:
    doubles = keys.cast(pa.float64())
    if pa.types.is_integer(keys.type):
        doubles.cast(keys.type)  # raises if a double does not equal the integer
    return doubles.fill_null(0).to_numpy(zero_copy_only=False) + 0.0  # which makes 0.0 of -0.0


def _ordered_doubles(keys: pa.Array) -> Any:
    if pc.any(pc.is_nan(keys.cast(pa.float64())), min_count=0).as_py():
        raise ValueError("NaN cannot be the key of a store: it equals no key and has no place in their order")
    bits = _doubles(keys).view(np.uint64)
    return np.where(bits & _SIGN_8, ~bits, bits ^ _SIGN_8).astype(">u8")


_NUMBERS: Mapping[type, Callable[[pa.Array], Any]] = {
    **dict.fromkeys((values.Integer, values.SamzaInteger), lambda keys: _integers(keys, pa.int32()).astype(">i4")),
    **dict.fromkeys((values.Long, values.SamzaLong), lambda keys: _integers(keys, pa.int64()).astype(">i8")),
    values.OrderedInteger: lambda keys: (_integers(keys, pa.int32()).view(np.uint32) ^ _SIGN_4).astype(">u4"),
    values.OrderedLong: lambda keys: (_integers(keys, pa.int64()).view(np.uint64) ^ _SIGN_8).astype(">u8"),
    values.DoubleKey: lambda keys: _doubles(keys).astype(">f8"),
    values.OrderedDouble: _ordered_doubles,
}
_TYPES: Mapping[type, pa.DataType] = {
    String: pa.string(),
    Bytes: pa.binary(),
    **dict.fromkeys((values.Integer, values.SamzaInteger, values.OrderedInteger), pa.int32()),
    **dict.fromkeys((values.Long, values.SamzaLong, values.OrderedLong), pa.int64()),
    **dict.fromkeys(_DOUBLES, pa.float64()),
}
