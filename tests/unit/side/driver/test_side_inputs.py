"""Jobs with side inputs, on drivers of this process: what attempts read of them."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import penstock as ps
from penstock.batch.batch import NO_BATCH, Batch
from penstock.errors import ContainerLostError
from penstock.side.wing import side_inputs_in
from penstock.system.partitioner import partition_of
from tests.support.jobs.home import wait_until
from tests.support.tools.fixtures import fixture_of
from tests.support.world.side_jobs import SideWorld, asked, content, leave, planes, reading, service, settle

world = fixture_of(SideWorld)


def test_a_store_has_what_its_stream_held_at_the_start(world: SideWorld) -> None:
    world.create("planes")
    world.put("planes", 0, [("N1", "Airbus"), ("N2", "Boeing"), ("N1", "Cessna"), ("N3", "Embraer"), ("N3", None)])
    world.put("in", 0, [("N1", 0), ("N2", 0), ("N3", 0), ("N4", 0)])
    app = ps.StreamApplication("side")
    app.store("planes", side_inputs=["m.planes"])
    reading(app, "planes")
    assert world.run(app) == [["Cessna"], ["Boeing"], [None], [None]]


def test_the_next_batch_sees_an_update(world: SideWorld) -> None:
    world.create("planes")
    world.put("planes", 0, [("N1", "Airbus")])
    app = ps.StreamApplication("side")
    app.store("planes", side_inputs=["m.planes"])
    reading(app, "planes")
    driver = world.started(app)
    world.put("in", 0, [("N1", 0)])
    driver.loop.step()
    assert world.output() == [["Airbus"]]
    world.put("planes", 0, [("N1", "Boeing")])
    settle(driver)
    world.put("in", 0, [("N1", 1)])
    driver.loop.step()
    assert world.output() == [["Airbus"], ["Boeing"]]


def test_a_random_stream_is_what_a_dict_makes_of_it(world: SideWorld) -> None:
    """Bootstraps, updates, restarts on the same host: the store is the stream applied to an empty dict."""
    world.create("planes")
    oracle: dict[str, Any] = {}
    rng, app = random.Random(7), planes()

    def publish(count: int) -> None:
        records = [(f"N{rng.randrange(50)}", rng.choice([None, rng.randrange(1000)])) for _ in range(count)]
        for start in range(0, count, 700):
            world.put("planes", 0, records[start : start + 700])
        oracle.update(records)

    for _ in range(3):
        publish(rng.randrange(3000))
        driver = world.started(app)
        keys = [f"N{n}" for n in range(50)]
        assert asked(world, driver, *keys) == [[oracle.get(key)] for key in keys]
        publish(rng.randrange(3000))
        settle(driver)
        assert asked(world, driver, *keys) == [[oracle.get(key)] for key in keys]
        leave(driver)


def test_an_attempt_reads_one_state_whatever_is_written_meanwhile(world: SideWorld) -> None:
    """Two stores of one stream, read for every message while a thread publishes: each batch sees one state of both."""
    world.create("planes")
    world.put("planes", 0, [("N1", 0)])
    app = ps.StreamApplication("side")
    app.store("one", side_inputs=["m.planes"])
    app.store("two", side_inputs=["m.planes"], processor=lambda message, store: [(message.key, -message.value)])
    reading(app, "one", "two")
    driver = world.started(app)
    publishing = threading.Event()

    def publish() -> None:
        number = 0
        while not publishing.wait(0.001):
            number += 1
            world.put("planes", 0, [("N1", number)])

    thread = threading.Thread(target=publish)
    thread.start()
    seen: list[int] = []
    try:
        while len(set(seen)) < 6:
            batch = asked(world, driver, *["N1"] * 100)
            assert len({tuple(pair) for pair in batch}) == 1
            one, two = batch[0]
            assert one == -two
            seen.append(one)
    finally:
        publishing.set()
        thread.join()
    assert seen == sorted(seen)


def test_updates_are_flushed_at_the_interval_of_commits(world: SideWorld) -> None:
    """Otherwise a container that is killed would have to read everything since its start again."""
    world.config["task.commit.ms"] = 50
    world.create("planes")
    driver = world.started(planes())
    (group,) = service(driver).filler.groups
    for number in (1, 2):
        world.put("planes", 0, [("N1", number)])
        wait_until(lambda number=number: group.counts[group.parts[0]].flushes == number, "a flush", 20)  # type: ignore[misc]


def test_a_store_whose_stream_is_silent_does_not_become_old(world: SideWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.create("planes")
    driver = world.started(planes())
    engine = service(driver).engine("planes", 0)
    first = engine.positions.updated_ms
    monkeypatch.setattr("penstock.side.filler.TOUCH_SECONDS", 0.0)
    wait_until(lambda: engine.positions.updated_ms > first, "another time of the content", 20)


def test_views_are_not_taken_between_stores_of_one_stream(world: SideWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt begins when one store has a message and the other does not have it yet."""
    world.create("planes")
    app = ps.StreamApplication("side")
    app.store("one", side_inputs=["m.planes"])
    app.store("two", side_inputs=["m.planes"])
    reading(app, "one", "two")
    driver = world.started(app)
    filled = service(driver)
    key, batch = ps.String().to_bytes("N1"), Batch(99, 1, 0)
    seen: list[list[bytes | None]] = []

    def look() -> None:
        views = filled.views(0, batch)
        seen.append([views[store].get(key) for store in ("one", "two")])

    attempt = threading.Thread(target=look)
    second = filled.engine("two", 0)
    write = second.write

    def begin_an_attempt_and_write(*args: Any) -> None:
        if args[0] and attempt.ident is None:
            attempt.start()
            attempt.join(0.3)  # it has to wait
        write(*args)

    monkeypatch.setattr(second, "write", begin_an_attempt_and_write)
    world.put("planes", 0, [("N1", 1)])
    settle(driver)
    attempt.join(20)
    filled.release(0, 99)
    assert seen == [[b"1", b"1"]]


