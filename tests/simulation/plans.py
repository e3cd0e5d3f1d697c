"""A random application as plain data: streams of messages, made from others, and the messages of its inputs.

Everything is drawn from decisions of which 0 is the simplest outcome, so that a failure shrinks to a small application.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

BOUND = 15
"""The most by which a message may be earlier than an earlier one of its partition."""
KEYS = "abcde"
TASKS = ("sum", "list", "last", "clear")
"""Tasks with a store. They pass each message on, with a note of its place among those of its key."""
ROWS = ("map", "filter", "flat_map", "where", "select", "branch")
WINDOWS = ("tumbling", "hopping", "sliding", "session")
PLACED = (*TASKS, "reduce", "batch", "state", "expire")
"""These note the place that each message has among those of its key, and keep something of all of them."""
_ALL = (
    *ROWS, *TASKS, "reduce", "merge", "exchange", "aggregate", "twice", "deduplicate", "fail", *WINDOWS, "join",
    "timer", "due", "table", "temporal", "side", "batch", "with_key", "state", "expire",
)  # fmt: skip
TIMED = frozenset({*WINDOWS, "join", "timer", "temporal"})
_BY_KEY = frozenset({*PLACED, *TIMED, "due", "aggregate", "deduplicate", "table", "side", "with_key"})
_UNTIMES = frozenset({"batch", "due"})
"""The results of these have the time of a batch."""
_OF_TWO = frozenset({"merge", "join", "table", "temporal"})
_ENDS = frozenset({"aggregate"})
"""The results of these are not in the form of a message."""


class Draws(Protocol):
    def draw(self, outcomes: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Node:
    """A stream of messages.

    Attributes:
        kind: what makes it.
        sources: numbers of the streams that it is made from.
        a, b: small numbers that say more.
        form: the way in which it is written, of several with the same results: 0 and 1 by row, 2 and 3 by column where
            there are columns.
        depth: the number of exchanges before it.
        keyed: its keys are those of the last exchange, and equal ones are in one task.
        doubled: the same message may be in it more than once.
        waits: a message in it may come from something that waits for time, not from a message that was just read.
        timeless: the times of its messages are not known, because they are those of batches.
        columns: its values have a schema.
        roots: numbers of the inputs that it comes from.
    """

    number: int
    kind: str
    sources: tuple[int, ...] = ()
    a: int = 0
    b: int = 0
    form: int = 0
    depth: int = 0
    keyed: bool = False
    doubled: bool = False
    waits: bool = False
    timeless: bool = False
    columns: bool = False
    roots: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        return f"{self.kind}{self.number}"


@dataclass(frozen=True, slots=True)
class Given:
    """A message of an input."""

    stream: str
    partition: int
    offset: int
    n: str
    v: int
    t: int


@dataclass(frozen=True, slots=True)
class Side:
    """A message of a side input. `early`: it is there before the job starts."""

    key: str
    n: str
    early: bool


@dataclass
class Plan:
    """An application, its inputs, and how it is configured."""

    nodes: list[Node] = field(default_factory=list)
    partitions: dict[str, int] = field(default_factory=dict)
    """Stream of an input → its number of partitions."""
    outputs: dict[int, bool] = field(default_factory=dict)
    """Number of a stream that is sent to an output → whether that is exactly once."""
    given: list[Given] = field(default_factory=list)
    sides: dict[int, list[Side]] = field(default_factory=dict)
    """Number of a stream that is joined with a side input → the messages of that, in their order."""
    dead: int = 0
    """0: no dead letters. 1: at least once. 2: exactly once."""
    extra_tasks: int = 0
    broadcast: bool = False
    batch_messages: int = 4
    commit_ms: int = 3000
    backend: int = 0
    standbys: int = 0
    latency_ms: int = 0
    """Small batches go the direct way; 0: all are Spark's."""

    @property
    def tasks(self) -> int:
        return max(self.partitions.values()) + self.extra_tasks

    def __str__(self) -> str:
        shown = [f"{each.name}({each.a}, {each.b}, {each.form}) of {list(each.sources)}" for each in self.nodes]
        return f"{'; '.join(shown)}; outputs {self.outputs}; {self.partitions}, {self.tasks} tasks, dead {self.dead}"


