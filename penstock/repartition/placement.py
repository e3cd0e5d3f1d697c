"""Decides which task the entries of a store move to when a job gets another number of tasks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from penstock.api.serdes import Double, Serde
from penstock.api.serdes.base import BytesWithKey
from penstock.api.serdes.values import DoubleKey, Tuple
from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import argument, listed
from penstock.config.kinds import PartitionRange
from penstock.errors import ConfigError
from penstock.graph.specs import ApplicationGraph, InputSpec, OperatorSpec
from penstock.graph.stores import StoreSpec
from penstock.runtime.operators.base import KeyInEntry, operator_of

MessageKey: TypeAlias = Callable[[Any, Any], Any]
"""Key and value of an entry, as the application has them → the key of its messages."""
Rule: TypeAlias = "Literal['key', 'first', 'stay', 'copy', 'empty'] | MessageKey"
"""The user's word on a store:

* `key`: its keys are the keys of messages.
* `first`: its keys are tuples whose first field is the key of a message.
* `stay`: every task keeps what it has.
* `copy`: every task gets what task 0 has.
* `empty`: the store begins empty.

Without a rule, the serdes tell which of the first two it is.
"""
RULES = ("key", "first", "stay", "copy", "empty")
Convert: TypeAlias = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class ByKey:
    """An entry moves to the task that owns the key of its messages."""

    find: Callable[[bytes], bytes | None]
    """Entry's key → message's key, as it was hashed; None: a message without a key."""
    before: int
    """The number of partitions by which keys were spread, and by which they will be."""
    after: int
    keyless_of_task: bool = False
    """See `KeyInEntry`."""
    merges: Mapping[bytes, Callable[[bytes, bytes], bytes]] = field(default_factory=dict)
    of_operator: bool = False
    """The store belongs to an operator."""
    by_value: Callable[[bytes, bytes], bytes | None] | None = None
    """Entry's key and value → message's key, in place of `find`. Entries of two tasks may then have one key."""


@dataclass(frozen=True, slots=True)
class StayingPlacement:
    """Every task keeps what it has."""


@dataclass(frozen=True, slots=True)
class CopiedPlacement:
    """Every task gets what task 0 has."""


@dataclass(frozen=True, slots=True)
class EmptyPlacement:
    """The store begins empty."""


@dataclass(frozen=True, slots=True)
class UnknownPlacement:
    """The user has to say how: why, as a clause about the store, and the rules that count."""

    why: str
    rules: tuple[str, ...] = (*RULES, "a function")


Placement: TypeAlias = ByKey | StayingPlacement | CopiedPlacement | EmptyPlacement | UnknownPlacement
_SIMPLE: Mapping[str, Placement] = {"empty": EmptyPlacement(), "copy": CopiedPlacement(), "stay": StayingPlacement()}


@dataclass(frozen=True, slots=True)
class TaskCountChange:
    """The change of a job's number of tasks, and the inputs before and after it."""

    before: int
    after: int
    partitions: Mapping[str, tuple[int, int]]
    """Input stream → the number of its partitions at the checkpoint and now."""
    broadcast: Sequence[PartitionRange] = ()

    def is_broadcast(self, op: InputSpec) -> bool | None:
        """True if every task reads all of the input; None: a part of it."""
        count = self.partitions[str(op.stream)][1]
        own = (SystemStreamPartition(op.stream.system, op.stream.stream, number) for number in range(count))
        shared = sum(any(ssp in each for each in self.broadcast) for ssp in own)
        return None if 0 < shared < count else shared > 0


def placements(
    graph: ApplicationGraph, change: TaskCountChange, rules: Mapping[str, Rule] | None = None
) -> dict[str, Placement]:
    """By store that the job writes, where its entries move to.

    Raises:
        ConfigError: a rule is of no store, of a store that belongs to an operator, or does not fit the store.
    """
    rules, users = rules or {}, graph.store_users()
    stores = {spec.name: spec for spec in graph.written_stores}
    _check_rules(stores, rules)
    return {
        name: _placement(graph, spec, users.get(name, []), change, rules.get(name)) for name, spec in stores.items()
    }


def _check_rules(stores: Mapping[str, StoreSpec], rules: Mapping[str, Rule]) -> None:
    for name, rule in rules.items():
        if name not in stores:
            known = listed([f"`{each}`" for each in stores]) or "none"
            raise ConfigError(f"there is a rule for `{name}`, and the job writes the stores: {known}")
        if not (callable(rule) or rule in RULES):
            raise ConfigError(f"the rule `{rule}` of store `{name}` is none of {listed(RULES)}, and no function")