def test_a_processor_sees_what_it_returned_and_can_only_read(world: SideWorld) -> None:
    world.create("sums")
    refused = []

    def add(message: ps.IncomingMessageEnvelope, store: ps.KeyValueStore[Any, Any]) -> Iterator[tuple[Any, Any]]:
        writes: list[Callable[[], None]] = [
            lambda: store.put("x", 1),
            lambda: store.delete("x"),
            lambda: store.put_all({}),
        ]
        for write in writes:
            try:
                write()
            except ps.ConfigError as error:
                refused.append(str(error))
        yield message.key, (store.get(message.key) or 0) + message.value
        yield message.key, store[message.key] + 100
        yield None, "ignored"
        yield "all", [key for key, _ in store.all()]

    app = ps.StreamApplication("side")
    app.store("sums", side_inputs=["m.sums"], processor=add)
    reading(app, "sums")
    world.put("sums", 0, [("a", 1), ("a", 2), ("b", 5)])
    driver = world.started(app)
    assert asked(world, driver, "a", "b", "all", "x") == [[203], [105], [["a", "all", "b"]], [None]]
    world.put("sums", 0, [("a", 4)])
    settle(driver)
    assert asked(world, driver, "a") == [[307]]
    assert len(refused) == 12
    assert all("return the entries to be written" in text for text in refused)


def test_a_factory_makes_a_processor_for_each_task_and_store(tmp_path: Path) -> None:
    made: list[Any] = []

    class Counting:
        def __init__(self) -> None:
            self.count = 0

        def process(self, message: Any, store: Any) -> list[tuple[Any, Any]]:
            self.count += 1
            return [(message.key, self.count)]

    class Factory(ps.SideInputsProcessorFactory):
        def get_side_inputs_processor(self, config: Any, metrics_registry: Any) -> Any:
            made.append(Counting())
            metrics_registry.new_counter("mine", "made").inc()
            return made[-1]

    world = SideWorld(tmp_path, tasks=2)
    try:
        world.create("planes")
        app = ps.StreamApplication("side")
        for store in ("one", "two"):
            app.store(store, side_inputs=["m.planes"], processor=Factory())
        reading(app, "one", "two")
        for partition in (0, 1):
            world.put("planes", partition, [(f"k{partition}", 0)] * 3)
            world.put("in", partition, [(f"k{partition}", 0)])
        assert world.run(app) == [[3, 3], [3, 3]]
        assert [each.count for each in made] == [3] * 4
    finally:
        world.close()


