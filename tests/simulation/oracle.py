"""The results that a random application must have: a plain computation over its inputs, without batches, tasks or time.

A message that fails undoes all that it has done since it was read, or came out of an exchange: its **unit**. The
computation is therefore done again without the units that fail, until none does.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.plans import KEYS, TASKS, TIMED, Given, Node, Plan

Unit = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a stream, as far as it does not depend on the schedule.

    Attributes:
        unit: what is undone with it.
        root: the stream, partition and offset of the message that it was made from; None if it was several.
        path: where it has been, with the keys that it had.
        order: among messages with the same path, they keep this order; None if there is none.
    """

    key: str | None
    n: str
    v: int
    t: int
    unit: Unit
    root: tuple[str, int, int] | None
    path: tuple[Any, ...] = ()
    order: tuple[int, ...] | None = None

    @property
    def seen(self) -> tuple[str | None, str, int, int]:
        """The content as a reader of an output sees it."""
        return self.key, self.n, self.v, self.t


@dataclass
class Expected:
    """Everything that is known before the job has run."""

    streams: dict[int, list[Message]] = field(default_factory=dict)
    """Number of a stream → its messages."""
    totals: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """Number of an `aggregate` → key → its last row, with a list of the values that may be the first or the last."""
    letters: list[tuple[tuple[str, int, int] | None, frozenset[str]]] = field(default_factory=list)
    """For each dead letter the message that it tells of, and the operators one of which has failed."""

    @property
    def size(self) -> int:
        return max(map(len, self.streams.values()))


def expected(plan: Plan) -> Expected:
    """The oracle. What fails first, in the stage nearest to the inputs, is left out, and then looked at again: behind
    it, windows have other content, and exchanges do not have what it had sent."""
    poisoned: dict[Unit, tuple[tuple[str, int, int] | None, set[str]]] = {}
    while True:
        fails: dict[Unit, tuple[tuple[str, int, int] | None, set[str]]] = {}
        first: dict[Unit, tuple[int, int]] = {}
        found = Expected()
        for node in plan.nodes:
            made = _made(node, [found.streams[each] for each in node.sources], plan, found)
            made = [each for each in made if each.unit not in poisoned]
            found.streams[node.number] = made
            bad = failing(plan, node)
            for message in found.streams[node.sources[0]] if bad is not None and node.sources else ():
                if bad is not None and bad(message.v):
                    fails.setdefault(message.unit, (message.root, set()))[1].add(node.name)
                    first.setdefault(message.unit, (node.depth, node.number))
        if not fails:
            found.letters = [(root, frozenset(names)) for root, names in poisoned.values()]
            return found
        least = min(first.values())
        poisoned |= {unit: why for unit, why in fails.items() if first[unit] == least}


def failing(plan: Plan, node: Node) -> Callable[[int], bool] | None:
    """The test of a value for which an operator fails; None if it never does."""
    if not plan.dead:
        return None
    if node.kind == "fail":
        return lambda v: v % 5 == node.a
    if node.kind in TASKS and node.b < 2 and not plan.nodes[node.sources[0]].waits:
        return lambda v: v % 7 == node.b
    return None


def _made(node: Node, sources: list[list[Message]], plan: Plan, found: Expected) -> list[Message]:
    """The messages of a stream, from those of its sources."""
    if node.kind == "input":
        return [_read(each) for each in plan.given if each.stream == f"in{node.number}"]
    first = [replace(each, path=(*each.path, node.number)) for each in sources[0]]
    match node.kind:
        case "merge":
            return [*first, *(replace(each, path=(*each.path, node.number)) for each in sources[1])]
        case "exchange":
            return _exchanged(node, first)
        case "aggregate":
            own = _by_key(first)
            found.totals[node.number] = {str(key): _totals(each) for key, each in own.items()}
            return []
        case "due":
            return [_alone(node, replace(each, n=f"{each.n}!{node.number}")) for each in first]
        case "batch":
            if in_order(node, plan):
                first = [replace(each, path=(node.number,), order=(each.t,)) for each in first]
            return [replace(each, unit=(node.number, each.key, each.n), root=None) for each in first]
    return _timed(node, first, sources) if node.kind in TIMED else _rows(node, first)


