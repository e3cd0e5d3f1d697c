"""The tasks and functions of a random application.

A message is a dict: `n` says what it is, `v` is a number, and `trace` has a note of each task of its way, with the
place that it had there. The functions here take rows; `columns` has those that take columns.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import penstock as ps
from tests.simulation.plans import KEYS

Message = dict[str, Any]


def noted(value: Message, node: int, place: int, told: Any) -> Message:
    """The message with a further note. Nothing else than the fields of a message is left of it."""
    return {"n": value["n"], "v": value["v"], "trace": [*value["trace"], note(node, place, told, value["n"])]}


def note(node: int, place: int, told: Any, n: str) -> str:
    return json.dumps([node, place, told, n])


def key_of(a: int, b: int, value: Message) -> str:
    return KEYS[(value["v"] // (1 + b)) % (2 + a)]


def mapped(mark: str, a: int, value: Message) -> Message:
    return {**value, "n": f"{value['n']}{mark}", "v": value["v"] * (1 + a) + 1}


def named(mark: str, value: Message) -> Message:
    return {**value, "n": f"{value['n']}{mark}"}


def on_time(pane: Any) -> bool:
    return bool(pane.firing == "on-time")


def nothing(_value: Message) -> None:
    """For `peek`."""


def sunk(output: str, envelope: Any, collector: Any, _coordinator: Any) -> None:
    collector.send(output, key=envelope.key, value=envelope.value)


def kept(a: int, b: int, value: Message) -> bool:
    return bool(value["v"] % (3 + a) != b)


def several(mark: str, a: int, value: Message) -> list[Message]:
    return [{**value, "n": f"{value['n']}{mark}{i}", "v": value["v"] + i} for i in range((value["v"] + a) % 3)]


def twice(value: Message) -> list[Message]:
    return [value, value]


def failing(a: int, value: Message) -> Message:
    if value["v"] % 5 == a:
        raise ValueError("it fails")
    return value


def name_of(value: Message) -> str:
    return str(value["n"])


def first_of(node: int, value: Message) -> Message:
    return noted(value, node, 1, value["v"])


def added(node: int, before: Message, value: Message) -> Message:
    _, place, total, _ = json.loads(before["trace"][-1])
    return noted({**value, "trace": value["trace"][:-1]}, node, place + 1, total + value["v"])


def paned(node: int, pane: Any) -> Message:
    """A message of a pane with all values, or with what a fold has kept of them."""
    content = [(each["n"], each["v"]) if isinstance(each, dict) else each for each in pane.message]
    digest = zlib.crc32("+".join(sorted(n for n, _ in content)).encode())
    name = f"w{node}.{pane.window.start_ms}.{pane.window.end_ms}.{digest}"
    return {"n": name, "v": sum(v for _, v in content) % 1000, "trace": []}


def folded(before: list[Any], value: Message) -> list[Any]:
    return [*before, [value["n"], value["v"]]]


def both(first: list[Any], second: list[Any]) -> list[Any]:
    return [*first, *second]


def summed(node: int, pane: Any) -> Message:
    """A message of a pane with aggregates."""
    return pane_row(node, {"start_ms": pane.window.start_ms, "end_ms": pane.window.end_ms, **pane.message})


def pane_row(node: int, row: Message) -> Message:
    name = f"w{node}.{row['start_ms']}.{row['end_ms']}.{row['count']}.{row['least']}.{row['most']}"
    return {"n": name, "v": row["sum"] % 1000, "trace": []}


def with_its_key(envelope: Any) -> Message:
    return {**envelope.value, "n": f"{envelope.value['n']}@{envelope.key}"}


def paired(left: Message | None, right: Message | None) -> Message:
    sides: list[Message] = [{"n": "-", "v": 0} if each is None else each for each in (left, right)]
    return {"n": f"({sides[0]['n']}&{sides[1]['n']})", "v": (sides[0]["v"] + sides[1]["v"]) % 1000, "trace": []}


def looked_up(node: int, value: Message, found: Message | None) -> Message:
    """The result does not say what was found: that depends on the schedule. The trace does."""
    return noted(value, node, 0, None if found is None else found["n"])


def row_looked_up(node: int, value: Message, found: Message | None) -> Message:
    return noted(value, node, 0, None if found is None else found["found"])


class Kept(ps.StreamTask):
    """Notes each message's place among those of its key, and what the store said of the ones before it."""

    def __init__(self, node: int, kind: str, fails: int | None) -> None:
        self.node, self.kind, self.fails = node, kind, fails

    def init(self, context: Any) -> None:
        self.counts, self.store = context.store(f"count{self.node}"), context.store(f"store{self.node}")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        key, value = envelope.key, envelope.value
        place = self.counts[key] = self.counts.get(key, 0) + 1
        before = self.store.get(key)
        after = next_state(self.kind, before, value["n"], value["v"])
        if after is None:
            self.store.delete(key)
        else:
            self.store[key] = after
        collector.emit(key=key, value=noted(value, self.node, place, shown(after)))
        if value["v"] == 7:
            coordinator.commit()
        if self.fails is not None and value["v"] % 7 == self.fails:
            raise ValueError("it fails behind its writes")