def test_a_broadcast_store_is_one_for_all_tasks_of_a_container(tmp_path: Path) -> None:
    world = SideWorld(tmp_path, tasks=3)
    try:
        world.create("carriers", 2)
        app = ps.StreamApplication("side")
        app.store("carriers", side_inputs=["m.carriers"], broadcast=True)
        reading(app, "carriers")
        world.put("carriers", 0, [("AA", "American")])
        world.put("carriers", 1, [("DL", "Delta")])
        driver = world.started(app, containers=2)
        for partition in range(3):
            world.put("in", partition, [("AA", 0), ("DL", 0)])
        driver.loop.step()
        assert sorted(world.output()) == [["American"]] * 3 + [["Delta"]] * 3
        engines = {task: service(driver, task).engine("carriers", task) for task in range(3)}
        assert len(set(engines.values())) == 2
    finally:
        world.close()


def test_several_streams_fill_one_store(world: SideWorld) -> None:
    for stream in ("old", "new", "none"):
        world.create(stream)
    world.put("old", 0, [("a", 1), ("b", 2)])
    world.put("new", 0, [("c", 3)])
    app = ps.StreamApplication("side")
    app.store("all", side_inputs=["m.old", "m.new", "m.none"])
    reading(app, "all")
    driver = world.started(app)
    assert asked(world, driver, "a", "b", "c") == [[1], [2], [3]]
    world.put("none", 0, [("b", None), ("c", 4)])
    settle(driver)
    assert asked(world, driver, "a", "b", "c") == [[1], [None], [4]]


def test_a_stream_with_other_serdes_is_converted(world: SideWorld) -> None:
    world.create("planes")
    world.put("planes", 0, [(b"\x00\x00\x00\x07", b"Airbus"), (b"\x00\x00\x00\x08", b"")])
    app = ps.StreamApplication("side")
    side = ps.SideInput("m.planes", key=ps.Integer(), value=ps.String())
    app.store("planes", key=ps.String(), side_inputs=[side], processor=lambda m, _: [(f"N{m.key}", m.value)])
    reading(app, "planes")
    world.put("in", 0, [("N7", 0), ("N8", 0)])
    assert world.run(app) == [["Airbus"], [""]]


def test_an_empty_stream_is_caught_up_at_once(world: SideWorld) -> None:
    world.create("planes")
    world.put("in", 0, [("N1", 0)])
    assert world.run(planes()) == [[None]]


@pytest.mark.few(1)
@pytest.mark.parametrize("write", ["put", "delete", "put_all"])
def test_a_write_by_the_job_is_refused(world: SideWorld, write: str) -> None:
    world.create("planes")
    world.put("in", 0, [("N1", 0)])

    def body(envelope: Any, collector: Any, store: Any) -> None:
        {"put": lambda: store.put("a", 1), "delete": lambda: store.delete("a"), "put_all": lambda: store.put_all({})}[
            write
        ]()

    class Task(ps.StreamTask):
        def init(self, context: ps.TaskContext) -> None:
            self.store = context.store("planes")

        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            body(envelope, collector, self.store)

    app = ps.StreamApplication("side")
    app.store("planes", side_inputs=["m.planes"])
    app.input("m.in").process(Task, stores=["planes"]).send_to(app.output("m.out"))
    with pytest.raises(ps.UserCodeError, match="store `planes` is filled by its side inputs"):
        world.run(app)


def test_metrics_and_lag(tmp_path: Path) -> None:
    world = SideWorld(tmp_path, tasks=2)
    try:
        world.create("planes")
        world.create("carriers", 1)
        world.put("planes", 0, [("N1", 1), ("N1", 2)])
        world.put("carriers", 0, [("AA", 1)] * 3)
        app = ps.StreamApplication("side")
        app.store("planes", side_inputs=["m.planes"])
        app.store("carriers", side_inputs=["m.carriers"], broadcast=True)
        reading(app, "planes", "carriers")
        driver = world.started(app)
        found = driver.board.metrics.snapshot()
        assert [found.total("side-inputs-messages", f"store.{store}") for store in ("planes", "carriers")] == [2, 3]
        assert found.total("side-inputs-bootstrap-ns", "store.planes") == 2
        assert [(each.store, each.partition, each.lag) for each in side_inputs_in(found)] == [
            ("carriers", "m.carriers.0", 0),
            ("planes", "m.planes.0", 0),
            ("planes", "m.planes.1", 0),
        ]
    finally:
        world.close()