def _placement(
    graph: ApplicationGraph, spec: StoreSpec, users: Sequence[str], change: TaskCountChange, rule: Rule | None
) -> Placement:
    writers = [op for op in map(graph.operator, users) if op.reads_table != spec.name]
    own = next(filter(None, (_key_of_operator(op, spec.name) for op in writers)), None)
    if own is not None and rule not in (None, "empty"):
        raise ConfigError(f"store `{spec.name}` belongs to operator `{writers[0].id}`, which places its entries itself")
    simple = _SIMPLE.get(rule) if isinstance(rule, str) else None
    if simple is not None or not writers:
        return simple or StayingPlacement()
    found = _Feeds.of(graph, writers).spread(change)
    if isinstance(found, UnknownPlacement):
        return found if own is None else replace(found, rules=("empty",))
    if rule is None and found.unless_told is not None:
        return found.unless_told
    if own is not None:
        return _by_key([own], found, of_operator=True)
    return _of_application(spec, writers, found, rule)


def _of_application(spec: StoreSpec, writers: Sequence[OperatorSpec], spread: _Spread, rule: Rule | None) -> Placement:
    if callable(rule):
        return ByKey(_nothing, spread.before, spread.after, by_value=_by_function(rule, spec, spread.keys))
    if rule is None and spread.before == 1 and not _has_messages_keys(spec, writers):
        return UnknownPlacement(
            "the job has one task, so nothing shows whether its keys are those of its messages. The rule `key` says so"
        )
    return _by_key(_keys_of_store(spec, rule), spread)


def _has_messages_keys(spec: StoreSpec, writers: Sequence[OperatorSpec]) -> bool:
    """True if Penstock alone writes the store, under the keys of messages."""
    return isinstance(spec.key_serde, BytesWithKey) or all(op.writes_table == spec.name for op in writers)


def _nothing(entry: bytes) -> bytes | None:
    return None


def _key_of_operator(op: OperatorSpec, store: str) -> KeyInEntry | None:
    found: KeyInEntry | None = operator_of(op).key_in(store)
    return found


def _keys_of_store(spec: StoreSpec, rule: Rule | None) -> list[KeyInEntry]:
    """Where the message's key may be in the keys of a store of the application."""
    serde = spec.key_serde
    if isinstance(serde, BytesWithKey):
        return [KeyInEntry(serde.key, serde.find)]
    if isinstance(serde, Tuple):
        first = serde.fields[0]
        of_first = KeyInEntry(first, lambda entry: first.to_bytes(serde.from_bytes(entry)[0]))
        if rule == "first" or spec.has_versions:
            return [of_first]
        whole = KeyInEntry(serde, lambda entry: entry)
        return [whole] if rule == "key" else [whole, of_first]
    if rule == "first":
        raise ConfigError(f"the rule `first` of store `{spec.name}` is for keys that are tuples; they are {serde.name}")
    return [KeyInEntry(serde, lambda entry: entry)]


def _by_key(found: Sequence[KeyInEntry], spread: _Spread, *, of_operator: bool = False) -> Placement:
    for each in found:
        convert = _conversion(each.serde, spread.keys)
        if convert is not None:
            find = each.find if convert is _same else _converted(each.find, convert)
            return ByKey(find, spread.before, spread.after, each.keyless_of_task, each.merges, of_operator)
    return UnknownPlacement(
        f"its keys are `{found[0].serde.name}`, and its messages have keys of `{spread.keys.name}`, so it is not known "
        "which task owns an entry"
    )


def _same(data: bytes) -> bytes:
    return data


def _conversion(stored: Serde[Any], exchange: Serde[Any]) -> Convert | None:
    """Converts the bytes of a stored key to the bytes that were hashed; None: the two are of different kinds."""
    if stored.name == exchange.name:
        return _same
    of_stores = Double() if isinstance(exchange, DoubleKey) else exchange
    if stored.name == of_stores.for_store_keys().name:
        return lambda data: exchange.to_bytes(stored.from_bytes(data))
    return None


def _converted(find: Callable[[bytes], bytes | None], convert: Convert) -> Callable[[bytes], bytes | None]:
    def found(entry: bytes) -> bytes | None:
        key = find(entry)
        return None if key is None else convert(key)

    return found


