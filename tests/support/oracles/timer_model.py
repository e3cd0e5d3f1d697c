"""A task whose timers do something, and a plain model of what such timers come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import penstock as ps

Named: TypeAlias = tuple[str, str | None, str]
"""Domain, key, name."""
Fired: TypeAlias = tuple[None, list[Any], int]
"""The message that a timer emits: no key, the timer, and its timestamp."""


def act(context: Any, key: str | None, time_ms: int, name: str, domain: Any) -> None:
    """The effect of a timer, by its name."""
    match name:
        case "later":
            context.schedule(key, time_ms + 3, "", domain)
        case "past":
            context.schedule(key, time_ms - 5, "", domain)
        case "cancel":
            context.cancel(key, "", domain)
            context.cancel("b", "", domain)
        case "twin":
            context.schedule("b", time_ms, "", domain)
        case "loop":
            context.schedule(key, time_ms + 7, name, domain)


class Acting(ps.StreamTask):
    """A message is a list of calls of the context. A timer is emitted, and acts."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        for method, *arguments in envelope.value:
            getattr(self.context, method)(*arguments)

    def on_timer(self, timer: ps.ExpiredTimer, collector: Any, coordinator: Any) -> None:
        collector.emit(value=[*timer[:4]])
        act(self.context, *timer[:4])


def _place(named: Named) -> tuple[bool, bytes, str]:
    _, key, name = named
    return key is not None, (key or "").encode(), name


@dataclass
class TimerModel:
    """The timers of one task. `most` fire of those in processing time in a batch."""

    most: int
    timers: dict[Named, int] = field(default_factory=dict)
    watermark: int = -(2**63)
    closed: dict[Named, bool] | None = None
    """At the end, the timers that were scheduled since it began: whether each has fired."""

    def schedule(self, key: str | None, time_ms: int, name: str = "", domain: str = "event") -> None:
        named = (domain, key, name)
        if self.closed is not None and self.closed.setdefault(named, False):
            return
        self.timers[named] = time_ms

    def cancel(self, key: str | None, name: str = "", domain: str = "event") -> None:
        self.timers.pop((domain, key, name), None)

    def batch(self, messages: Iterable[Sequence[Sequence[Any]]], watermark: int, time_ms: int) -> list[Fired]:
        """The timers that fire in a batch, in order."""
        late, self.watermark = self.watermark, watermark
        fired: list[Fired] = []
        for due_ms, named in self._due("processing", time_ms):
            if self.timers.get(named) == due_ms and len(fired) < self.most:
                fired.append(self._fire(named, max(late, time_ms)))
        for calls in messages:
            for method, *arguments in calls:
                getattr(self, method)(*arguments)
        return fired + self._live("event", watermark, lambda due_ms: max(late, due_ms))

    def end(self, time_ms: int, *, discards: bool = False) -> list[Fired]:
        """The timers that fire at the end of the stream, or in a drain, whose batch reads nothing and has the watermark
        of the one before. `discards`: only that whose time has come; the others are forgotten."""
        late, far = self.watermark, 10**18
        fired: list[Fired] = []
        for due_ms, named in self._due("processing", time_ms):
            if self.timers.get(named) == due_ms and len(fired) < self.most:
                fired.append(self._fire(named, max(late, time_ms)))
        self.closed = {}
        while self.timers:
            for domain, reached in (("event", late), ("processing", time_ms)):
                up_to = reached if discards else far
                stamp = partial(max, late) if domain == "event" else lambda _: max(late, time_ms)
                fired += self._live(domain, up_to, stamp)
                if discards:
                    self.timers = {named: at for named, at in self.timers.items() if named[0] != domain}
        return fired

    def _due(self, domain: str, up_to_ms: int) -> list[tuple[int, Named]]:
        due = [(due_ms, named) for named, due_ms in self.timers.items() if named[0] == domain and due_ms <= up_to_ms]
        return sorted(due, key=lambda each: (each[0], _place(each[1])))

    def _live(self, domain: str, up_to_ms: int, timestamp: Callable[[int], int]) -> list[Fired]:
        fired = []
        while due := self._due(domain, up_to_ms):
            due_ms, named = due[0]
            fired.append(self._fire(named, timestamp(due_ms)))
        return fired

    def _fire(self, named: Named, timestamp_ms: int) -> Fired:
        domain, key, name = named
        due_ms = self.timers.pop(named)
        if self.closed is not None and named in self.closed:
            self.closed[named] = True
        act(self, key, due_ms, name, domain)
        return None, [key, due_ms, name, domain], timestamp_ms