def test_updates_and_batches_keep_nothing(world: SideWorld) -> None:
    """Threads, open views, files and the memory of the engine are those of the beginning."""
    world.config["task.commit.ms"] = 20
    world.create("planes")
    driver = world.started(planes())
    process = psutil.Process()
    before: tuple[int, int] | None = None
    for number in range(90):
        world.put("planes", 0, [("N1", number)] * 3)
        world.put("in", 0, [("N1", number)])
        driver.loop.step()
        if number == 30:
            before = process.num_threads(), process.num_fds()
    after = process.num_threads(), process.num_fds()
    assert before is not None
    assert after[0] <= before[0] + 2
    assert after[1] <= before[1] + 10
    assert service(driver).open_views == 0, "views are released with the end of their batch"
    settle(driver)
    assert asked(world, driver, "N1") == [[89]]


def test_progress_is_of_all_stores_from_the_beginning(tmp_path: Path) -> None:
    world = SideWorld(tmp_path, tasks=2)
    try:
        world.create("planes")
        for partition in (0, 1):
            world.put("planes", partition, [("N1", number) for number in range(600)])
        shown: list[str] = []

        def look(message: ps.IncomingMessageEnvelope, store: Any) -> list[tuple[Any, Any]]:
            if message.offset == 550:
                least = 600 * len(shown) + 1
                wait_until(lambda: getattr(driver.board.wings.get("side"), "done", 0) >= least, "a look", 20)
                shown.append(str(driver.board.wings.get("side")))
            return [(message.key, message.value)]

        driver = world.driver(planes(processor=look))
        driver.loop.start()
        assert shown[0].startswith("512 of 1,200 messages")
        assert re.match(r"1,\d\d\d of 1,200 messages", shown[1])
        assert driver.board.wings.get("side") is None
    finally:
        world.close()


def test_an_attempt_of_an_earlier_run_that_is_late_takes_nothing_from_the_next(world: SideWorld) -> None:
    world.create("planes")
    world.put("planes", 0, [("N1", "Airbus")])
    side = service(world.started(planes()))
    first, again = replace(NO_BATCH, number=7, run=1), replace(NO_BATCH, number=7, run=2)
    view = side.views(0, again)["planes"]
    with pytest.raises(ContainerLostError, match="run 2 of batch 7 of task 0 has overtaken this one"):
        side.views(0, first)
    assert view.get(b"N1") == b'"Airbus"'
    side.release(0, 7)
    assert side.open_views == 0