def _by_function(rule: MessageKey, spec: StoreSpec, exchange: Serde[Any]) -> Callable[[bytes, bytes], bytes | None]:
    keys, values = spec.key_serde, spec.value_serde

    def find(key: bytes, value: bytes) -> bytes | None:
        shown = keys.from_bytes(key)
        made = rule(shown, values.from_bytes(value))
        return None if made is None else exchange.to_bytes(made)

    return find


_WHOLE = ("stay", "copy", "empty")
"""The rules that need no keys."""


@dataclass(frozen=True, slots=True)
class _Spread:
    """The way of messages to tasks: by keys of a serde, over partitions before and after."""

    keys: Serde[Any]
    before: int
    after: int
    unless_told: StayingPlacement | UnknownPlacement | None = None
    """The placement without a rule; None: by key."""


@dataclass(frozen=True, slots=True)
class _Feeds:
    """The sources of the messages for which a store is written: exchanges by key, and inputs as they come."""

    exchanges: tuple[OperatorSpec, ...]
    inputs: tuple[InputSpec, ...]

    @classmethod
    def of(cls, graph: ApplicationGraph, users: Collection[OperatorSpec]) -> _Feeds:
        found, inputs = list(_sources(graph, users)), {op.id: op for op in graph.inputs}
        exchanges = tuple(op for op in found if op.id not in inputs)
        return cls(exchanges, tuple(inputs[op.id] for op in found if op.id in inputs))

    def spread(self, change: TaskCountChange) -> _Spread | UnknownPlacement:
        names = listed([f"`{op.stream}`" for op in self.inputs])
        shared = {change.is_broadcast(op) for op in self.inputs}
        serdes = {op.key_serde.name: op.key_serde for op in (*self.exchanges, *self.inputs)}
        if self.exchanges and self.inputs:
            ids = listed([f"`{op.id}`" for op in self.exchanges])
            return UnknownPlacement(f"it gets messages by key ({ids}) and others as the input {names} has them", _WHOLE)
        if shared - {False}:
            return UnknownPlacement(
                f"every task writes it for itself, for messages of {names} (task.broadcast.inputs). The rule `copy` "
                "gives every task what task 0 has",
                _WHOLE,
            )
        if self.exchanges:
            if len(serdes) > 1:
                return UnknownPlacement(
                    f"it gets messages with keys of several serdes: {listed(sorted(serdes))}", _WHOLE
                )
            return _Spread(next(iter(serdes.values())), change.before, change.after)
        return self._of_inputs(names, list(serdes.values()), change)

    def _of_inputs(
        self, names: str, serdes: Sequence[Serde[Any]], change: TaskCountChange
    ) -> _Spread | UnknownPlacement:
        counts = {change.partitions[str(op.stream)] for op in self.inputs}
        grown = any(before != after for before, after in counts)
        if len(counts) > 1 or len(serdes) > 1:
            if not grown:
                return _Spread(serdes[0], change.before, change.after, StayingPlacement())
            return UnknownPlacement(
                f"it gets messages as the inputs {names} have them, and one has more partitions now", _WHOLE
            )
        why = (
            f"it gets messages as the input {names} has them, which has more partitions now than at the checkpoint, so "
            "new messages of a key may come to another task than its entries. The rule `key` moves the entries to the "
            "partitions that producers choose now, by Kafka's murmur2. It is right if the job has read everything that "
            "was written before the input grew. The rule `stay` leaves them"
        )
        return _Spread(serdes[0], *next(iter(counts)), UnknownPlacement(why) if grown else StayingPlacement())


def _sources(graph: ApplicationGraph, users: Collection[OperatorSpec]) -> Iterator[OperatorSpec]:
    """The operators that decide which task gets the messages of these operators."""
    pending, seen = [up for op in users for up in op.upstream], set[str]()
    while pending:
        op = graph.operator(pending.pop())
        if op.id in seen:
            continue
        seen.add(op.id)
        if op.spreads_keys or op.input_stream is not None:
            yield op
        else:
            pending.extend(op.fed_by)


def unplaced(found: Mapping[str, Placement]) -> list[str]:
    """Requests for the user's word on stores, as sentences."""
    return [
        f"store `{store}`: {each.why}. Give a rule for it with {argument('rules', [f'{store}=RULE'])}: "
        f"{listed(each.rules)}"
        for store, each in found.items()
        if isinstance(each, UnknownPlacement)
    ]