def _timed(node: Node, first: list[Message], sources: list[list[Message]]) -> list[Message]:
    """The results of operators that wait for a time."""
    match node.kind:
        case "join":
            return [_alone(node, each) for each in _joined(node, first, sources[1])]
        case "timer":
            fired = (replace(each, n=f"{each.n}!{node.number}", t=each.t + wait(node)) for each in first)
            return [_alone(node, each) for each in fired]
        case "temporal":
            return [_alone(node, each) for each in _as_of(node, first, sources[1])]
    return [_pane(node, *each) for each in _windows(node, first)]


def in_order(node: Node, plan: Plan) -> bool:
    """A processor of columns gets its messages in the order of their times."""
    return node.form == 3 and not plan.nodes[node.sources[0]].timeless


def _totals(messages: list[Message]) -> dict[str, Any]:
    values, times = [each.v for each in messages], [each.t for each in messages]
    return {
        "count": len(values),
        "sum": sum(values),
        "least": min(values),
        "most": max(values),
        "mean": sum(values) / len(values),
        "first": [each.v for each in messages if each.t == min(times)],
        "last": [each.v for each in messages if each.t == max(times)],
    }


def _rows(node: Node, messages: list[Message]) -> list[Message]:
    """The results of each message alone."""
    number, a = node.number, node.a
    match node.kind:
        case "map":
            return [replace(each, n=f"{each.n}m{number}", v=each.v * (1 + a) + 1) for each in messages]
        case "filter":
            return [each for each in messages if each.v % (3 + a) != node.b]
        case "where":
            return [each for each in messages if is_where(node, each.v)]
        case "select":
            return [replace(each, n=f"{each.n}s{number}", v=each.v * (1 + a) - node.b) for each in messages]
        case "branch":
            return [_branched(node, each, "y" if is_where(node, each.v) else "z") for each in messages]
        case "with_key":
            return [replace(each, n=f"{each.n}@{each.key}") for each in messages]
        case "flat_map":
            return [
                replace(each, n=f"{each.n}f{number}.{i}", v=each.v + i, order=_further(each, i))
                for each in messages
                for i in range((each.v + a) % 3)
            ]
        case "twice":
            return [replace(each, order=_further(each, i)) for each in messages for i in range(2)]
        case "deduplicate":
            once = {(each.key, each.n): replace(each, order=None) for each in reversed(messages)}
            return list(reversed(once.values()))
    return messages


def _branched(node: Node, message: Message, name: str) -> Message:
    return replace(message, n=f"{message.n}{name}{node.number}", path=(*message.path, name))


def is_where(node: Node, v: int) -> bool:
    """The condition of a filter that is an expression."""
    return v * 2 - node.a > 3 + 4 * node.b or (v in (1, 2, 3 + node.a) and v != node.b)


def wait(node: Node) -> int:
    """The time that a timer waits."""
    return 1 + 3000 * node.a


