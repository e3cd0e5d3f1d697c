"""A random application with random inputs, against the plain computation of `oracle`."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import penstock as ps
from penstock.api.key_state import list_keys
from penstock.graph.specs import ApplicationGraph
from penstock.system.partitioner import partition_of
from penstock.testing.simulation.choices import Choices
from penstock.testing.simulation.faults import Rates
from penstock.testing.simulation.life import JobUnderTest, Outcome
from penstock.testing.simulation.storage import Fed
from tests.simulation import columns, oracle, tasks
from tests.simulation.checks import Found, broken
from tests.simulation.plans import BOUND, TASKS, TIMED, WINDOWS, Node, Plan, Side, drawn
from tests.simulation.rules import remove_asked

_DAY = 86_400_000


def application(plan: Plan) -> ApplicationGraph:
    """The application of a plan."""
    app = ps.StreamApplication("graphs")
    streams: dict[int, Any] = {}
    for node in plan.nodes:
        streams[node.number] = _stream(app, plan, node, [streams[each] for each in node.sources])
        if node.number in plan.outputs:
            _send(app, node, streams[node.number])
    if plan.broadcast:
        app.store("all", value=ps.Integer())
        every = app.input("m.all", id="all").process(tasks.Everything, stores=["all"], id="everything")
        every.send_to(app.output("m.all-out"), id="to-all")
    return app.graph()


def _send(app: ps.StreamApplication, node: Node, stream: Any) -> None:
    serde = ps.Columns(columns.SCHEMA) if node.columns and node.form == 3 else None
    output = app.output(f"m.out{node.number}", value=serde)
    if node.form == 1:
        stream.sink(partial(tasks.sunk, str(output)), id=f"to{node.number}")
    else:
        stream.send_to(output, id=f"to{node.number}")


def _stream(app: ps.StreamApplication, plan: Plan, node: Node, sources: list[Any]) -> Any:
    if not sources:
        return _input(app, node)
    if len(sources) == 2:
        return _of_two(app, plan, node, *sources)
    by_column = plan.nodes[node.sources[0]].columns and node.form >= 2
    match node.kind:
        case "exchange":
            return _exchange(plan, node, sources[0], by_column=by_column)
        case "timer" | "due":
            return _timer(app, node, sources[0])
        case "state":
            return _stated(app, node, sources[0])
        case "side":
            return _side(app, node, sources[0], by_column=by_column)
        case "batch":
            return _batch(app, plan, node, sources[0])
    if node.kind in WINDOWS:
        return _window(node, sources[0])
    if node.kind in TASKS or node.kind == "expire":
        return _kept(app, plan, node, sources[0])
    found = _by_column(node, sources[0]) if by_column else None
    return _row(node, sources[0]) if found is None else found


def _of_two(app: ps.StreamApplication, plan: Plan, node: Node, first: Any, second: Any) -> Any:
    if node.kind == "merge":
        if node.columns and not plan.nodes[node.sources[1]].columns:
            second = second.select(*columns.FIELDS, id=f"fitting{node.number}")
        return first.merge(second, id=node.name)
    if node.kind != "join":
        return _looked_up(app, plan, node, first, second)
    before, after, kind = oracle.bounds(node)
    order: Any = "event-time" if node.form == 1 else None
    return first.join(
        second,
        tasks.paired,
        within_ms=(before, after),
        kind=kind,
        order=order,
        value=_serde(node),
        id=node.name,
    )


def _input(app: ps.StreamApplication, node: Node) -> Any:
    """Rows, or columns with or without the time of a message: JSON may have fields that the schema does not have."""
    policy = ps.BoundedOutOfOrderness(BOUND * 1000)
    if not node.columns:
        time = (lambda value: int(value["t"])) if node.number % 2 else None
        return app.input(f"m.in{node.number}", timestamp=time, watermark=policy, id=node.name)
    timed = node.number % 2 == 1
    serde: Any = ps.Columns(columns.GIVEN if timed or node.form == 3 else columns.SCHEMA)
    found = app.input(
        f"m.in{node.number}",
        value=serde,
        timestamp=ps.col("t") if timed else None,
        watermark=policy,
        id=node.name,
    )
    return found if serde.schema == columns.SCHEMA else found.select(*columns.FIELDS, id=f"fields{node.number}")


def _serde(node: Node) -> Any:
    """The serde of what an operator emits, where it names one."""
    return ps.Columns(columns.SCHEMA) if node.columns else None


def _exchange(plan: Plan, node: Node, source: Any, *, by_column: bool) -> Any:
    """By a function or an expression, with the serde of the values or another one."""
    number, a, b, form = node.number, node.a, node.b, node.form
    through = f"m.through{number}" if _is_durable(node) and not plan.dead else None
    key: Any = partial(tasks.key_of, a, b)
    if by_column and form == 3:
        keys = columns.RowByRow(partial(columns.with_key, a, b), columns.KEYED)
        keyed = source.map_batches(keys, columns.KEYED, id=f"keys{number}")
        apart = keyed.partition_by(ps.col("k"), through=through, id=node.name)
        return apart.select(*columns.FIELDS, id=f"fields{number}")
    if form >= 2 and not plan.nodes[node.sources[0]].columns:
        source = source.select(*columns.FIELDS, id=f"fields{number}")
    value: Any = None if form == 0 else ps.Json() if form == 1 else ps.Columns(columns.SCHEMA)
    return source.partition_by(key, value=value, through=through, id=node.name)


def _row(node: Node, source: Any) -> Any:
    """Operators of rows."""
    number, a, name = node.number, node.a, node.name
    match node.kind:
        case "map":
            return source.map(partial(tasks.mapped, f"m{number}", a), id=name)
        case "filter":
            seen = source.peek(tasks.nothing, id=f"seen{number}") if node.form == 1 else source
            return seen.filter(partial(tasks.kept, a, node.b), id=name)
        case "branch":
            return _branched(node, source)
        case "where":
            return source.filter(columns.condition(node), id=name)
        case "select":
            return _selected(node, source).map(partial(tasks.named, f"s{number}"), id=f"named{number}")
        case "with_key":
            return source.map(tasks.with_its_key, envelope=True, id=name)
        case "flat_map":
            return source.flat_map(partial(tasks.several, f"f{number}.", a), id=name)
        case "twice":
            return source.flat_map(tasks.twice, id=name)
        case "fail":
            return source.map(partial(tasks.failing, a), id=name)
    return _with_own_store(node, source)


def _selected(node: Node, source: Any) -> Any:
    return source.select("n", "trace", v=ps.col("v") * (1 + node.a) - node.b, id=node.name)


def _branched(node: Node, source: Any) -> Any:
    number, condition = node.number, columns.condition(node)
    given = condition if node.form % 2 == 0 else partial(_holds, condition)
    first, second = source.branch(given, id=node.name)
    streams = [
        each.map(partial(tasks.named, f"{mark}{number}"), id=f"{mark}{number}")
        for mark, each in (("y", first), ("z", second))
    ]
    return streams[0].merge(streams[1], id=f"both{number}")


def _holds(condition: Any, value: Any) -> bool:
    return bool(condition(value))


def _with_own_store(node: Node, source: Any) -> Any:
    number, name = node.number, node.name
    match node.kind:
        case "deduplicate":
            return source.deduplicate(_DAY, by=tasks.name_of, id=name)
        case "aggregate":
            return source.aggregate(columns.aggregates(node), id=name)
        case "reduce":
            first = source.map(partial(tasks.first_of, number), id=f"first{number}")
            return first.reduce(partial(tasks.added, number), value=_serde(node), id=name)
    raise ValueError(node.kind)


def _by_column(node: Node, source: Any) -> Any:
    """The operator in its form by column; None if it has none."""
    number, a, b, name = node.number, node.a, node.b, node.name
    match node.kind:
        case "map":
            return source.map_batches(columns.Mapped(f"m{number}", a), columns.SCHEMA, id=name)
        case "filter":
            return source.filter_batches(columns.Kept(a, b), id=name)
        case "fail":
            failing = columns.RowByRow(partial(tasks.failing, a))
            return source.map_batches(failing, columns.SCHEMA, id=name)
        case "with_key":
            named = columns.RowByRow(columns.named_by_key)
            return source.with_key("k", id=f"k{number}").map_batches(named, columns.SCHEMA, id=name)
        case "select":
            function = columns.RowByRow(partial(tasks.named, f"s{number}"))
            return _selected(node, source).map_batches(function, columns.SCHEMA, id=f"named{number}")
        case "aggregate":
            totals = source.aggregate(columns.aggregates(node), id=name)
            return totals.with_key("key", id=f"k{number}") if node.form == 3 else totals
    return None


def _timer(app: ps.StreamApplication, node: Node, source: Any) -> Any:
    stores = [f"store{node.number}"]
    app.store(*stores, key=ps.Tuple(ps.String(), ps.String()), value=_serde(node))
    made = partial(tasks.Timed if node.kind == "timer" else tasks.Due, node.number, oracle.wait(node))
    order = "event-time" if node.b == 3 and node.kind == "timer" else None
    return source.process(made, stores=stores, timers=ps.String(), order=order, value=_serde(node), id=node.name)


def _stated(app: ps.StreamApplication, node: Node, source: Any) -> Any:
    names = [f"{what}{node.number}" for what in ("count", "list", "map")]
    app.value_state(names[0], value=ps.Integer())
    app.list_state(names[1], value=ps.String())
    app.map_state(names[2], value=ps.Long())
    return source.process(partial(tasks.Stated, node.number), stores=names, value=_serde(node), id=node.name)


def _looked_up(app: ps.StreamApplication, plan: Plan, node: Node, source: Any, versions: Any) -> Any:
    as_of = node.kind == "temporal"
    serde: Any = None
    if node.form >= 2:
        serde = ps.Columns(columns.SCHEMA)
        if not plan.nodes[node.sources[1]].columns:
            versions = versions.select(*columns.FIELDS, id=f"versions{node.number}")
    table = app.table(f"table{node.number}", value=serde, history_ms=_DAY if as_of else None)
    versions.send_to(table, id=f"fill{node.number}")
    function = tasks.paired if as_of else partial(tasks.looked_up, node.number)
    kind: Any = "inner" if as_of and oracle.is_inner(node) else "left"
    return source.join_table(table, function, kind=kind, as_of=as_of, id=node.name)


def _side(app: ps.StreamApplication, node: Node, source: Any, *, by_column: bool) -> Any:
    number, name = node.number, node.name
    side: dict[str, Any] = {"side_inputs": [f"m.{name}"], "broadcast": _is_everywhere(node)}
    if not by_column:
        table = app.table(name, **side)
        return source.join_table(table, partial(tasks.looked_up, number), kind="left", id=f"join{number}")
    table = app.table(name, value=ps.Columns(columns.FOUND), **side)
    if node.form == 3:
        joined = source.join_table(table, columns=["found"], kind="left", id=f"join{number}")
        noted = columns.RowByRow(partial(columns.looked_up, number))
        return joined.map_batches(noted, columns.SCHEMA, id=f"noted{number}")
    return source.join_table(table, partial(tasks.row_looked_up, number), kind="left", id=f"join{number}")


def _batch(app: ps.StreamApplication, plan: Plan, node: Node, source: Any) -> Any:
    stores = [f"count{node.number}", f"store{node.number}"]
    app.store(stores[0], value=ps.Integer())
    app.store(stores[1], value=ps.Columns(columns.TOTAL))
    order: Any = "event-time" if oracle.in_order(node, plan) else None
    return source.process_batch(partial(columns.Batch, node.number), stores=stores, order=order, id=node.name)


def _kept(app: ps.StreamApplication, plan: Plan, node: Node, source: Any) -> Any:
    stores = [f"count{node.number}", f"store{node.number}"]
    app.store(stores[0], value=ps.Integer())
    expires = 2000 * (1 + node.a) if node.kind == "expire" else _DAY if node.a == 3 else None
    app.store(stores[1], ttl_ms=expires, ttl_from="access" if expires and node.b % 2 else "write")
    fails = node.b if oracle.failing(plan, node) else None
    task = partial(tasks.Kept, node.number, node.kind, fails)
    return source.process(task, stores=stores, value=_serde(node), id=node.name)


def _is_ordered(plan: Plan, node: Node) -> bool:
    return node.kind == "batch" and oracle.in_order(node, plan)


def _is_everywhere(node: Node) -> bool:
    """Every task has the whole side input."""
    return node.b % 2 == 1


def _is_durable(node: Node) -> bool:
    return node.kind == "exchange" and (node.a + node.b) % 4 == 3


def _window(node: Node, source: Any) -> Any:
    """A window of all values, of a fold, or of aggregates, whose panes are rows or objects; and their messages."""
    content: dict[str, Any] = {}
    if node.form == 1:
        content["fold"] = list, tasks.folded, tasks.both
    elif node.form >= 2:
        content["aggregates"] = columns.of_window()
    number, rows = node.number, node.form == 2
    if node.kind != "sliding" and not rows:  # those would go row by row
        if node.b == 2:  # no message is late
            content["allowed_lateness_ms"] = 3000
        elif node.b == 3:
            content["early"] = ps.Triggers.repeat(ps.Triggers.count(2))
    panes = source.window(_windows(node, content), rows=rows, id=node.name)
    if not rows:
        panes = panes.filter(tasks.on_time, id=f"on-time{number}")
        function = tasks.paned if node.form < 2 else tasks.summed
        return panes.map(partial(function, number), id=f"pane{number}")
    of_row = partial(tasks.pane_row, number)
    if node.columns:
        return panes.map_batches(columns.RowByRow(of_row), columns.SCHEMA, id=f"pane{number}")
    return panes.map(of_row, id=f"pane{number}")


def _windows(node: Node, content: dict[str, Any]) -> ps.Window:
    if node.kind == "session":
        return ps.Windows.session(2000 + 1500 * node.a, **content)
    if node.kind == "sliding":
        return ps.Windows.sliding(4000 * (1 + node.a), **content)
    size, every = oracle.sizes(node)
    if node.kind == "tumbling":
        return ps.Windows.tumbling(size, **content)
    return ps.Windows.hopping(size, every, **content)


class Graphs:
    """The subject: each life has another application."""

    def __init__(self) -> None:
        self.plan = Plan()
        self.expected = oracle.Expected()

    def job(self, choices: Choices) -> JobUnderTest:
        self.plan = plan = drawn(choices)
        self.expected = oracle.expected(plan)
        while self.expected.size > 600:
            del plan.given[len(plan.given) // 2 :]
            self.expected = oracle.expected(plan)
        feed: list[Fed] = []
        for each in plan.given:
            value = {"n": each.n, "v": each.v, "t": each.t, "trace": []}
            feed.append((each.stream, each.partition, (each.t, None, json.dumps(value).encode())))
        early = [_side_record(node, each, plan.tasks) for node, each in _sides(plan) if each.early]
        late = [_side_record(node, each, plan.tasks) for node, each in _sides(plan) if not each.early]
        for place, record in enumerate(late):
            feed.insert((place + 1) * len(feed) // (len(late) + 1), record)
        streams = {**plan.partitions, **{f"out{number}": 2 for number in plan.outputs}, "dead": 2}
        streams |= {plan.nodes[number].name: plan.tasks for number in plan.sides}
        config: dict[str, object] = {
            "job.batch.max.messages": plan.batch_messages,
            "job.batch.target.ms": 0,
            "task.commit.ms": plan.commit_ms,
            "job.intermediate.stream.partitions": plan.tasks,
            "job.standbytasks.replication.factor": 1 + plan.standbys,
            **{f"streams.m.{stream}.idle.ms": _DAY for stream in plan.partitions},
            **{f"streams.m.out{each}.output.guarantee": "exactly-once" for each, once in plan.outputs.items() if once},
        }
        if plan.latency_ms:
            config["job.latency.target.ms"] = plan.latency_ms
        if plan.dead:
            config["task.dead.letter.stream"] = "m.dead"
        if plan.dead == 2:
            config["streams.m.dead.output.guarantee"] = "exactly-once"
        if plan.broadcast:
            config["task.broadcast.inputs"] = "m.all#[0-1]"
            streams["all-out"] = 2
            config["streams.m.all-out.output.guarantee"] = "exactly-once"
        if plan.backend == 1:
            config["stores.backup.factories"] = config["stores.restore.factories"] = "changelog-stream"
        return JobUnderTest(
            partial(application, plan),
            config,
            streams,
            feed,
            at_once=4 if plan.latency_ms else 8,  # more batches, of which Spark runs the first ones
            before=early,
            may_drain=not any(
                node.kind in TIMED or _is_ordered(plan, node) for node in plan.nodes
            ),  # it fires what waits
            may_go_back=not any(plan.outputs.values()) and plan.dead < 2 and not plan.broadcast,
            may_repartition=not plan.broadcast and not plan.backend and not any(map(_is_durable, plan.nodes)),
        )

    def rates(self, choices: Choices) -> Rates:
        return Rates().scaled((1.0, 0.2, 3.0)[choices.draw(3)])

    def broken(self, outcome: Outcome) -> list[str]:
        outputs = {number: _messages(outcome, f"out{number}") for number in self.plan.outputs}
        letters = [value for _, value, _ in _messages(outcome, "dead")]
        kept = {f"store{node.number}": node.kind for node in self.plan.nodes}
        kept |= {node.name: f"columns of {node.kind}" for node in self.plan.nodes if node.columns}
        stores = {name: _entries(name, kept.get(name, ""), entries) for name, entries in outcome.stores.items()}
        for node in self.plan.nodes:
            if node.kind == "state":
                stores[f"store{node.number}"] = _lists(outcome.stores[f"list{node.number}"])
        found = broken(self.plan, self.expected, Found(outputs, letters, stores))
        if self.plan.broadcast:
            found += self._broken_broadcast(outcome)
        return [f"{each} | {self.plan}" for each in found]

    def _broken_broadcast(self, outcome: Outcome) -> list[str]:
        expected = Counter(each.n for each in self.plan.given if each.stream == "all" for _ in range(self.plan.tasks))
        found = Counter(value["n"] for _, value, _ in _messages(outcome, "all-out"))
        kept = Counter(key.decode() for _, key, _ in outcome.stores["all"])
        twice = [key for _, key, value in outcome.stores["all"] if ps.Integer().from_bytes(value) != 1]
        bad = [f"broadcast: missing {expected - found}, doubled {found - expected}"] if found != expected else []
        return bad + ([f"broadcast: kept {kept}, {twice} more than once"] if kept != expected or twice else [])


def _sides(plan: Plan) -> list[tuple[Node, Side]]:
    return [(plan.nodes[number], each) for number, own in plan.sides.items() for each in own]


def _side_record(node: Node, side: Side, partitions: int) -> Fed:
    """A message of a side input, in the partition of its key."""
    key = side.key.encode()
    return node.name, partition_of(key, partitions), (0, key, json.dumps({"n": side.n, "found": side.n}).encode())


def _messages(outcome: Outcome, stream: str) -> list[tuple[str | None, Any, int]]:
    records = [record for own in outcome.streams.get(stream, {}).values() for record in own]
    return [(None if r[1] is None else r[1].decode(), json.loads(r[2] or b"null"), int(r[0])) for r in records]


def _entries(name: str, kind: str, entries: list[tuple[int, bytes, bytes]]) -> list[tuple[int, Any, Any]]:
    """The entries of a store of the application, decoded; those of operators as they are."""
    read: Callable[[bytes], Any]
    if name.startswith("count"):
        read = ps.Integer().from_bytes
    elif kind == "batch":
        read = _total
    elif kind == "columns of reduce":
        read = partial(columns.decoded, schema=columns.SCHEMA)
    elif kind in TASKS or kind == "expire" or name.startswith("reduce"):
        read = json.loads
    else:
        return list(entries)
    return [(task, key.decode(), read(value)) for task, key, value in entries]


def _lists(entries: list[tuple[int, bytes, bytes]]) -> list[tuple[int, Any, Any]]:
    """The lists of a list state, whose elements are in the order of their keys."""
    keys = list_keys(ps.String()).for_store_keys()
    found: dict[tuple[int, str], list[str]] = defaultdict(list)
    for task, key, value in sorted(entries):
        found[task, keys.from_bytes(key)[0]].append(ps.String().from_bytes(value))
    return [(task, key, names) for (task, key), names in found.items()]


def _total(data: bytes) -> int:
    return int(columns.decoded(data, columns.TOTAL)["total"])


remove_asked()
subject = Graphs()
