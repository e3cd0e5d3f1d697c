"""The applications that the job tests run, as the driver's script and the tests build them.

An event is `{"key", "region", "n", "source", "seq"}`: `seq` counts the events of one key in one source partition, so
that a single lost, doubled or reordered message shows as `disorder` in the key's state, even if sums agree.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.application.application import Application

Event = dict[str, Any]


def add_event(total: Event | None, event: Event) -> Event:
    """A total with one more event."""
    total = total or {"sum": 0, "count": 0, "disorder": 0, "next": {}}
    source = str(event["source"])
    if total["next"].get(source, 0) != event["seq"]:
        total["disorder"] += 1
    total["next"][source] = event["seq"] + 1
    total["sum"] += event["n"]
    total["count"] += 1
    return total


def add_region(total: Event | None, event: Event) -> Event:
    """A region's total with one more event."""
    total = total or {"sum": 0, "count": 0}
    total["sum"] += event["n"]
    total["count"] += 1
    return total


class KeyTotals(ps.StreamTask):
    """Keeps each key's totals and passes every event on. Some events ask for more than that."""

    def init(self, context: ps.TaskContext) -> None:
        self.totals = context.store("totals")

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        event = envelope.value
        total = add_event(self.totals.get(envelope.key), event)
        self.totals.put(envelope.key, total)
        collector.send("totals", key=envelope.key, value=total)
        collector.emit(key=envelope.key, value=event)
        if "do" in event:
            self.obey(event, coordinator)

    def obey(self, event: Event, coordinator: ps.TaskCoordinator) -> None:
        """Do as an event asks, after its writes."""
        match event["do"]:
            case "raise":
                raise ValueError(f"event {event['n']} is poisoned")
            case "die":
                die(event["how"])
            case "commit":
                coordinator.commit()
            case "shutdown":
                coordinator.shutdown()
            case "block":
                block_once(Path(event["gate"]), event.get("times", 1))
            case "linger":
                time.sleep(0.15)  # this is the user's code that is slow, message by message
            case "slow":
                slow_once(Path(event["gate"]))


def die(how: str) -> None:
    """End this process at once, as bugs in extensions and a lack of memory do."""
    match how:
        case "exit":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "memory":
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does


class FixedKeyTotals(KeyTotals):
    """The same once its author has found the mistake."""

    def obey(self, event: Event, coordinator: ps.TaskCoordinator) -> None:
        pass


class RegionTotals(ps.StreamTask):
    """Keeps each region's totals."""

    def init(self, context: ps.TaskContext) -> None:
        self.totals = context.store("regions")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        total = add_region(self.totals.get(envelope.key), envelope.value)
        self.totals.put(envelope.key, total)
        collector.send("regions", key=envelope.key, value=total)


class PartitionTotals(ps.StreamTask):
    """A task without a shuffle: one total for its own partition, over all inputs."""

    def init(self, context: ps.TaskContext) -> None:
        self.totals = context.store("totals")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        name = f"{envelope.ssp.stream}-{envelope.ssp.partition}"
        total = add_region(self.totals.get(name), envelope.value)
        self.totals.put(name, total)
        collector.send("totals", key=name, value=total)


def block_once(gate: Path, times: int) -> None:
    """Never return, the first `times` times this is reached."""
    gate.mkdir(exist_ok=True)
    passed = len(list(gate.iterdir()))
    (gate / str(passed)).touch()
    while passed < times:
        time.sleep(0.05)  # this is the user's code that never returns


def slow_once(gate: Path) -> None:
    """The first time this container reaches it, say so and take four seconds."""
    mine = gate / str(os.getpid())
    if not mine.exists():
        gate.mkdir(exist_ok=True)
        mine.touch()
        time.sleep(4)  # this is the user's code that is slow


def declare(app: Application, *, regions: bool = True, value: ps.Serde[Any] | None = None) -> None:
    app.store("totals", key=ps.String(), value=value or ps.Json())
    app.output("local.totals", key=ps.String(), value=ps.Json())
    if regions:
        app.store("regions", key=ps.String(), value=ps.Json())
        app.output("local.regions", key=ps.String(), value=ps.Json())


def by_key(event: Event) -> str:
    """The key of the first stage."""
    return str(event["key"])


