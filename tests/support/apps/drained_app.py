"""Applications whose drain has something to do in every operator: panes, timers, `on_drain`, exchanges between them.

A message is `{"key", "t", "n"}`, and may have `at`, a point at which its task meets a planned fault, and
`commit`, which asks for a commit. Streams are `a` and `b`; outputs are `panes`, `timers` and `drained`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import penstock as ps
from penstock.application.application import Application
from tests.support.faults.plan import Faults

HOUR_MS = 3_600_000
FAR_MS = 4_000_000_000_000
"""Nothing but a drain comes so far."""
OUTPUTS = ("panes", "timers", "drained")
Message = dict[str, Any]


class Keeper(ps.DrainListenerTask):
    """Keeps in one store how many messages each key has, how often its timer has fired, and how often the task was
    drained."""

    name = "first"

    def init(self, context: ps.TaskContext) -> None:
        self.context, self.kept = context, context.store(self.name)
        self.faults = Faults.of_root(context.config["job.root"])

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        message = envelope.value
        if "at" in message:
            self.faults.at(message["at"])
        self.add(f"count {envelope.key}", message.get("count", 1))
        self.remember(envelope.key)
        if message.get("commit"):
            coordinator.commit()

    def remember(self, key: str) -> None:
        """For the end of time."""
        self.context.schedule(key, FAR_MS)

    def on_timer(self, timer: ps.ExpiredTimer, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
        self.add(f"fired {timer.key}", 1)
        collector.send("local.timers", key=timer.key, value=timer.firing)

    def on_drain(self, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
        self.faults.at(f"drain.{self.name}", task=self.context.partition)
        self.add(f"drains {self.context.partition}", 1)
        collector.send("local.drained", key=f"{self.name} {self.context.partition}", value=dict(self.kept.all()))

    def add(self, name: str, number: int) -> None:
        """To what is kept."""
        self.kept[name] = self.kept.get(name, 0) + number


class Last(Keeper):
    """The same behind the last exchange. It has no timers: what a drain brings would set some while it drains."""

    name = "last"

    def remember(self, key: str) -> None:
        pass


def pane_of(pane: ps.WindowPane[Any, Any]) -> Message:
    """A pane as a message."""
    assert pane.window is not None
    return {"key": pane.key, "from": pane.window.start_ms, "count": pane.message["count"]}


def key_of(message: Message) -> str:
    """The key of the first exchange."""
    return str(message["key"])


def group_of(message: Message) -> str:
    """The key of the second exchange."""
    return f"g{int(str(message['key'])[1:]) % 3}"


def one(message: Message) -> Message:
    """A message of `b` as a pane of one."""
    return {**message, "count": 1}


def windows() -> ps.Window:
    """Counts by hour."""
    return ps.Windows.tumbling(HOUR_MS, aggregates={"count": ps.Count()})


def _application(*stores: str) -> ps.StreamApplication:
    app = ps.StreamApplication("drained")
    _declare(app, *stores)
    return app


def _declare(app: Application, *stores: str) -> None:
    for store in stores:
        app.store(store)
    for output in ("timers", "drained"):
        app.output(f"local.{output}")


def _input(app: ps.StreamApplication, stream: str) -> ps.MessageStream[Message]:
    return app.input(f"local.{stream}", timestamp=lambda message: message["t"], id=stream)


def _kept(app: ps.StreamApplication, stream: ps.MessageStream[Message]) -> ps.MessageStream[Message]:
    """The first keeper, and panes beside it."""
    stream.process(Keeper, stores=["first"], timers=ps.String(), id="first")
    panes = stream.window(windows(), id="hours").map(pane_of, id="shown")
    panes.send_to(app.output("local.panes"), id="panes")
    return panes


def one_input() -> ps.StreamApplication:
    """`a` without an exchange."""
    app = _application("first")
    _kept(app, _input(app, "a"))
    return app


def two_inputs() -> ps.StreamApplication:
    """`a` and `b` without an exchange."""
    app = _application("first")
    _kept(app, _input(app, "a").merge(_input(app, "b")))
    return app


def one_exchange() -> ps.StreamApplication:
    """`a` by key."""
    app = _application("first")
    _kept(app, _input(app, "a").partition_by(key_of, id="by-key"))
    return app


def two_exchanges(through: str | None = None, by_group: str | None = None) -> ps.StreamApplication:
    """`a` by key, and its panes by group; there they meet `b`, which has passed one exchange only."""
    app = _application("first", "last")
    panes = _kept(app, _input(app, "a").partition_by(key_of, id="by-key", through=through))
    both = panes.merge(_input(app, "b").map(one, id="one"))
    both.partition_by(group_of, id="by-group", through=by_group).process(Last, stores=["last"], id="last")
    return app


def two_exchanges_one_durable() -> ps.StreamApplication:
    """The same with the first exchange through a stream."""
    return two_exchanges("local.between")


def two_exchanges_both_durable() -> ps.StreamApplication:
    """The same with both of them."""
    return two_exchanges("local.between", "local.by-group")


def _task(*streams: str) -> ps.TaskApplication:
    app = ps.TaskApplication("drained", Keeper, timers=ps.String())
    _declare(app, "first")
    for stream in streams:
        app.input(f"local.{stream}", timestamp=lambda message: message["t"])
    return app


def task_of_one_input() -> ps.TaskApplication:
    """The keeper alone, with `a`."""
    return _task("a")


def task_of_two_inputs() -> ps.TaskApplication:
    """The keeper alone, with `a` and `b`."""
    return _task("a", "b")


APPS: dict[str, Callable[[], Application]] = {
    each.__name__: each
    for each in (
        one_input,
        two_inputs,
        one_exchange,
        two_exchanges,
        two_exchanges_one_durable,
        two_exchanges_both_durable,
        task_of_one_input,
        task_of_two_inputs,
    )
}
"""By the names that the driver's script gets, with a prefix."""
