"""A job over a backlog, for a process of its own: `run` is what `benchmarks.harness.run_side` calls."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

import penstock as ps
from benchmarks.jobs import follow
from penstock.system.base import OffsetRange, PartitionOffsets
from penstock.system.local import LocalSystem


class Pass(ps.StreamTask):
    """Counts, and passes messages on."""

    def init(self, context: ps.TaskContext) -> None:
        self.counts = context.store("counts")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        self.counts.put(envelope.key, (self.counts.get(envelope.key) or 0) + 1)
        collector.emit(key=envelope.key, value=envelope.value)


def application() -> ps.StreamApplication:
    """Input, exchange, a store, exchange, output."""
    app = ps.StreamApplication("large")
    app.store("counts", key=ps.Bytes(), value=ps.Json())
    output = app.output("local.out", key=ps.Bytes(), value=ps.Bytes())
    events = app.input("local.in", key=ps.Bytes(), value=ps.Bytes())
    events.partition_by(first_bytes, key=ps.Bytes()).process(Pass, stores=["counts"]).send_to(output)
    return app


def first_bytes(value: bytes) -> bytes:
    return value[:8]


def run(parameters: dict[str, Any]) -> dict[str, Any]:
    """Publish `messages` of `bytes` to each of `partitions`, and read them to the end: rows of every batch, and how
    many messages the output has. If they are `counted`, also how often its messages are there."""
    import tests.support.jobs.large_batches as module

    cloudpickle.register_pickle_by_value(module)
    work = Path(parameters["work"])
    system = LocalSystem("local", str(work / "streams"))
    admin = system.admin()
    admin.create_stream("in", parameters["partitions"])
    writer = system.writer(None)
    for partition in range(parameters["partitions"]):
        records = (
            (0, None, b"%08d" % n + bytes([n % 256]) * (parameters["bytes"] - 8)) for n in range(parameters["messages"])
        )
        writer.append(ps.SystemStreamPartition("local", "in", partition), records)
    writer.close()
    config = {
        "job.root": str(work / "jobs"),
        "job.logged.store.base.dir": str(work / "state"),
        "systems.local.path": str(work / "streams"),
        "spark.master": "local[2]",
        "spark.driver.memory": "512m",
        "spark.local.dir": str(work / "spark"),
        **parameters["config"],
    }
    batches = follow(module.application().run(config, until="latest"))
    ends = admin.offsets("out")
    admin.close()
    found = {"rows": [batch["rows"] for batch in batches], "written": sum(each.upcoming for each in ends.values())}
    return found | ({"copies": _copies(system, ends)} if parameters.get("counted") else {})


def _copies(system: LocalSystem, ends: Mapping[int, PartitionOffsets]) -> dict[str, int]:
    """By how often a message is in the output, how many messages there are that often."""
    copies: Counter[bytes] = Counter()
    reader = system.reader()
    for partition, own in ends.items():
        whole = OffsetRange(ps.SystemStreamPartition("local", "out", partition), own.oldest, own.upcoming)
        for chunk in reader.read(whole, 10):
            copies.update(hashlib.sha256(value or b"").digest() for _, _, _, value, *_ in chunk)
    reader.close()
    return {str(often): messages for often, messages in Counter(copies.values()).items()}
