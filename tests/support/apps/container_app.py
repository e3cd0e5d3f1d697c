"""The application that the container tests run. Messages say what the task should do with them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.graph.specs import ApplicationGraph

Message = dict[str, Any]


class MuteError(BaseException):
    """Has no text."""

    def __str__(self) -> str:
        raise self


RAISES: dict[str, type[BaseException]] = {
    "exit": SystemExit,
    "interrupt": KeyboardInterrupt,
    "cancel": asyncio.CancelledError,
    "mute": MuteError,
}
"""The actions that messages may ask for; anything else is the text of a ValueError."""


def key_of(message: Message) -> str:
    """The key a message is counted under."""
    return str(message["key"])


class Totals(ps.StreamTask):
    """Adds up `n` per key and emits the running total. Leaves traces in a folder that tests wait for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def init(self, context: ps.TaskContext) -> None:
        self._task = context.partition
        self._totals = context.store("totals")
        self._note("init")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        message: Message = envelope.value
        if name := message.get("touch"):
            (self._folder / name).touch()
        while (name := message.get("wait")) and not (self._folder / name).exists():
            time.sleep(0.005)  # this is the user's code that is slow, or never returns
        if text := message.get("raise"):
            raise RAISES.get(text, ValueError)(text)
        total = (self._careful if message.get("careful") else self._totals.get)(envelope.key)
        total = total or {"sum": 0, "messages": 0}
        total["sum"] += message["n"]
        total["messages"] += 1
        self._totals.put(envelope.key, total)
        collector.emit(key=envelope.key, value={**total, "padding": message.get("padding", "")})

    def _careful(self, key: str) -> Any:
        """Takes any failure for an absent key."""
        try:
            return self._totals.get(key)
        except BaseException:
            return None

    def close(self) -> None:
        self._note("close")

    def _note(self, what: str) -> None:
        with (self._folder / f"{what}-{self._task}").open("a", encoding="utf-8") as file:
            file.write("x")


def totals_graph(folder: Path) -> ApplicationGraph:
    """events -> by key -> Totals -> totals."""
    app = ps.StreamApplication("totals")
    app.store("totals")
    (
        app.input("local.events")
        .partition_by(key_of)
        .process(partial(Totals, folder), stores=["totals"], id="add")
        .send_to(app.output("local.totals"))
    )
    return app.graph()


def messages(number: int, start: int = 0) -> list[Message]:
    """Messages of seven keys."""
    return [{"key": f"k{n % 7}", "n": n} for n in range(start, start + number)]


def oracle(*batches: Sequence[Message]) -> dict[bytes, bytes]:
    """The state as a plain loop makes it."""
    totals: dict[str, list[int]] = {}
    for message in (m for batch in batches for m in batch):
        total = totals.setdefault(message["key"], [0, 0])
        total[0] += message["n"]
        total[1] += 1
    return {k.encode(): b'{"sum":%d,"messages":%d}' % (s, m) for k, (s, m) in totals.items()}
