"""A random application with random inputs, against the plain computation of `oracle`."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from typing import Any

import penstock as ps
from penstock.graph.specs import ApplicationGraph
from penstock.system.partitioner import partition_of
from penstock.testing.simulation.choices import Choices
from penstock.testing.simulation.faults import Rates
from penstock.testing.simulation.life import Fed, JobUnderTest, Outcome
from tests.simulation import oracle, tasks
from tests.simulation.checks import Found, broken
from tests.simulation.plans import BOUND, TASKS, TIMED, Node, Plan, Side, drawn
from tests.simulation.rules import remove_asked

_DAY = 86_400_000


def application(plan: Plan) -> ApplicationGraph:
    """The application of a plan."""
    app = ps.StreamApplication("graphs")
    streams: dict[int, Any] = {}
    for node in plan.nodes:
        streams[node.number] = _stream(app, plan, node, [streams[each] for each in node.sources])
        if node.number in plan.outputs:
            streams[node.number].send_to(app.output(f"m.out{node.number}"), id=f"to{node.number}")
    if plan.broadcast:
        app.store("all", value=ps.Integer())
        every = app.input("m.all", id="all").process(tasks.Everything, stores=["all"], id="everything")
        every.send_to(app.output("m.all-out"), id="to-all")
    return app.graph()


def _stream(app: ps.StreamApplication, plan: Plan, node: Node, sources: list[Any]) -> Any:
    number, a, b, name = node.number, node.a, node.b, node.name
    match node.kind:
        case "input":
            time = (lambda value: int(value["t"])) if number % 2 else None
            policy = ps.BoundedOutOfOrderness(BOUND * 1000)
            return app.input(f"m.in{number}", timestamp=time, watermark=policy, id=name)
        case "merge":
            return sources[0].merge(sources[1], id=name)
        case "exchange":
            through = f"m.through{number}" if _is_durable(node) and not plan.dead else None
            return sources[0].partition_by(partial(tasks.key_of, a, b), through=through, id=name)
        case "aggregate":
            sums = {"count": ps.Count(), "sum": ps.Sum(lambda value: value["v"])}
            return sources[0].aggregate(sums, id=name)
        case "tumbling" | "hopping" | "sliding" | "session":
            return sources[0].window(_window(node), id=name).map(partial(tasks.paned, number), id=f"pane{number}")
        case "join":
            before, after, kind = oracle.bounds(node)
            return sources[0].join(sources[1], tasks.paired, within_ms=(before, after), kind=kind, id=name)
        case "timer":
            return _timer(app, node, sources[0])
        case "table" | "temporal":
            return _looked_up(app, node, *sources)
        case "side":
            side = app.table(name, side_inputs=[f"m.{name}"], broadcast=_is_everywhere(node))
            return sources[0].join_table(side, partial(tasks.looked_up, number), kind="left", id=f"join{number}")
    return _kept(app, plan, node, sources[0]) if node.kind in TASKS else _row(node, sources[0])


def _row(node: Node, source: Any) -> Any:
    """Operators without a store, and those whose store is their own affair."""
    number, a, name = node.number, node.a, node.name
    match node.kind:
        case "map":
            return source.map(partial(tasks.mapped, f"m{number}", a), id=name)
        case "filter":
            return source.filter(partial(tasks.kept, a, node.b), id=name)
        case "flat_map":
            return source.flat_map(partial(tasks.several, f"f{number}.", a), id=name)
        case "twice":
            return source.flat_map(tasks.twice, id=name)
        case "fail":
            return source.map(partial(tasks.failing, a), id=name)
        case "deduplicate":
            return source.deduplicate(_DAY, by=tasks.name_of, id=name)
        case "reduce":
            first = source.map(partial(tasks.first_of, number), id=f"first{number}")
            return first.reduce(partial(tasks.added, number), id=name)
    raise ValueError(node.kind)


def _timer(app: ps.StreamApplication, node: Node, source: Any) -> Any:
    stores = [f"store{node.number}"]
    app.store(*stores, key=ps.Tuple(ps.String(), ps.String()))
    made = partial(tasks.Timed, node.number, oracle.wait(node))
    order = "event-time" if node.b == 3 else None
    return source.process(made, stores=stores, timers=ps.String(), order=order, id=node.name)


def _looked_up(app: ps.StreamApplication, node: Node, source: Any, versions: Any) -> Any:
    as_of = node.kind == "temporal"
    table = app.table(f"table{node.number}", history_ms=_DAY if as_of else None)
    versions.send_to(table, id=f"fill{node.number}")
    function = tasks.paired if as_of else partial(tasks.looked_up, node.number)
    return source.join_table(table, function, kind="left", as_of=as_of, id=node.name)


def _kept(app: ps.StreamApplication, plan: Plan, node: Node, source: Any) -> Any:
    stores = [f"count{node.number}", f"store{node.number}"]
    app.store(stores[0], value=ps.Integer())
    app.store(stores[1], ttl_ms=_DAY if node.a == 3 else None)
    fails = node.b if oracle.failing(plan, node) else None
    return source.process(partial(tasks.Kept, node.number, node.kind, fails), stores=stores, id=node.name)


def _is_everywhere(node: Node) -> bool:
    """Every task has the whole side input."""
    return node.b % 2 == 1


def _is_durable(node: Node) -> bool:
    return node.kind == "exchange" and (node.a + node.b) % 4 == 3


def _window(node: Node) -> ps.Window:
    if node.kind == "session":
        return ps.Windows.session(2000 + 1500 * node.a)
    if node.kind == "sliding":
        return ps.Windows.sliding(4000 * (1 + node.a))
    size, every = oracle.sizes(node)
    return ps.Windows.tumbling(size) if node.kind == "tumbling" else ps.Windows.hopping(size, every)


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
            before=early,
            may_drain=not any(node.kind in TIMED for node in plan.nodes),  # it fires what waits
            may_go_back=not any(plan.outputs.values()) and plan.dead < 2 and not plan.broadcast,
            may_repartition=not plan.broadcast and not plan.backend and not any(map(_is_durable, plan.nodes)),
        )

    def rates(self, choices: Choices) -> Rates:
        return Rates().scaled((1.0, 0.2, 3.0)[choices.draw(3)])

    def broken(self, outcome: Outcome) -> list[str]:
        outputs = {number: _messages(outcome, f"out{number}") for number in self.plan.outputs}
        letters = [value for _, value, _ in _messages(outcome, "dead")]
        stores = {name: _entries(name, entries) for name, entries in outcome.stores.items()}
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
    return node.name, partition_of(key, partitions), (0, key, json.dumps({"n": side.n}).encode())


def _messages(outcome: Outcome, stream: str) -> list[tuple[str | None, Any, int]]:
    records = [record for own in outcome.streams.get(stream, {}).values() for record in own]
    return [(None if r[1] is None else r[1].decode(), json.loads(r[2] or b"null"), int(r[0])) for r in records]


def _entries(name: str, entries: list[tuple[int, bytes, bytes]]) -> list[tuple[int, Any, Any]]:
    """The entries of a store of the application, decoded; those of operators as they are."""
    if name.startswith("count"):
        return [(task, key.decode(), ps.Integer().from_bytes(value)) for task, key, value in entries]
    if name.startswith("store") and entries and not entries[0][1].isalpha():
        return list(entries)  # of timers
    if name.startswith(("store", "reduce")):
        return [(task, key.decode(), json.loads(value)) for task, key, value in entries]
    return list(entries)


remove_asked()
subject = Graphs()
