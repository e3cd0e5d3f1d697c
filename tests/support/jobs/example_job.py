"""The job that the examples of `penstock.admin` look at, made without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import penstock as ps
from penstock import admin
from penstock.config import load_config
from penstock.objects.open import open_job_root
from penstock.system.partitioner import partition_of
from penstock.system.registry import open_systems
from penstock.testing.in_process import InProcessDriver

_FIRST = [("N1", 500), ("N2", 200), ("N14", 90)]
_SECOND = [("N1", 700)]
_TIME_MS = 1_700_000_000_000


class Miles(ps.StreamTask):
    """Adds up the miles of each aircraft."""

    def init(self, context: ps.TaskContext) -> None:
        self.miles = context.store("miles")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        self.miles[envelope.key] = self.miles.get(envelope.key, 0) + envelope.value


def flights() -> ps.TaskApplication:
    app = ps.TaskApplication("flights", Miles)
    app.store("miles")
    app.input("local.trips")
    return app


class ExampleJob:
    """Job `flights-1` in the folder `home`: two tasks and four messages, which two runs have read. It has stopped."""

    def __init__(self, home: Path, kept: Path) -> None:
        """Make the job; `PENSTOCK_HOME` must be `home`. A copy of it is kept in `kept`."""
        self._home = home
        self._kept = kept
        self._make()
        shutil.copytree(home, kept)

    def restore(self) -> None:
        """Undo what an example has done to the job."""
        shutil.rmtree(self._home)
        shutil.copytree(self._kept, self._home)

    def _make(self) -> None:
        admin.create_stream(admin.open_stream("trips"), 2)
        for messages in (_FIRST, _SECOND):
            publish(messages)
            run()


def publish(messages: list[tuple[str, int]]) -> None:
    """Append (aircraft, miles) to the stream, which exists."""
    stream = admin.open_stream("trips")
    with closing(stream.system.writer(None)) as writer:
        for tail, miles in messages:
            key, value = tail.encode(), b"%d" % miles
            writer.append(ps.SystemStreamPartition("local", "trips", partition_of(key, 2)), [(_TIME_MS, key, value)])


def run(overrides: Mapping[str, object] | None = None) -> None:
    """Read what the stream holds, then commit and stop."""
    config = load_config(default_job_name="flights", overrides={"task.commit.ms": 0, **(overrides or {})})
    objects, systems = open_job_root(config.job), open_systems(config)
    graph = flights().graph()
    with closing(InProcessDriver(graph, config, objects, systems, containers=1, until_latest=True)) as driver:
        driver.loop.run()
