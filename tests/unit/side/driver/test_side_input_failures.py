"""Failures around side inputs, on drivers of this process."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import Batch
from penstock.side.group import READ_AT_ONCE, FollowResult
from penstock.side.replica import SideSources
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.system.base import OffsetRange, WriterIdentity
from penstock.system.memory import MemoryAdmin
from tests.support.jobs.home import wait_until
from tests.support.oracles.tracebacks import frames_of_penstock
from tests.support.tools.fixtures import fixture_of
from tests.support.world.side_jobs import SideWorld, asked, content, leave, planes, reading, service, settle

world = fixture_of(SideWorld)


def broken(message: ps.IncomingMessageEnvelope, store: Any) -> list[tuple[Any, Any]]:
    if message.value == "bad":
        raise ValueError("no such plane")
    return [(message.key, message.value)]


@pytest.mark.parametrize("processor", [None, broken])
def test_a_bad_message_fails_the_start(world: SideWorld, processor: Any) -> None:
    world.create("planes")
    bad: Any = b"{" if processor is None else "bad"
    world.put("planes", 0, [("N1", "Airbus"), ("N2", bad), ("N3", "Boeing")])
    driver = world.driver(planes(processor=processor))
    with pytest.raises(ps.UserCodeError) as raised:
        driver.loop.run()
    failed = raised.value.failed
    assert (failed.store, failed.stream, failed.partition, failed.offset, failed.key) == (
        "planes",
        "m.planes",
        0,
        1,
        "N2",
    )
    text = str(raised.value)
    assert "the side inputs of store `planes`, at stream `m.planes` partition 0 offset 1 key N2" in text
    assert ("cannot be read by ps.Json()" if processor is None else "ValueError: no such plane") in text
    assert frames_of_penstock(text) == []
    assert driver.log.read().latest is None, "nothing was written"


@pytest.mark.parametrize("processor", [None, broken])
def test_a_bad_message_ends_a_run(world: SideWorld, processor: Any) -> None:
    world.create("planes")
    driver = world.started(planes(processor=processor))
    bad: Any = b"{" if processor is None else "bad"
    world.put("planes", 0, [("N1", "Airbus"), ("N2", bad), ("N3", "Boeing")])
    settle(driver)
    with pytest.raises(ps.UserCodeError, match=r"side inputs of store `planes`, at stream .* offset 1"):
        driver.loop.step()
    assert content(driver, "planes") == {b"N1": b'"Airbus"'}


def test_a_bad_message_may_be_passed_over_loudly(world: SideWorld, caplog: pytest.LogCaptureFixture) -> None:
    """With `continue` the stores keep what they have, and the stream is tried again; others go on."""
    world.config["side.inputs.on.error"] = "continue"
    world.create("planes")
    world.create("others")
    app = ps.StreamApplication("side")
    app.store("planes", side_inputs=["m.planes"], processor=broken)
    app.store("others", side_inputs=["m.others"])
    reading(app, "planes", "others")
    driver = world.started(app)
    world.put("planes", 0, [("N1", "Airbus"), ("N1", "bad"), ("N1", "Boeing")])
    settle(driver)
    world.put("others", 0, [("N1", 7)])
    settle(driver)
    assert asked(world, driver, "N1") == [["Airbus", 7]]
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert any("side.inputs.on.error=continue" in record.getMessage() for record in errors)
    of_the_driver = [record for record in errors if record.name == "penstock.side.driver"]
    assert len(of_the_driver) == 1
    assert "m.planes" in of_the_driver[0].getMessage()
    assert [group.name for group in service(driver).filler.troubles()] == ["`planes`"]


def test_a_missing_stream_fails_the_start(world: SideWorld) -> None:
    with pytest.raises(ps.NotFoundError, match=r"the side input `m.planes` of store `planes` does not exist"):
        world.run(planes())


def test_catching_up_that_takes_too_long_says_what_is_missing(world: SideWorld) -> None:
    world.config["side.inputs.bootstrap.timeout.ms"] = 300
    world.create("planes")
    world.put("planes", 0, [("N1", n) for n in range(5000)])

    def slow(message: Any, store: Any) -> list[tuple[Any, Any]]:
        time.sleep(0.0001)
        return []

    with pytest.raises(ps.PenstockTimeoutError) as raised:
        world.run(planes(processor=slow))
    assert "side.inputs.bootstrap.timeout.ms=300" in str(raised.value)
    assert re.search(r"store `planes` of task 0 has read `m.planes.0` up to offset \d+ of 5000", str(raised.value))


def test_a_stream_that_grows_does_not_delay_the_first_batch(world: SideWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets another message whenever it is read. Only what it held at the start is waited for."""
    world.create("planes")
    world.put("planes", 0, [("N1", 0), ("N2", 0)])
    read = SideSources.read
    waited_for: list[tuple[int, int]] = []

    def growing(sources: SideSources, ssp: Any, start: int, end: int, most: int, **options: Any) -> Any:
        if most == READ_AT_ONCE and len(waited_for) < 20:
            waited_for.append((start, end))
            world.put("planes", 0, [("N1", len(waited_for))])
        return read(sources, ssp, start, end, most, **options)

    monkeypatch.setattr(SideSources, "read", growing)
    driver = world.started(planes())
    settle(driver)
    assert waited_for == [(0, 2)]
    assert asked(world, driver, "N1") == [[1]]