def _exchanged(node: Node, messages: list[Message]) -> list[Message]:
    """Messages with new keys. Each is a separate unit, whichever others there are."""
    times: Counter[tuple[Any, ...]] = Counter()
    found = []
    for each in messages:
        key, what = KEYS[(each.v // (1 + node.b)) % (2 + node.a)], (each.n, each.path)
        times[what] += 1
        unit = node.number, *what, times[what]
        found.append(replace(each, key=key, unit=unit, path=(*each.path, key)))
    return found


def _read(each: Given) -> Message:
    root = each.stream, each.partition, each.offset
    return Message(None, each.n, each.v, each.t, ("in", *root), root, root[:2], (each.offset,))


def _further(message: Message, place: int) -> tuple[int, ...] | None:
    return None if message.order is None else (*message.order, place)


def _alone(node: Node, message: Message) -> Message:
    """A message that came when its time had come."""
    return replace(message, unit=(node.number, message.key, message.n), root=None, order=None)


def _by_key(messages: Iterable[Message]) -> dict[str | None, list[Message]]:
    found: dict[str | None, list[Message]] = defaultdict(list)
    for each in messages:
        found[each.key].append(each)
    return found


def _windows(node: Node, messages: list[Message]) -> Iterator[tuple[str | None, int, int, list[Message]]]:
    """(key, start, end, content) of each window."""
    for key, own in _by_key(messages).items():
        if node.kind == "session":
            yield from ((key, *each) for each in _sessions(sorted(own, key=lambda m: m.t), 2000 + 1500 * node.a))
            continue
        if node.kind == "sliding":
            size = 4000 * (1 + node.a)
            for end in {each.t for each in own}:
                yield key, end - size + 1, end + 1, [each for each in own if end - size < each.t <= end]
            continue
        size, every = sizes(node)
        spans: dict[int, list[Message]] = defaultdict(list)
        for each in own:
            start = each.t // every * every
            while start > each.t - size:
                spans[start].append(each)
                start -= every
        yield from ((key, start, start + size, content) for start, content in spans.items())


def sizes(node: Node) -> tuple[int, int]:
    """The size of windows, and how often one begins."""
    every = 5000 * (1 + node.a)
    return (every if node.kind == "tumbling" else every * 2 + 1000 * node.b), every


def _sessions(messages: list[Message], gap: int) -> Iterator[tuple[int, int, list[Message]]]:
    own: list[Message] = []
    for each in messages:
        if own and each.t >= own[-1].t + gap:
            yield own[0].t, own[-1].t + gap, own
            own = []
        own.append(each)
    if own:
        yield own[0].t, own[-1].t + gap, own


def _pane(node: Node, key: str | None, start: int, end: int, content: list[Message]) -> Message:
    values = [each.v for each in content]
    digest = str(zlib.crc32("+".join(sorted(each.n for each in content)).encode()))
    if node.form >= 2:  # it has only aggregates of its messages
        digest = f"{len(values)}.{min(values)}.{max(values)}"
    name = f"w{node.number}.{start}.{end}.{digest}"
    return Message(key, name, sum(values) % 1000, end - 1, (node.number, key, start), None)


def bounds(node: Node) -> tuple[int, int, str]:
    """The distances before and after a left message within which its partners are, and the kind of the join."""
    return 3000 * (1 + node.a), 2000 * node.b, ("inner", "left", "right", "outer")[(node.a + node.b) % 4]


def _joined(node: Node, lefts: list[Message], rights: list[Message]) -> Iterator[Message]:
    before, after, kind = bounds(node)
    met: set[int] = set()
    others = _by_key(rights)
    for left in lefts:
        for right in others[left.key]:
            if left.t - before <= right.t <= left.t + after:
                met |= {id(left), id(right)}
                pair, v = f"({left.n}&{right.n})", (left.v + right.v) % 1000
                yield replace(left, n=pair, v=v, t=max(left.t, right.t))
    for each in lefts if kind in ("left", "outer") else ():
        if id(each) not in met:
            yield replace(each, n=f"({each.n}&-)", v=each.v % 1000, t=each.t + after)
    for each in rights if kind in ("right", "outer") else ():
        if id(each) not in met:
            yield replace(each, n=f"(-&{each.n})", v=each.v % 1000, t=each.t + before)


def is_inner(node: Node) -> bool:
    """A temporal join leaves out messages for whose key there was no version."""
    return node.form == 1


def _as_of(node: Node, messages: list[Message], versions: list[Message]) -> Iterator[Message]:
    """Each message with the version that its key had at its time."""
    known = _by_key(sorted(versions, key=lambda m: m.t))
    for each in messages:
        last = next((version for version in reversed(known[each.key]) if version.t <= each.t), None)
        if last is None and is_inner(node):
            continue
        n, v = ("-", 0) if last is None else (last.n, last.v)
        yield replace(each, n=f"({each.n}&{n})", v=(each.v + v) % 1000)


def replayed(kind: str, messages: Iterable[tuple[str, int]]) -> Iterator[Any]:
    """The states of a store after each message of its key, given as (n, v)."""
    state: Any = None
    for n, v in messages:
        if kind in ("sum", "reduce", "batch"):
            state = (state or 0) + v
        elif kind == "last":
            state = n
        elif kind in ("clear", "state") and v % 3 == 0:
            state = None
        else:
            state = [*(state or []), n]
        yield state
