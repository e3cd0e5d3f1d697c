"""Event time, and the end of a run, behind durable intermediate streams: the same as behind Spark's shuffle."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.time.firing import END_OF_TIME
from penstock.batch.batch import TaskSsp
from penstock.batch.portions import BatchPace, UnreadMessages, plan_ranges, plan_with_unread
from penstock.config.load import load_config
from penstock.drain.driver import Drain
from penstock.drain.requests import write_drain_notification
from penstock.errors import PenstockError
from penstock.job.paths import JobPaths
from penstock.objects.open import forget_memory_store, open_store
from penstock.system.base import Appended, AppendedAtCommit, OffsetRange, PartitionOffsets, RawRecord, WriterIdentity
from penstock.system.memory import MemorySystem, MemoryWriter
from penstock.testing import SettableClock, TestRunner
from penstock.testing.in_process import InProcessDriver

THROUGH = pytest.mark.parametrize("through", [None, "local.between"], ids=["shuffle", "stream"])


def application() -> tuple[ps.StreamApplication, ps.MessageStream[Any]]:
    app = ps.StreamApplication("times")
    return app, app.input("local.in", timestamp=lambda value: value["t"], id="in")


def counted(stream: ps.MessageStream[Any], size_ms: int, op_id: str) -> ps.MessageStream[Any]:
    window = ps.Windows.tumbling(size_ms, aggregates={"n": ps.Count()})
    return stream.window(window, id=op_id).map(lambda pane: pane.message["n"], id=f"n-{op_id}")


def values(runner: TestRunner, stream: str = "local.out") -> list[Any]:
    return [message.value for message in runner.output(stream)]


@THROUGH
def test_what_waits_behind_a_stream_fires_although_nothing_passes_it(through: str | None) -> None:
    app, source = application()
    kept = source.filter(lambda value: value["t"] < 100, id="kept")
    counted(kept.partition_by(lambda _: "a", through=through, id="by"), 100, "w").send_to(app.output("local.out"))
    runner = TestRunner(app, partitions=1).input("local.in", [{"t": 5}, {"t": 50}]).run()
    assert values(runner) == []
    runner.input("local.in", [{"t": 500}]).run()
    assert values(runner) == [2]
    runner.close()


def test_a_watermark_alone_is_no_reason_for_a_batch() -> None:
    app, source = application()
    kept = source.filter(lambda value: value["t"] < 100, id="kept")
    behind = kept.partition_by(lambda _: "a", through="local.between", id="by")
    counted(behind, 100, "w").send_to(app.output("local.out"))
    runner = TestRunner(app, partitions=1).input("local.in", [{"t": 500}]).run()
    first = runner._running().loop.boundary.batch
    for time in range(501, 511):
        runner.input("local.in", [{"t": time}]).run()
    assert runner._running().loop.boundary.batch == first + 10
    runner.close()


@THROUGH
def test_a_watermark_that_a_test_raises_passes_streams_behind_the_messages(through: str | None) -> None:
    app, source = application()
    inner = counted(source.partition_by(lambda _: "a", id="by-in"), 100, "inner")
    outer = inner.partition_by(lambda _: "a", through=through, id="by").window(ps.Windows.tumbling(300), id="outer")
    outer.map(lambda pane: pane.message, id="list").send_to(app.output("local.out"))
    runner = TestRunner(app, partitions=2).input("local.in", [{"t": time} for time in range(0, 300, 50)]).run()
    assert values(runner.advance_watermark(1000)) == [[2, 2, 2]]
    runner.close()


@pytest.mark.few(2)
@THROUGH
@pytest.mark.parametrize("end", ["end_inputs", "drain"])
def test_a_temporal_join_ends_after_what_writes_its_table(through: str | None, end: str) -> None:
    app, source = application()
    table = app.table("table", history_ms=10_000)
    rates = app.input("local.rates", timestamp=lambda value: value["t"], id="rates")
    counts = counted(rates.partition_by(lambda _: "a", id="by-rate"), 100, "w")
    counts.partition_by(lambda _: "a", through=through, id="by").send_to(table, id="write")
    trips = source.partition_by(lambda _: "a", id="by-trip")
    joined = trips.join_table(table, lambda trip, rate: [trip["t"], rate], kind="left", as_of=True, id="join")
    joined.send_to(app.output("local.out"))
    runner = TestRunner(app, partitions=1)
    runner.input("local.rates", [{"t": time} for time in range(30)]).input("local.in", [{"t": 500}]).run()
    assert values(runner) == []
    getattr(runner, end)()
    assert values(runner) == [[500, 30]]
    runner.close()


def test_inputs_wait_until_a_batch_reads_all_that_is_unread() -> None:
    """However small the pieces in which large messages are read, and whatever a message of an input leads to."""
    source, between = SystemStreamPartition("m", "in", 0), SystemStreamPartition("m", "between", 0)
    at = TaskSsp(0, source)
    sizes = {(0, source.system_stream): 10.0, (0, between.system_stream): 600.0}
    ends = {source: PartitionOffsets(0, 1000)}

    def planned(end: int, left: int, pace: BatchPace) -> dict[SystemStream, int]:
        unread = UnreadMessages.of({between: (0, end)}, left)
        portions = plan_with_unread(lambda rest: plan_ranges({at: 0}, ends, rest, None), pace, unread)
        return {each.ssp.system_stream: portion.messages for each, portion in portions.items()}

    assert planned(50, 50, BatchPace(100, 1000, sizes)) == {between.system_stream: 1}
    assert planned(50, 50, BatchPace(100, 10**6, sizes)) == {between.system_stream: 50, source.system_stream: 50}
    assert planned(50, 60, BatchPace(100, 10**6, sizes)) == {between.system_stream: 50}, "the rest is in another range"
    assert planned(50, 50, BatchPace(50, 10**6, sizes)) == {between.system_stream: 50}


class Keeps(ps.StreamTask):
    """Emits once, when its run drains."""

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        pass

    def on_drain(self, collector: Any, coordinator: Any) -> None:
        collector.emit(key="a", value="drained")


@pytest.fixture
def root() -> Iterator[str]:
    root = f"memory://{uuid.uuid4().hex}"
    yield root
    forget_memory_store(root)


def driver_of(
    app: ps.StreamApplication, root: str, folder: Path, system: MemorySystem, **given: Any
) -> InProcessDriver:
    graph = app.graph()
    config = load_config(
        overrides={
            "job.name": "times",
            "job.root": root,
            "job.logged.store.base.dir": str(folder),
            "job.batch.max.messages": 1,
            "job.batch.target.ms": 0,
            "systems.local.samza.factory": "memory",
            **{f"stores.{spec.name}.factory": "memory" for spec in graph.stores},
        },
        environ={},
    )
    return InProcessDriver(graph, config, open_store(root), {"local": system}, clock=SettableClock(), **given)


def put(system: MemorySystem, *times: int) -> None:
    records = [(0, None, json.dumps({"t": time}).encode()) for time in times]
    system.writer(None).append(SystemStreamPartition("local", "in", 0), records)


def written(system: MemorySystem, stream: str) -> list[tuple[int | None, Any]]:
    """Timestamps and values."""
    ends = system.admin().offsets(stream)[0]
    offsets = OffsetRange(SystemStreamPartition("local", stream, 0), ends.oldest, ends.upcoming)
    return [(t, json.loads(v or b"")) for chunk in system.reader().read(offsets, 100) for _, t, _, v, *_ in chunk]


def run_until_idle(driver: InProcessDriver) -> None:
    batch = -1
    while driver.loop.boundary.batch != batch:
        batch = driver.loop.boundary.batch
        assert not driver.loop.step()


def test_event_time_stands_still_behind_a_stream_until_its_readers_close(root: str, tmp_path: Path) -> None:
    """Although batches are between the closing batch of the writer and theirs, because another stream is read."""
    app, source = application()
    counts = counted(source.partition_by(lambda value: str(value["t"] % 3), id="by-in"), 100, "w")
    counts.partition_by(lambda _: "a", through="local.many", id="many").send_to(app.output("local.others"))
    few = counts.filter(lambda n: n == 2, id="filter").partition_by(lambda _: "a", through="local.few", id="few")
    few.process(Keeps, id="keeps").partition_by(lambda _: "a", through="local.last", id="last").window(
        ps.Windows.tumbling(1000), id="outer"
    ).map(lambda pane: pane.message, id="list").send_to(app.output("local.out"))
    system = MemorySystem("local")
    system.admin().create_stream("in", 1)
    put(system, 20, 23, 21, 22, 50)
    driver = driver_of(app, root, tmp_path, system)
    driver.loop.start()
    run_until_idle(driver)
    write_drain_notification(driver.job.objects, JobPaths("times", "1"))
    driver.loop.parts.of(Drain).ask()
    while not driver.loop.step():
        pass
    assert driver.loop.boundary.closing == "drained"
    assert [value for _, value in written(system, "out")] == [["drained"]], "it is not late"
    times = [time for time, value in written(system, "out") if time is not None]
    assert max(times) < END_OF_TIME - 1000
    driver.close()


@THROUGH
def test_event_time_begins_again_if_an_ended_input_has_grown(through: str | None, root: str, tmp_path: Path) -> None:
    app, source = application()
    counted(source.partition_by(lambda _: "a", through=through, id="by"), 100, "w").send_to(app.output("local.out"))
    system = MemorySystem("local")
    system.admin().create_stream("in", 1)
    put(system, 5, 50)
    system.admin().end_stream("in")
    first = driver_of(app, root, tmp_path, system, until_latest=True, close=False)
    first.loop.run()
    assert not first.loop.boundary.closed
    first.close()
    assert [value for _, value in written(system, "out")] == [2]
    put(system, 150, 160, 170)
    last = driver_of(app, root, tmp_path, system, until_latest=True)
    last.loop.run()
    assert [value for _, value in written(system, "out")] == [2, 3], "they are not late"
    last.close()


class Silent(MemorySystem):
    """Says that it reports the offsets of what was appended, and does not."""

    def writer(self, identity: WriterIdentity | None) -> MemoryWriter:
        writer = super().writer(identity)

        def append(records: Mapping[SystemStreamPartition, Iterable[RawRecord]]) -> Appended:
            for ssp, own in records.items():
                writer.append(ssp, own)
            return {}

        writer.begin = lambda: AppendedAtCommit(append)  # type: ignore[method-assign]
        return writer


def test_messages_whose_offsets_nobody_knows_end_the_run(root: str, tmp_path: Path) -> None:
    app, source = application()
    source.partition_by(lambda _: "a", through="local.between", id="by").send_to(app.output("local.out"))
    system = Silent("local")
    system.admin().create_stream("in", 1)
    put(system, 5)
    driver = driver_of(app, root, tmp_path, system)
    driver.loop.start()
    with pytest.raises(PenstockError, match=r"offsets of 0 of 1 message .* to `local.between.0`"):
        driver.loop.step()
    driver.close()