def test_a_stop_ends_catching_up(world: SideWorld) -> None:
    world.create("planes")
    world.put("planes", 0, [("N1", n) for n in range(20_000)])
    reached, go_on = threading.Event(), threading.Event()

    def waits(message: Any, store: Any) -> list[tuple[Any, Any]]:
        reached.set()
        go_on.wait(0.01)
        return []

    driver = world.driver(planes(processor=waits))
    run = threading.Thread(target=driver.loop.run)
    run.start()
    assert reached.wait(20)
    driver.stop.ask()
    run.join(20)
    assert not run.is_alive()
    assert driver.log.read().latest is None
    go_on.set()


def test_a_stream_that_is_created_again_is_read_from_its_beginning(world: SideWorld) -> None:
    world.create("planes")
    world.put("planes", 0, [("N1", "old"), ("N2", "old")])
    driver = world.started(planes())
    assert asked(world, driver, "N1", "N2") == [["old"], ["old"]]
    world.admin.delete_stream("planes")
    world.create("planes")
    world.put("planes", 0, [("N1", "new"), ("N3", "new"), ("N4", "new")])
    settle(driver)
    assert asked(world, driver, "N1", "N2", "N3") == [["new"], [None], ["new"]]
    leave(driver)
    driver = world.started(planes())
    assert asked(world, driver, "N1", "N2", "N3") == [["new"], [None], ["new"]]