def next_state(kind: str, before: Any, n: str, v: int) -> Any:
    if kind == "sum":
        return (before or 0) + v
    if kind == "last":
        return n
    if kind == "expire":
        return (before or 0) + 1
    if kind == "clear" and v % 3 == 0:
        return None
    return [*(before or []), n]


def shown(state: Any) -> Any:
    return len(state) if isinstance(state, list) else state


class Timed(ps.StreamTask):
    """Emits each message when its timer fires."""

    def __init__(self, node: int, wait: int) -> None:
        self.node, self.wait = node, wait

    def init(self, context: Any) -> None:
        self.context, self.waiting = context, context.store(f"store{self.node}")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        value = {name: envelope.value[name] for name in ("n", "v", "trace")}
        self.waiting[envelope.key, value["n"]] = value
        self.context.schedule(envelope.key, envelope.timestamp + self.wait, value["n"])

    def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None:
        value = self.waiting[timer.key, timer.name]
        self.waiting.delete((timer.key, timer.name))
        collector.emit(key=timer.key, value={**value, "n": f"{value['n']}!{self.node}"})


class Due(ps.StreamTask):
    """Emits each message when a timer of processing time fires. Others are cancelled, or moved."""

    def __init__(self, node: int, wait: int) -> None:
        self.node, self.wait = node, wait

    def init(self, context: Any) -> None:
        self.context, self.waiting = context, context.store(f"store{self.node}")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        key, n, now = envelope.key, envelope.value["n"], self.context.batch_time_ms
        self.waiting[key, n] = {name: envelope.value[name] for name in ("n", "v", "trace")}
        self.context.schedule(key, envelope.timestamp, f"{n} in vain")
        self.context.schedule(key, now, n, domain="processing")
        self.context.schedule(key, now + self.wait, n, domain="processing")
        self.context.cancel(key, f"{n} in vain")

    def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None:
        value = self.waiting[timer.key, timer.name]
        self.waiting.delete((timer.key, timer.name))
        collector.emit(key=timer.key, value={**value, "n": f"{value['n']}!{self.node}"})


class Stated(ps.StreamTask):
    """As `Kept` with the kind `clear`, in state of the current key: the place, a list of names, and a map of values."""

    def __init__(self, node: int) -> None:
        self.node = node

    def init(self, context: Any) -> None:
        self.count = context.value_state(f"count{self.node}")
        self.names = context.list_state(f"list{self.node}")
        self.values = context.map_state(f"map{self.node}")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        value = envelope.value
        place = self.count.get(0) + 1
        self.count.update(place)
        self.names.append(value["n"])
        self.values.put(value["n"], value["v"])
        if value["v"] % 3 == 0:
            self.names.clear()
            self.values.clear()
        names = list(self.names.get())
        if sorted(set(names)) != [n for n, _ in self.values.items()]:
            raise AssertionError(f"{names} and {list(self.values.items())}")
        collector.emit(key=envelope.key, value=noted(value, self.node, place, len(names) or None))


class Everything(ps.StreamTask):
    """Keeps all messages of an input that every task reads."""

    def init(self, context: Any) -> None:
        self.store = context.store("all")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        value = envelope.value
        self.store[value["n"]] = self.store.get(value["n"], 0) + 1
        collector.emit(key=value["n"], value=value)