def test_what_a_processor_gathers_while_it_works_does_not_make_it_another_one(
    world: SideWorld, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def gathers(message: Any, store: Any) -> list[tuple[Any, Any]]:
        seen.append(message.key)
        return [(message.key, message.value)]

    world.create("planes")
    world.put("planes", 0, [("N1", "Airbus"), ("N2", "Boeing")])
    driver = world.started(planes(processor=gathers))
    assert asked(world, driver, "N1") == [["Airbus"]]
    driver.loop.commit()
    driver.fleet.lose(0)
    driver.loop.step()
    assert asked(world, driver, "N2") == [["Boeing"]]
    assert seen == ["N1", "N2"], "it was not filled again"
    assert "is not continued" not in caplog.text


def published(world: SideWorld, stream: str, partitions: int, keys: list[str]) -> None:
    for key in keys:
        world.put(stream, partition_of(key.encode(), partitions), [(key, key)])


def keys_by_task(keys: list[str], tasks: int) -> list[set[bytes]]:
    return [{key.encode() for key in keys if partition_of(key.encode(), tasks) == task} for task in range(tasks)]


@pytest.mark.few(4)
@pytest.mark.parametrize(("tasks", "partitions"), [(4, 2), (2, 4), (3, 2), (4, 6), (3, 1), (1, 3)])
@pytest.mark.parametrize("copied", [True, False])
def test_a_task_has_its_own_keys_of_any_partitions(tmp_path: Path, tasks: int, partitions: int, copied: bool) -> None:
    world = SideWorld(tmp_path, tasks)
    world.create("planes", partitions)
    app = ps.StreamApplication("side")
    given: dict[str, Any] = {} if copied else {"processor": lambda message, store: [(message.key, message.value)]}
    app.store("planes", side_inputs=["m.planes"], **given)
    reading(app, "planes")
    keys = [f"N{number}" for number in range(40)]
    published(world, "planes", partitions, keys[:30])
    driver = world.started(app, containers=2)
    assert [set(content(driver, "planes", task)) for task in range(tasks)] == keys_by_task(keys[:30], tasks)
    published(world, "planes", partitions, keys[30:])
    settle(driver)
    assert [set(content(driver, "planes", task)) for task in range(tasks)] == keys_by_task(keys, tasks)
    world.close()


def test_keys_that_no_task_would_look_for_fail_the_job(tmp_path: Path) -> None:
    world = SideWorld(tmp_path, 4)
    world.create("planes", 2)
    app = ps.StreamApplication("side")
    app.store("planes", side_inputs=["m.planes"])
    reading(app, "planes")
    key = next(f"N{number}" for number in range(9) if partition_of(f"N{number}".encode(), 2) == 1)
    world.put("planes", 0, [(key, "Airbus")])
    with pytest.raises(ps.PenstockError, match=r"does not belong to partition 0 of the 2 of `m.planes`"):
        world.driver(app).loop.start()
    world.close()


@pytest.mark.parametrize("broadcast", [False, True])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_stream_of_another_partitioner_is_right_or_refused(tmp_path: Path, shuffled: bool, broadcast: bool) -> None:
    """As many partitions as tasks, and in both streams each key is in the other partition than murmur2 chooses."""
    world = SideWorld(tmp_path, 2)
    world.create("planes", 2)
    app = ps.StreamApplication("side")
    table = app.table("planes", side_inputs=["m.planes"], broadcast=broadcast)
    messages = app.input("m.in", key=ps.String())
    if shuffled:
        messages = messages.partition_by(lambda value: value, key=ps.String())
    messages.join_table(table, lambda key, plane: [key, plane]).send_to(app.output("m.out"))
    keys = [f"N{number}" for number in range(6)]
    for key in keys:
        other = 1 - partition_of(key.encode(), 2)
        world.put("planes", other, [(key, f"plane {key}")])
        world.put("in", other, [(key, key)])
    if shuffled and not broadcast:
        with pytest.raises(ps.PenstockError, match=r"of the 2 of `m.planes`.*`partition_by`: a join would not find"):
            world.run(app)
    else:
        assert sorted(world.run(app)) == [[key, f"plane {key}"] for key in keys]
    world.close()


def test_another_number_of_tasks_fills_the_store_again(tmp_path: Path) -> None:
    """A start that dies before its first checkpoint leaves a filled store. Every task reads the one partition, before
    and after: the positions alone would not tell."""
    world = SideWorld(tmp_path, 1)
    world.create("planes", 1)
    keys = [f"N{number}" for number in range(20)]
    published(world, "planes", 1, keys)
    app = ps.StreamApplication("side")
    app.store("planes", side_inputs=["m.planes"])
    by_key = app.input("m.in").partition_by(str)
    by_key.process(Nothing, stores=["planes"], id="read").send_to(app.output("m.out"))

    def dies(step: str) -> None:
        if step == "snapshot":
            raise KeyboardInterrupt

    world.config["job.intermediate.stream.partitions"] = 2
    driver = world.driver(app)
    driver.fleet.at = dies
    with pytest.raises(KeyboardInterrupt):
        driver.loop.start()
    driver.close()
    world.config["job.intermediate.stream.partitions"] = 3
    driver = world.started(app)
    assert [set(content(driver, "planes", task)) for task in range(3)] == keys_by_task(keys, 3)
    world.close()


class Nothing(ps.StreamTask):
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        """Drop the message."""