def test_a_stream_that_is_gone_is_waited_for(world: SideWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be about to be created again. After a while it ends the run."""
    world.create("planes")
    world.put("planes", 0, [("N1", "old")])
    driver = world.started(planes())
    world.admin.delete_stream("planes")
    settle(driver)
    assert asked(world, driver, "N1") == [["old"]]
    assert service(driver).failure is None
    monkeypatch.setattr("penstock.side.filler.PATIENCE_SECONDS", 0.0)
    wait_until(lambda: service(driver).failure is not None, "the end of patience", 20)
    with pytest.raises(ps.NotFoundError, match=r"`m.planes` does not exist"):
        driver.loop.step()


def compact(world: SideWorld, upto: int) -> None:
    ssp = SystemStreamPartition("m", "planes", 0)
    world.admin.compact(OffsetRange(ssp, 0, upto), WriterIdentity("test", 1))


def test_a_compacted_stream_is_read(world: SideWorld) -> None:
    world.create("planes")
    world.put("planes", 0, [("N1", "old"), ("N2", "old"), ("N2", None), ("N1", "new"), ("N3", "tail")])
    compact(world, 4)
    driver = world.started(planes())
    assert asked(world, driver, "N1", "N2", "N3") == [["new"], [None], ["tail"]]


def test_what_was_compacted_behind_a_reader_is_not_missed(world: SideWorld) -> None:
    """A delete that a compaction drops before it was read is noticed: the store is filled again."""
    world.create("planes")
    world.put("planes", 0, [("N1", "old"), ("N2", "old")])
    driver = world.started(planes())
    assert asked(world, driver, "N1", "N2") == [["old"], ["old"]]
    group = service(driver).filler.groups[0]
    follow, held, goes = group.follow, threading.Event(), threading.Event()

    def later() -> FollowResult:
        held.set()
        assert goes.wait(20)
        return follow()

    group.follow = later  # type: ignore[method-assign]
    assert held.wait(20)
    world.put("planes", 0, [("N2", None), ("N3", "new")])
    compact(world, 4)
    goes.set()
    settle(driver)
    assert asked(world, driver, "N1", "N2", "N3") == [["old"], [None], ["new"]]


def test_compaction_while_it_is_caught_up(world: SideWorld) -> None:
    world.create("planes")
    world.put("planes", 0, [(f"N{n % 7}", n) for n in range(4000)] + [("N3", None)])
    at_first = threading.Event()

    def slow(message: Any, store: Any) -> list[tuple[Any, Any]]:
        if not at_first.is_set():
            at_first.set()
            world.put("planes", 0, [("N4", None)])
            compact(world, 4002)
        return [(message.key, message.value)]

    driver = world.started(planes(processor=slow))
    settle(driver)  # the last deletion came after the ends that the start catches up with
    assert asked(world, driver, "N2", "N3", "N4") == [[3999], [None], [None]]


def test_damage_is_noticed_and_the_store_is_filled_again(world: SideWorld) -> None:
    """A read that fails loses the container's tasks; the next epoch does not use the folder's content."""
    world.create("planes")
    world.put("planes", 0, [("N1", "Airbus")])
    driver = world.started(planes())
    engine = service(driver).engine("planes", 0)
    before = driver.loop.epoch

    def damaged(key: bytes) -> bytes:
        raise ps.CorruptError("block checksum mismatch")

    snapshot = engine._engine.snapshot

    def broken() -> Any:
        found = snapshot()
        found.get = damaged  # type: ignore[method-assign]
        return found

    engine._engine.snapshot = broken  # type: ignore[method-assign]
    world.put("in", 0, [("N1", 0)])
    while not world.output():
        driver.loop.step()
    assert driver.loop.epoch > before
    assert world.output() == [["Airbus"]]
    assert service(driver).filler.groups[0].counts[service(driver).filler.groups[0].parts[0]].messages == 1


def test_a_writer_that_finds_damage_begins_another_epoch(world: SideWorld) -> None:
    world.create("planes")
    world.put("planes", 0, [("N1", "Airbus")])
    driver = world.started(planes())
    before = driver.loop.epoch
    engine = service(driver).engine("planes", 0)

    def damaged(changes: Any) -> None:
        raise ps.CorruptError("block checksum mismatch")

    engine._engine.apply = damaged  # type: ignore[method-assign]
    world.put("planes", 0, [("N1", "Boeing")])
    settle(driver)
    driver.loop.step()
    assert driver.loop.epoch > before
    settle(driver)
    assert asked(world, driver, "N1") == [["Boeing"]]


def test_attempts_read_the_old_content_while_a_new_one_is_made(world: SideWorld) -> None:
    world.create("planes")
    world.put("planes", 0, [("N1", "old"), ("N2", "old")])
    reached, goes = threading.Event(), threading.Event()
    goes.set()

    def slow(message: Any, store: Any) -> list[tuple[Any, Any]]:
        if not goes.is_set():
            reached.set()
            assert goes.wait(20)
        return [(message.key, message.value)]

    driver = world.started(planes(processor=slow))
    assert asked(world, driver, "N1", "N2") == [["old"], ["old"]]
    goes.clear()
    world.admin.delete_stream("planes")
    world.create("planes")
    world.put("planes", 0, [("N1", "new")])
    assert reached.wait(20)
    assert asked(world, driver, "N1", "N2") == [["old"], ["old"]]
    goes.set()
    settle(driver)
    assert asked(world, driver, "N1", "N2") == [["new"], [None]]
    assert service(driver).open_views == 0
    folders = {path.parent.name for path in world.folder.rglob("CURRENT")}
    assert len(folders) == 1, "the old content is removed"


def test_content_that_was_replaced_is_closed_after_the_last_task_that_reads_it(tmp_path: Path) -> None:
    world = SideWorld(tmp_path, tasks=2)
    world.create("planes")
    world.put("planes", 0, [("N1", "old")])
    driver = world.started(planes(broadcast=True), containers=1)
    filled, key, batch = service(driver), ps.String().to_bytes("N1"), Batch(99, 1, 0)
    first = filled.engine("planes", 0)
    views = [filled.views(task, batch)["planes"] for task in (0, 1)]
    world.admin.delete_stream("planes")
    world.create("planes")
    wait_until(lambda: filled.engine("planes", 0) is not first, "other content", 20)
    filled.release(0, 99)
    assert list(tmp_path.glob("*/planes/side-all-0")) != []
    assert views[1].get(key) == b'"old"'
    filled.release(1, 99)
    assert list(tmp_path.glob("*/planes/side-all-0")) == []
    world.close()


def test_a_failing_system_is_tried_again_then_ends_the_run(world: SideWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.create("planes")
    driver = world.started(planes())
    failing = threading.Event()
    offsets = MemoryAdmin.offsets

    def fails(self: MemoryAdmin, stream: str) -> Any:
        if failing.is_set() and stream == "planes":
            raise ps.RetryableError("the disk does not answer")
        return offsets(self, stream)

    monkeypatch.setattr(MemoryAdmin, "offsets", fails)
    failing.set()
    wait_until(lambda: service(driver).filler.troubles(), "a failure", 20)
    assert service(driver).failure is None
    failing.clear()
    wait_until(lambda: not service(driver).filler.troubles(), "its end", 20)
    monkeypatch.setattr("penstock.side.filler.PATIENCE_SECONDS", 0.0)
    failing.set()
    wait_until(lambda: service(driver).failure is not None, "the end of patience", 20)
    with pytest.raises(ps.PenstockError, match="the disk does not answer") as raised:
        driver.loop.step()
    assert not isinstance(raised.value, ps.RetryableError)


def test_a_new_stream_that_cannot_be_read_is_never_mixed_with_the_old_one(world: SideWorld) -> None:
    world.config["side.inputs.on.error"] = "continue"
    world.create("planes")
    world.put("planes", 0, [("N1", "old"), ("N2", "old")])
    driver = world.started(planes(processor=broken))
    world.admin.delete_stream("planes")
    world.create("planes")
    world.put("planes", 0, [("N1", "new"), ("N1", "bad")])
    wait_until(lambda: service(driver).filler.failures.total() >= 2, "two tries", 20)
    world.put("planes", 0, [("N2", "new"), ("N3", "new")])
    wait_until(lambda: service(driver).filler.failures.total() >= 3, "another one", 20)
    assert asked(world, driver, "N1", "N2", "N3") == [["old"], ["old"], [None]]


def test_a_stream_created_again_between_a_look_and_a_read(world: SideWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new stream has more messages than the old one: nothing of it is written to what was made from the old one."""
    world.create("planes")
    world.put("planes", 0, [("N1", "old")])
    driver = world.started(planes())
    engine = service(driver).engine("planes", 0)
    written: list[bytes | None] = []
    write, read, done = engine.write, SideSources.read, threading.Event()

    def noted(entries: Mapping[bytes, bytes | None], *args: Any) -> None:
        written.extend(entries.values())
        write(entries, *args)

    def created_again_first(sources: SideSources, *args: Any, **options: Any) -> Any:
        if not done.is_set():
            done.set()
            world.admin.delete_stream("planes")
            world.create("planes")
            world.put("planes", 0, [(f"N{number}", "new") for number in range(2, 5)])
        return read(sources, *args, **options)

    monkeypatch.setattr(engine, "write", noted)
    monkeypatch.setattr(SideSources, "read", created_again_first)
    world.put("planes", 0, [("N1", "older")])
    settle(driver)
    assert asked(world, driver, "N1", "N2", "N3", "N4") == [[None], ["new"], ["new"], ["new"]]
    assert written == []


def test_a_stream_with_another_number_of_partitions_ends_the_run(world: SideWorld) -> None:
    world.create("carriers", 2)
    app = ps.StreamApplication("side")
    app.store("carriers", side_inputs=["m.carriers"], broadcast=True)
    reading(app, "carriers")
    driver = world.started(app)
    world.admin.delete_stream("carriers")
    world.create("carriers", 3)
    wait_until(lambda: service(driver).failure is not None, "a failure", 20)
    with pytest.raises(ps.IncompatibleError, match=r"`carriers` has 3 partitions; it had 2 when"):
        driver.loop.step()


def test_a_failed_message_leaves_side_stores_as_they_are(world: SideWorld) -> None:
    """With a dead-letter stream the writes of a message are undone; a store that is only read has none."""
    world.create("planes")
    world.create("dead")
    world.config["task.dead.letter.stream"] = "m.dead"
    world.put("planes", 0, [("N1", "Airbus")])
    world.put("in", 0, [("N1", 0), ("N2", 0), ("N1", 0)])

    class Task(ps.StreamTask):
        def init(self, context: ps.TaskContext) -> None:
            self.planes = context.store("planes")

        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            collector.emit(key=envelope.key, value=self.planes[envelope.key])

    app = ps.StreamApplication("side")
    app.store("planes", side_inputs=["m.planes"])
    app.input("m.in").process(Task, stores=["planes"]).send_to(app.output("m.out"))
    assert world.run(app) == ["Airbus", "Airbus"]
    assert world.admin.offsets("dead")[0].upcoming == 1


def test_a_disk_that_is_full_when_a_store_is_flushed_does_not_end_the_run(
    world: SideWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.config["task.commit.ms"] = 20
    world.create("planes")
    driver = world.started(planes())
    full, flush = threading.Event(), RocksDbEngine.flush
    full.set()

    def refuses(engine: RocksDbEngine) -> None:
        if full.is_set():
            raise ps.RetryableError("No space left on device")
        flush(engine)

    monkeypatch.setattr(RocksDbEngine, "flush", refuses)
    world.put("planes", 0, [("N1", "Airbus")])
    wait_until(lambda: "cannot be kept on this host" in caplog.text, "a flush that fails")
    assert asked(world, driver, "N1") == [["Airbus"]]
    assert service(driver).failure is None
    full.clear()
    [group] = service(driver).filler.groups
    wait_until(lambda: sum(counts.flushes for counts in group.counts.values()) > 0, "a flush")
    leave(driver)
