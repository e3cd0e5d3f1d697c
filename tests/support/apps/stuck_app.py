"""An application whose drain is stuck while a file is there: in `on_drain`, or where its output is written."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import penstock as ps
from examples.folder_system import FolderSystem, FolderWriter
from penstock.system.base import WriterIdentity

ON_DRAIN, OUTPUT = "on-drain", "output"


def wait_while(file: Path) -> None:
    """Wait until somebody deletes the file."""
    while file.exists():
        time.sleep(0.02)


class StuckSystem(FolderSystem):
    """Its writers are stuck while `<folder>/output` is there."""

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> FolderSystem:
        return cls(name, Path(options["folder"]))

    def writer(self, identity: WriterIdentity | None) -> FolderWriter:
        wait_while(self.folder / OUTPUT)
        return super().writer(identity)


class Pairs(ps.DrainListenerTask):
    """Adds up the messages, and says at a drain what they come to."""

    def init(self, context: ps.TaskContext) -> None:
        self.sums, self.folder = context.store("sums"), Path(context.config["app.folder"])

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        self.sums["sum"] = self.sums.get("sum", 0) + envelope.value

    def on_drain(self, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator) -> None:
        wait_while(self.folder / ON_DRAIN)
        collector.emit(value=self.sums.get("sum", 0))


def stuck() -> ps.StreamApplication:
    """It reads numbers."""
    app = ps.StreamApplication("stuck")
    app.store("sums")
    app.input("far.numbers", id="numbers").process(Pairs, stores=["sums"], id="pairs").send_to(app.output("far.sums"))
    return app
