"""Starts whose exactly-once output, or whose job folder, is not as the last run left it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.config.load import load_config
from penstock.errors import IncompatibleError, RetryableError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.outbox.driver import outbox_garbage
from penstock.outbox.wing import OUTBOX, owed_of
from penstock.system.base import OffsetRange, System, SystemAdmin
from penstock.system.memory import MemoryAdmin
from penstock.system.registry import open_system
from penstock.testing.in_process import InProcessDriver
from tests.support.tools.fixtures import fixture_of
from tests.support.world.once_world import PATHS, OnceWorld
from tests.support.world.sums_job import TASKS, drain, drain_and_commit

world = fixture_of(OnceWorld)


def contents(world: OnceWorld) -> dict[str, bytes]:
    """Everything under `job.root`."""
    return {key: world.objects.get(key) for key in world.objects.list("")}


def restore(world: OnceWorld, backup: dict[str, bytes]) -> None:
    """Everything under `job.root` is again as it was."""
    for key in world.objects.list(""):
        world.objects.delete(key)
    for key, data in backup.items():
        world.objects.put_if_absent(key, data)


def refused(world: OnceWorld, backup: dict[str, bytes], output: Callable[[], object] | None = None) -> None:
    """A start behind a restored backup ends, leaves everything as it is, and goes on with the newer folder."""
    output = output or world.output
    newer, before = contents(world), output()
    restore(world, backup)
    for _ in range(3):  # a supervisor starts it again and again
        with pytest.raises(IncompatibleError, match=r"older than its output.*Nothing was started"):
            world.next()
    assert (contents(world), output()) == (backup, before)
    restore(world, newer)
    run_on(driver := world.next())
    world.kill(driver)
    assert output() == before


def output_system(kind: str, folder: Path) -> tuple[System, dict[str, object]]:
    """A system `out`, and what the configuration says of it."""
    options = {
        "memory": {},
        "local": {"path": str(folder / "out")},
        "files": {"folder": str(folder / "out"), "listing": str(folder / "jobs"), "schema": "n BIGINT"},
    }[kind]
    keys: dict[str, object] = {f"systems.out.{key}": value for key, value in options.items()}
    keys["systems.out.samza.factory"] = kind
    return open_system(load_config(overrides={"job.name": "x", "job.root": "memory://x", **keys}).system("out")), keys


class NoZeros(ps.StreamTask):
    """Sends on all numbers but 0, and adds up all of them."""

    def init(self, context: Any) -> None:
        self.store = context.store("sums")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.store.put(envelope.key, (self.store.get(envelope.key) or 0) + envelope.value)
        if envelope.value:
            collector.emit(key=envelope.key, value={"n": envelope.value})


def job_without_zeros() -> ps.StreamApplication:
    """Sends to `out.sums`."""
    app = ps.StreamApplication("sums")
    app.store("sums", key=ps.String(), value=ps.Integer())
    source = app.input("m.events", key=ps.String(), value=ps.Integer())
    output = app.output("out.sums", key=ps.String(), value=ps.Json())
    source.process(NoZeros, stores=["sums"], id="sum").send_to(output)
    return app


def sent(system: System) -> list[bytes]:
    """Everything in `out.sums`."""
    with closing(system.admin()) as admin, closing(system.reader()) as reader:
        return [
            message[3] or b""
            for partition, ends in sorted(admin.offsets("sums").items())
            for chunk in reader.read(
                OffsetRange(ps.SystemStreamPartition("out", "sums", partition), ends.oldest, ends.upcoming), 100
            )
            for message in chunk
        ]


def run(world: OnceWorld, *commits: int) -> None:
    """A run with a commit behind each of these values."""
    driver = world.next()
    driver.loop.start()
    commit(world, driver, *commits)
    driver.loop.finish()
    world.kill(driver)


def commit(world: OnceWorld, driver: InProcessDriver, *values: int) -> None:
    """A commit behind each of these values."""
    for value in values:
        world.put(value)
        drain_and_commit(driver)


def test_nothing_is_taken_for_published(world: OnceWorld) -> None:
    """Its records have slots that the output knows already: their messages would be left out."""
    run(world, 1, 2, 3)
    backup = contents(world)
    run(world, 4, 5, 6, 7, 8, 9)
    refused(world, backup)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["memory", "local", "files"])
def test_the_last_record_of_the_backup_left_no_output(tmp_path: Path, kind: str) -> None:
    """Nothing is to be published at the start, and all its records would have slots that are new to the output."""
    world = OnceWorld(tmp_path)
    other, more = output_system(kind, tmp_path)
    world.systems |= {"out": other}
    world.keys = more | {"systems.m.samza.factory": "memory", "streams.out.sums.output.guarantee": "exactly-once"}
    world.app = job_without_zeros()
    try:
        driver = world.next()
        driver.loop.start()
        commit(world, driver, 1, 2, 0)
        assert not owed_of(world.log).messages
        backup = contents(world)
        commit(world, driver, 3)  # under the slot that the next start would claim
        world.kill(driver)
        refused(world, backup, lambda: sent(other))
        assert sorted(sent(other)) == [b'{"n":%d}' % value for value in (1, 2, 3)]
    finally:
        world.close()


def test_a_record_of_another_driver_meanwhile_is_no_older_log(
    world: OnceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the log by then, and the claim finds it."""
    run(world, 1, 2)
    slow = world.next()
    slow.loop.start()
    world.put(3)
    drain(slow)
    kind = type(world.system.admin())
    asked = kind.progress_of

    def after_a_commit(self: MemoryAdmin, name: str, ssps: Iterable[ps.SystemStreamPartition]) -> object:
        monkeypatch.undo()
        slow.loop.commit()
        slow.loop.finish()
        return asked(self, name, ssps)

    monkeypatch.setattr(kind, "progress_of", after_a_commit)
    with pytest.raises(RetryableError, match="another driver wrote a checkpoint while this one started"):
        world.next()
    world.kill(slow)
    world.finish()