def drawn(draws: Draws, kinds: tuple[str, ...] = _ALL) -> Plan:
    """A plan, with 20 to 90 messages."""
    plan = Plan()
    for number in range(1 + draws.draw(3)):
        form = draws.draw(4)
        plan.nodes.append(Node(number, "input", form=form, columns=form >= 2, roots=frozenset({number})))
        plan.partitions[f"in{number}"] = 1 + draws.draw(3)
    plan.dead = draws.draw(3)
    ended: set[int] = set()
    for _ in range(1 + draws.draw(9)):
        _add(plan, kinds[draws.draw(len(kinds))], draws, ended)
    used = {source for node in plan.nodes for source in node.sources}
    for node in plan.nodes:
        if node.number not in used or draws.draw(6) == 5:
            plan.outputs[node.number] = bool(draws.draw(2))
    plan.extra_tasks = draws.draw(2)
    plan.broadcast = draws.draw(5) == 4
    if plan.broadcast:
        plan.partitions["all"] = 2
    plan.batch_messages = (4, 2, 15, 40)[draws.draw(4)]
    plan.commit_ms = (3000, 500, 10_000)[draws.draw(3)]
    plan.backend = draws.draw(2)
    plan.standbys = int(draws.draw(6) == 5)
    plan.latency_ms = (0, 0, 3000, 10_000)[draws.draw(4)]
    _give(plan, 20 + 10 * draws.draw(8), draws)
    for node in plan.nodes:
        if node.kind == "side":
            keys = [KEYS[draws.draw(len(KEYS))] for _ in range(4 + draws.draw(12))]
            own = [Side(key, f"s{node.number}.{n}", n < len(keys) // 2) for n, key in enumerate(keys)]
            plan.sides[node.number] = own
    return plan


def _add(plan: Plan, kind: str, draws: Draws, ended: set[int]) -> None:
    """Add a stream of this kind, with an exchange before it if it needs one."""
    sources = [each for each in plan.nodes if each.number not in ended]
    source = sources[-1 - draws.draw(len(sources))]
    a, b, form = draws.draw(4), draws.draw(4), draws.draw(4)
    if kind == "fail" and (not plan.dead or source.waits):
        kind = "map"
    if (kind in ("timer", "due") and source.doubled) or (kind in TIMED and source.timeless):
        kind = "map"
    if (kind in _BY_KEY and not source.keyed) or (kind == "batch" and not source.columns):
        source = _exchanged(plan, source, draws, columns=kind == "batch")
        if not source.keyed or (kind == "batch" and not source.columns):
            kind = "map"
    if kind == "exchange":
        _exchanged(plan, source, draws)
        return
    of = [source, *_second(plan, kind, source, sources, draws)]
    if kind in _OF_TWO and len(of) == 1:
        kind = "map"
    node = _made(plan, kind, of, a, b, form)
    plan.nodes.append(node)
    if kind in _ENDS:
        ended.add(node.number)


def _second(plan: Plan, kind: str, source: Node, sources: list[Node], draws: Draws) -> list[Node]:
    """The second stream that this kind is made from, if it needs one and there is one."""
    if kind not in _OF_TWO:
        return []
    if kind == "merge":
        others = [each for each in sources if each != source and not (plan.dead and each.depth != source.depth)]
        return [others[draws.draw(len(others))]] if others else []
    other = sources[-1 - draws.draw(len(sources))]
    if kind != "join":  # what a table has is given by an input
        other = plan.nodes[other.number] if other.kind == "input" else plan.nodes[0]
    elif other.timeless:
        return []
    elif other.keyed and other.depth == source.depth:
        return [other] if other != source else []
    right = _exchanged(plan, other, draws)
    is_possible = right != source and right.keyed and (kind == "join" or right.depth == source.depth)
    return [right] if is_possible else []


def _has_columns(kind: str, first: Node, form: int) -> bool:
    """The values of what this kind makes have a schema."""
    match kind:
        case "batch":
            return True
        case "sum" | "list" | "last" | "clear" | "state" | "expire" | "timer" | "due" | "join" | "reduce":
            return form >= 2
        case "map" | "fail" | "with_key" | "select":
            return first.columns and form >= 2
        case "side":
            return first.columns and form == 3
        case "tumbling" | "hopping":
            return first.columns and form == 2
        case "filter" | "where" | "deduplicate" | "merge":
            return first.columns
    return False


def _made(plan: Plan, kind: str, of: list[Node], a: int, b: int, form: int) -> Node:
    roots = frozenset().union(*(each.roots for each in of))
    shared = len(of) == 2 and bool(of[0].roots & of[1].roots)
    return Node(
        len(plan.nodes),
        kind,
        tuple(each.number for each in of),
        a,
        b,
        form,
        depth=max(each.depth for each in of),
        keyed=kind != "merge" and of[0].keyed,
        doubled=kind != "deduplicate" and (kind == "twice" or shared or any(each.doubled for each in of)),
        waits=kind in TIMED or kind in _UNTIMES or any(each.waits for each in of),
        timeless=kind in _UNTIMES or any(each.timeless for each in of),
        columns=_has_columns(kind, of[0], form),
        roots=roots,
    )


def _exchanged(plan: Plan, source: Node, draws: Draws, *, columns: bool = False) -> Node:
    """A stream with other keys, and with `columns` one that has them; the source itself if there were enough
    exchanges."""
    if source.depth == 3:
        return source
    a, b, form = draws.draw(3), draws.draw(4), draws.draw(4)
    if columns:
        form = max(form, 2)
    made = Node(
        len(plan.nodes),
        "exchange",
        (source.number,),
        a,
        b,
        form,
        depth=source.depth + 1,
        keyed=True,
        doubled=source.doubled,
        timeless=source.timeless,
        columns=form >= 2 or (form == 0 and source.columns),
        roots=source.roots,
    )
    plan.nodes.append(made)
    return made


def _give(plan: Plan, number: int, draws: Draws) -> None:
    """Messages none of which is late. No two have the same event time, but about the same."""
    reached: dict[tuple[str, int], int] = {}
    offsets: dict[tuple[str, int], int] = {}
    streams = list(plan.partitions)
    for n in range(number):
        stream = streams[(n + draws.draw(4)) % len(streams)]
        partition = (n + draws.draw(3)) % plan.partitions[stream]
        at = stream, partition
        top = reached.get(at, n)
        t = max(0, top + 10 - draws.draw(BOUND + 10))
        reached[at] = max(top, t)
        offset = offsets.get(at, 0)
        offsets[at] = offset + 1
        plan.given.append(Given(stream, partition, offset, f"e{n}", draws.draw(20), 1000 * t + n))
