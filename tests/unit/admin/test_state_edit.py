"""Changes of single entries: what they change and what they leave alone, in each backend, and when a process dies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock import admin
from penstock.config import load_config
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.objects.file import FileObjectStore
from penstock.objects.open import open_job_root
from penstock.testing.in_process import InProcessDriver
from tests.support.jobs.example_job import publish
from tests.support.tools.cli import call, own_home

BACKENDS: dict[str, dict[str, object]] = {
    "files": {"stores.backup.factories": "changelog-files"},
    "root": {"stores.backup.factories": "blob"},
    "signed": {"stores.backup.factories": "blob", "job.root.key": "the key of this root, 32 characters or more"},
    "stream": {"stores.backup.factories": "changelog-stream", "stores.restore.factories": "changelog-stream"},
    "dual": {"stores.backup.factories": "changelog-stream,blob", "stores.restore.factories": "blob"},
}
QUICK = ("files", "dual")
ALL = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in BACKENDS]
TRIPS = [(f"N{number}", number) for number in range(20)]


class Miles(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        self.miles, self.legs = context.store("miles"), context.store("legs")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.miles[envelope.key] = self.miles.get(envelope.key, 0) + envelope.value
        self.legs[envelope.key] = self.legs.get(envelope.key, 0) + 1


def flights(**store: Any) -> ps.TaskApplication:
    app = ps.TaskApplication("flights", Miles)
    app.store("miles", **store)
    app.store("legs")
    app.input("local.trips")
    return app


class World:
    """A job that has stopped behind its first trips."""

    def __init__(self, backend: str) -> None:
        self.config: dict[str, Any] = {"task.commit.ms": 0, "task.checkpoint.retained": 3, **BACKENDS[backend]}
        if backend == "root":
            self.config["state.backends.blob.root"] = os.environ["PENSTOCK_HOME"] + "/blobs"
        admin.create_stream(admin.open_stream("trips"), 2)
        publish(TRIPS)

    def run(self, name: str = "flights", app: Any = None, from_checkpoint: str | None = None, **keys: object) -> None:
        config = load_config(overrides={**self.config, "job.name": name, **keys})
        with closing(open_job_root(config.job)) as objects:
            driver = InProcessDriver(
                (app or flights()).graph(),
                config,
                objects,
                {},
                containers=1,
                until_latest=True,
                from_checkpoint=from_checkpoint,
            )
            with closing(driver):
                driver.loop.run()

    def open(self, name: str = "flights") -> Any:
        return admin.open_job(name, overrides=self.config)

    def edit(self, name: str = "flights", store: str = "miles", **change: Any) -> admin.EditFacts:
        with self.open(name) as job, admin.plan_edit(job, store, **change) as planned:
            return admin.edit_state(planned)

    def content(
        self, store: str = "miles", name: str = "flights", version: str = "latest"
    ) -> dict[str, tuple[int, int]]:
        """Key → value and task."""
        with self.open(name) as job, admin.open_state(job, store, version) as opened:
            return {each.key: (each.value, each.task) for each in opened.scan()}

    def positions(self) -> list[Any]:
        with self.open() as job:
            return [each.next_offsets for each in admin.read_checkpoint(job).tasks]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return own_home(tmp_path, monkeypatch)


@pytest.fixture
def made(home: Path) -> Iterator[Any]:
    def make(backend: str = "files") -> World:
        world = World(backend)
        world.run()
        return world

    return make  # type: ignore[return-value]


@pytest.mark.parametrize("backend", ALL)
def test_an_edit_changes_its_entries_and_nothing_else(backend: str, made: Any) -> None:
    world = made(backend)
    before, legs, positions = world.content(), world.content("legs"), world.positions()
    done = world.edit(sets={"N3": "300", "N99": "9"}, deletes=["N7"])
    owner = world.content()["N99"][1]
    wanted = before | {"N3": (300, before["N3"][1]), "N99": (9, owner)}
    del wanted["N7"]
    assert (world.content(), world.content("legs"), world.positions()) == (wanted, legs, positions)
    assert done.changed == 3
    assert world.content(version=done.undo) == before
    with world.open() as job:
        assert admin.verify(job).agrees
    publish([("N3", 1), ("N7", 5), ("N99", 1), ("N5", 1)])
    world.run()
    found = {key: value for key, (value, _) in world.content().items()}
    assert found == {key: value for key, (value, _) in wanted.items()} | {"N3": 301, "N7": 5, "N99": 10, "N5": 6}


def test_a_start_from_the_label_undoes_an_edit(made: Any) -> None:
    world = made()
    before = world.content()
    done = world.edit(sets={"N3": "300"})
    world.run(from_checkpoint=done.undo)
    assert world.content() == before


def test_a_function_sees_each_entry_once(made: Any) -> None:
    world = made()
    before = {key: value for key, (value, _) in world.content().items()}
    seen = []

    def odd_ones_go(key: str, value: int) -> int | None:
        seen.append(key)
        return None if value % 2 else value * 10

    world.edit(sets={"N99": "8"}, deletes=["N2"], function=odd_ones_go)
    assert sorted(seen) == sorted((before.keys() - {"N2"}) | {"N99"})
    wanted = {key: value * 10 for key, value in (before | {"N99": 8}).items() if key != "N2" and not value % 2}
    assert {key: value for key, (value, _) in world.content().items()} == wanted


def test_what_would_change_nothing_writes_nothing(made: Any) -> None:
    world = made()
    with world.open() as job:
        before = admin.checkpoints(job)
        done = world.edit(sets={"N3": "3"}, function=lambda _, value: value)
        assert (done.checkpoint, done.undo, done.changed) == (None, None, 0)
        assert admin.checkpoints(job) == before


def test_a_function_that_returns_the_value_changes_nothing(home: Path) -> None:
    """A job may have written the same value with other bytes, such as the fields of an object in another order."""

    class Objects(ps.StreamTask):
        def init(self, context: ps.TaskContext) -> None:
            self.miles = context.store("miles")

        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            self.miles[envelope.key] = {"z": envelope.value, "a": [1, {"c": 1, "b": 2}]}

    app = ps.TaskApplication("flights", Objects)
    app.store("miles")
    app.input("local.trips")
    world = World("files")
    world.run(app=app)
    with world.open() as job, admin.plan_edit(job, "miles", function=lambda _, value: dict(value)) as planned:
        assert not planned.changes
    done = world.edit(function=lambda key, value: value | {"z": True} if key == "N1" else value)
    assert done.changed == 1, "True is another value than 1"


def test_a_key_that_several_tasks_have_is_changed_in_all_of_them(home: Path) -> None:
    """The keys of a store need not be those that messages are partitioned by."""

    class Totals(ps.StreamTask):
        def init(self, context: ps.TaskContext) -> None:
            self.miles = context.store("miles")

        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            self.miles["all"] = self.miles.get("all", 0) + envelope.value

    app = ps.TaskApplication("flights", Totals)
    app.store("miles")
    app.input("local.trips")
    world = World("files")
    world.run(app=app)

    def entries() -> list[tuple[int, int]]:
        with world.open() as job, admin.open_state(job, "miles") as opened:
            return [(each.task, each.value) for each in opened.scan()]

    assert [task for task, _ in entries()] == [0, 1]
    assert world.edit(sets={"all": "7"}).changed == 2
    assert entries() == [(0, 7), (1, 7)]
    world.edit(sets={"all": "9"}, task=1)
    assert entries() == [(0, 7), (1, 9)]
    assert world.edit(deletes=["all"]).changed == 2
    assert entries() == []


def test_a_fork_is_edited_while_its_parent_keeps_its_state(made: Any) -> None:
    world = made("dual")
    before = world.content()
    with world.open() as job:
        admin.fork(job, "what-if")
    world.edit("what-if", sets={"N3": "300"})
    assert world.content() == before
    publish([("N3", 1)])
    world.run("what-if")
    assert world.content(name="what-if")["N3"][0] == 301


def test_entries_that_expire_are_deleted_and_not_set(home: Path) -> None:
    world = World("files")
    world.run(app=flights(ttl_ms="1h"))
    world.edit(deletes=["N3"])
    assert set(world.content()) == {plane for plane, _ in TRIPS} - {"N3"}
    with pytest.raises(IncompatibleError, match="expire"):
        world.edit(sets={"N4": "5"})
    publish([("N3", 1)])
    world.run(app=flights(ttl_ms="1h"))
    assert world.content()["N3"][0] == 1


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"sets": {"N3": "three"}}, ConfigError, "`three` is not a value of the serde"),
        ({"deletes": ["N98"]}, NotFoundError, "no key `N98`"),
        ({"store": "wrong", "deletes": ["N1"]}, NotFoundError, "no store `wrong`"),
        ({"function": lambda key, value: 1 / 0}, ConfigError, "ZeroDivisionError"),
        ({"function": lambda key, value: object()}, ConfigError, "cannot be stored"),
        ({"sets": {"N3": "3"}, "task": 7}, ConfigError, "no task 7"),
        ({"sets": {"N3": "4"}, "deletes": ["N3"]}, ConfigError, "`N3` is both set and deleted"),
    ],
)
def test_a_plan_that_is_refused(change: dict[str, Any], error: type[Exception], said: str, made: Any) -> None:
    world = made()
    before = world.content()
    with pytest.raises(error, match=said):
        world.edit(**change)
    assert world.content() == before


def test_stores_of_operators_are_refused(home: Path) -> None:
    world = World("files")
    app = ps.StreamApplication("flights")
    app.input("local.trips").aggregate({"miles": ps.Sum(lambda miles: miles)}, id="sums").send_to(
        app.output("local.out")
    )
    world.run(app=app)
    with pytest.raises(IncompatibleError, match=r"`sums\.aggregate` is of an operator"):
        world.edit(store="sums.aggregate", deletes=["N1"])


def test_a_running_job_is_refused_and_so_is_a_plan_that_is_late(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = made()
    with world.open() as job, admin.plan_edit(job, "miles", sets={"N3": "300"}) as planned:
        publish([("N3", 1)])
        world.run()
        with pytest.raises(IncompatibleError, match="another process wrote a checkpoint"):
            admin.edit_state(planned)
    assert world.content()["N3"][0] == 4


class DiesError(BaseException):
    """The process ends here."""


def test_a_process_that_dies_at_any_write_has_changed_all_or_nothing(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = made()
    before = world.content()
    wanted = before | {"N3": (300, before["N3"][1])}
    put, deaths = FileObjectStore.put_if_absent, 0
    while world.content() == before:
        left = [deaths]

        def dying(self: Any, key: str, data: bytes, left: list[int] = left) -> bool:
            if not left[0]:
                raise DiesError
            left[0] -= 1
            return put(self, key, data)

        with monkeypatch.context() as patch, suppress(DiesError):
            patch.setattr(FileObjectStore, "put_if_absent", dying)
            world.edit(sets={"N3": "300"})
        deaths += 1
    assert world.content() == wanted
    assert deaths > 3
    publish([("N3", 1)])
    world.run()
    assert world.content()["N3"][0] == 301


def test_the_command(made: Any) -> None:
    made()
    options = ("-c", "stores.backup.factories=changelog-files")
    shown = call("state", "edit", "flights", "miles", "--set", "N3=300", "--delete", "N7", "--dry-run", *options)[0]
    assert "2 entries would change" in shown
    assert "(deleted)" in shown
    assert call("state", "get", "flights", "miles", "N3", *options)[0].strip() == "3"
    said = call("state", "edit", "flights", "miles", "--set", "N3=300", "--delete", "N7", "--yes", *options)[1]
    assert "2 entries changed" in said
    assert "--from before-edit-" in said
    assert call("state", "get", "flights", "miles", "N3", *options)[0].strip() == "300"
    Path("mend.py").write_text("def double(key, value):\n    return value * 2\n", "utf-8")
    call("state", "edit", "flights", "miles", "--apply", "mend.py:double", "--yes", *options)
    assert call("state", "get", "flights", "miles", "N3", *options)[0].strip() == "600"
    assert "state edit" in call("job", "audit", "flights")[0]
    for wrong in ((), ("--set", "N3"), ("--set", "=3")):
        call("state", "edit", "flights", "miles", *wrong, "--yes", status=2)


def test_a_run_that_sends_nothing_yet_sends_nothing_after_an_edit(home: Path) -> None:
    """It is quiet up to its old positions, and the edit moves none."""

    class Sends(Miles):
        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            super().process(envelope, collector, coordinator)
            collector.send("local.totals", key=envelope.key, value=self.miles[envelope.key])

    app = ps.TaskApplication("flights", Sends)
    app.store("miles")
    app.store("legs")
    app.input("local.trips")
    app.output("local.totals")
    world = World("files")
    world.run(app=app)

    def sent() -> int:
        looks = admin.open_stream("totals").system.admin()
        return sum(ends.upcoming for ends in looks.offsets("totals").values())

    assert sent() == len(TRIPS)
    with world.open() as job:
        oldest = ps.StartpointOldest()
        admin.set_startpoint(job, "local.trips", oldest, with_state="clear", with_output="after")
    config = load_config(overrides={**world.config, "job.name": "flights", "job.batch.max.messages": 7})
    with (
        closing(open_job_root(config.job)) as objects,
        closing(InProcessDriver(app.graph(), config, objects, {}, containers=1)) as driver,
    ):
        driver.loop.start()
        driver.loop.step()
        driver.loop.finish()
    world.edit(sets={"N99": "9"})
    world.run(app=app)
    assert sent() == len(TRIPS)
    assert {key: value for key, (value, _) in world.content().items()} == dict(TRIPS) | {"N99": 9}