def test_an_output_that_does_not_exist_yet_has_no_messages(world: OnceWorld) -> None:
    world.system.admin().delete_stream("sums")
    run(world, 1, 2, 3)
    world.finish()


def test_a_system_that_does_not_say_it_is_named(
    world: OnceWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(type(world.system.admin()), "progress_of", SystemAdmin.progress_of)
    run(world, 1)
    assert "`m` was not asked how far its outputs are published" in caplog.text
    world.finish()


def test_a_damaged_record_may_have_been_published(world: OnceWorld) -> None:
    """A start that names an older checkpoint goes on, and sends again what it processes again."""
    world.put(1)
    driver = world.next()
    driver.loop.start()
    for values in (range(2, 7), range(7, 12)):  # of all keys
        drain_and_commit(driver)
        world.put(*values)
    origin = world.log.latest
    assert origin is not None
    assert origin.section(OUTBOX).objects
    drain_and_commit(driver)
    world.kill(driver)
    last = PATHS.checkpoint(world.log.end - 1)
    world.store.replace(last, world.objects.get(last)[:-5])
    driver = world.next(from_checkpoint=str(origin.id))
    run_on(driver)
    world.check(driver, exactly_once=False)
    assert len(world.output()) == 16  # the last five messages twice
    world.kill(driver)
    run(world, 12, 13)
    assert len(world.output()) == 18


def run_on(driver: InProcessDriver) -> None:
    """To the end of the input."""
    driver.loop.start()
    drain(driver)
    driver.loop.finish()


def run_to_the_end(world: OnceWorld, *numbers: int) -> None:
    """A run_to_the_end that ends well, with the output of these numbers in one commit."""
    world.put(*numbers)
    driver = world.next()
    driver.loop.start()
    drain(driver)
    driver.loop.finish()
    world.kill(driver)


def test_a_new_stream_gets_the_last_commit_and_what_follows(world: OnceWorld, caplog: pytest.LogCaptureFixture) -> None:
    run_to_the_end(world, 1, 2)
    run_to_the_end(world, 3, 4)
    before = len(world.output())
    with closing(world.system.admin()) as admin:
        admin.delete_stream("sums")
        admin.create_stream("sums", TASKS)
    run_to_the_end(world)
    assert "the output `m.sums` was deleted and created again since the last checkpoint" in caplog.text
    published = len(world.output())
    assert 0 < published < before, "what the last record has, and nothing of earlier ones"
    run_to_the_end(world, 5, 6)
    found = Counter(world.output())
    assert max(found.values()) == 1, "each message is in the stream once"
    assert len(world.output()) == published + 2
    assert caplog.text.count("was deleted and created again") == 1


OTHERS = JobPaths("a", "1")


def test_objects_of_the_present_epoch_may_be_of_a_commit_in_flight(tmp_path: Path) -> None:
    objects = open_store(str(tmp_path / "root"))
    names = ["3-5-0-0-0", "3-6-0-0-0", "4-7-0-0-0", "4-8-0-0-0", "5-9-0-0-0", "left-by-hand"]
    for name in names:
        objects.put_if_absent(OTHERS.outbox(name), b"")
    assert outbox_garbage(objects, OTHERS, 4, frozenset({"3-6-0-0-0", "4-8-0-0-0"})) == [OTHERS.outbox("3-5-0-0-0")]
    objects.close()