def by_region(event: Event) -> str:
    """The key of the second stage."""
    return str(event["region"])


def totals_app(
    *,
    key_id: str = "keys",
    regions: bool = True,
    value: ps.Serde[Any] | None = None,
    task: type[KeyTotals] = KeyTotals,
    more: tuple[str, ...] = (),
) -> ps.StreamApplication:
    """events -> by key -> KeyTotals -> by region -> RegionTotals, both with a store and an output."""
    app = ps.StreamApplication("totals")
    declare(app, regions=regions, value=value)
    events = app.input("local.events")
    if more:
        events = events.merge(*(app.input(f"local.{stream}") for stream in more))
    keyed = events.partition_by(by_key, key=ps.String()).process(task, stores=["totals"], id=key_id)
    if regions:
        keyed.partition_by(by_region, key=ps.String()).process(RegionTotals, stores=["regions"], id="regions")
    else:
        keyed.sink(ignore, id="end")
    return app


def ignore(*_: Any) -> None:
    """Takes what a task passes on, where no stage follows."""


def two_depths_app() -> ps.StreamApplication:
    """`events` goes through the keyed stage first, `direct` straight to the region stage."""
    app = ps.StreamApplication("totals")
    declare(app)
    through = app.input("local.events").partition_by(by_key, key=ps.String()).process(KeyTotals, stores=["totals"])
    direct: ps.MessageStream[Any] = app.input("local.direct").map(partial(dict))
    through.merge(direct).partition_by(by_region, key=ps.String()).process(RegionTotals, stores=["regions"])
    return app


def stateless_app() -> ps.StreamApplication:
    """events with an even `n` -> `evens`; no store, no container stage."""
    app = ps.StreamApplication("totals")
    evens = app.output("local.evens", key=ps.Bytes(), value=ps.Json())
    app.input("local.events").filter(is_even).send_to(evens)
    return app


def is_even(event: Event) -> bool:
    return int(event["n"]) % 2 == 0


def task_app() -> ps.TaskApplication:
    """A TaskApplication over two inputs, nothing shuffled."""
    app = ps.TaskApplication("totals", PartitionTotals)
    declare(app, regions=False)
    app.input("local.events")
    app.input("local.direct")
    return app


def blocking_source_app() -> ps.StreamApplication:
    """As `totals_app`, but the first look at an event with a gate never returns, in the Spark worker."""
    app = ps.StreamApplication("totals")
    declare(app)
    events = app.input("local.events").filter(pass_gate)
    keyed = events.partition_by(by_key, key=ps.String()).process(KeyTotals, stores=["totals"], id="keys")
    keyed.partition_by(by_region, key=ps.String()).process(RegionTotals, stores=["regions"], id="regions")
    return app


def pass_gate(event: Event) -> bool:
    """True, or never."""
    if "source gate" in event:
        block_once(Path(event["source gate"]), 1)
    return True


class Remind(ps.StreamTask):
    """Two timers for each event: ten behind its event time, and one at the batch time that it asks for."""

    def init(self, context: ps.TaskContext) -> None:
        self.context, self.fired = context, context.store("fired")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        event = envelope.value
        self.context.schedule(event["n"], envelope.timestamp + 10)
        self.context.schedule(event["n"], event["at"], "clock", "processing")

    def on_timer(self, timer: ps.ExpiredTimer, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
        name = f"{timer.domain} {timer.key}"
        self.fired[name] = self.fired.get(name, 0) + 1
        collector.emit(key=name, value=timer.time_ms)


def timers_app() -> ps.StreamApplication:
    """local.events `{"t", "k", "n", "at"}` -> timers -> local.reminders; store `fired`: how often each has fired."""
    app = ps.StreamApplication("timers")
    app.store("fired")
    events = app.input("local.events", timestamp=lambda event: event["t"])
    reminders = events.partition_by(lambda event: event["k"]).process(
        Remind, stores=["fired"], timers=ps.Long(), id="remind"
    )
    reminders.send_to(app.output("local.reminders"))
    return app


APPS: dict[str, Callable[[], Application]] = {
    "totals": totals_app,
    "blocking source": blocking_source_app,
    "timers": timers_app,
}
"""By the names that the driver's script gets."""
