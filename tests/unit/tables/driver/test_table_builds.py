"""From a source to a published version, in one process: what is built when, what is refused, and what a driver that is
killed at any step leaves."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.api.side_inputs import TableCandidate
from penstock.base.retry import SYSTEM_CLOCK, Retry
from penstock.config.load import load_config
from penstock.errors import ConfigError, FencedError, RetryableError
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from penstock.objects.store import ObjectStore
from penstock.system.memory import MemorySystem
from penstock.tables.build import BuildRequest
from penstock.tables.manifest import PublishedVersion, TableFile, fingerprint_of
from penstock.tables.registry import TableRegistry, refusal_of
from penstock.tables.table_builds import NOT_LOOKED, TableBuild, TableBuilds
from penstock.testing.faulty_store import FaultyStore, ForwardingStore
from penstock.testing.in_process import InProcessDriver
from penstock.testing.runner.sides import ArrowTableBuilder
from tests.support.processes.containers import wait_until

PATHS = JobPaths("flights", "1")
TASKS = 2


class Ignore(ps.StreamTask):
    """Does nothing."""

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        pass


def push(folder: Path, rows: dict[str, int], *, complete: bool = True) -> Path:
    """A version with a key and a year in each row, in two files."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"tail": list(rows), "year": list(rows.values())})
    pq.write_table(table.slice(0, 1), folder / "part-0.parquet")
    pq.write_table(table.slice(1), folder / "part-1.parquet")
    if complete:
        (folder / "_SUCCESS").touch()
    return folder


def planes(folder: Path, check: Callable[[TableCandidate], object] | None = None) -> ps.StreamApplication:
    app = ps.StreamApplication("flights")
    app.store("planes", pushed=ps.PushedTable(str(folder), key="tail", value="year", check=check))
    app.input("local.trips").process(Ignore, stores=["planes"])
    return app


@dataclass
class Driver:
    """The building half of one driver."""

    objects: ObjectStore
    folder: Path
    epoch: int = 1
    check: Callable[[TableCandidate], object] | None = None
    needed: Callable[[str], Collection[int]] = lambda _: ()
    check_owner: Callable[[], None] = lambda: None
    retained: int = 3
    builder: ArrowTableBuilder | None = None
    published: list[PublishedVersion] = field(default_factory=list)

    def __post_init__(self) -> None:
        spec = next(each for each in planes(self.folder, self.check).graph().stores)
        self.builder = self.builder or ArrowTableBuilder(self.objects, PATHS, file_bytes=1)
        self.registry = TableRegistry(self.objects, PATHS, "planes")
        self.table = TableBuild(
            spec,
            TASKS,
            self.epoch,
            self.registry,
            refusal_of(self.objects, PATHS, "planes"),
            self.builder,
            self.retained,
            self.needed,
            self.check_owner,
            lambda _, published: self.published.append(published),
            SYSTEM_CLOCK,
        )

    def look(self) -> PublishedVersion:
        self.table.look()
        return self.published[-1]

    def content(self) -> dict[str, int]:
        """The content of the version to use, by its first and last keys: each file has one or two rows."""
        manifest = self.published[-1].manifest
        assert manifest is not None
        keys = {key.decode() for file in manifest.files for key in (file.first, file.last)}
        assert sum(file.rows for file in manifest.files) == manifest.rows
        return dict.fromkeys(sorted(keys), manifest.rows)


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return FileObjectStore(tmp_path / "root")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "planes"


def files_of(objects: ObjectStore) -> set[str]:
    return set(objects.list(f"{PATHS.tables}/planes/builds"))


def named_files(registry: TableRegistry) -> set[str]:
    return {registry.file_key(each, file) for each in registry.versions().manifests for file in each.files}


def test_versions_are_built_once_as_they_come(objects: ObjectStore, folder: Path) -> None:
    driver = Driver(objects, folder)
    assert "has no complete version" in driver.look().note
    push(folder / "v1", {"N1": 2001, "N2": 2002, "N3": 2003})
    first = driver.look()
    assert first.manifest is not None
    assert (first.manifest.version, first.manifest.rows, first.note) == (1, 3, "")
    assert driver.content() == dict.fromkeys(["N1", "N2", "N3"], 3)
    assert driver.look().manifest == first.manifest
    push(folder / "v2", {"N1": 2001, "N4": 2004}, complete=False)
    assert driver.look().manifest == first.manifest
    (folder / "v2" / "_SUCCESS").touch()
    second = driver.look().manifest
    assert second is not None
    assert (second.version, second.rows) == (2, 2)
    restarted = Driver(objects, folder, epoch=2).look().manifest
    assert restarted == second
    assert driver.registry.versions().numbers == (1, 2)


def test_an_older_content_that_is_pushed_again_is_a_new_version(objects: ObjectStore, folder: Path) -> None:
    push(folder, {"N1": 1, "N2": 2}, complete=False)
    manifest = folder / "_manifest.json"
    driver = Driver(objects, folder)
    for number, files in enumerate((["part-0.parquet"], ["part-1.parquet"], ["part-0.parquet"]), 1):
        manifest.write_text(json.dumps({"files": files, "rows": 1}))
        found = driver.look().manifest
        assert found is not None
        assert found.version == number


def test_another_way_to_read_a_source_makes_another_version(objects: ObjectStore, folder: Path) -> None:
    push(folder / "v1", {"N1": 2001, "N2": 2002})
    driver = Driver(objects, folder)
    driver.look()
    assert isinstance(driver.table.spec.side, ps.PushedTable)
    driver.table.spec = replace(
        driver.table.spec, side=replace(driver.table.spec.side, options={"mergeSchema": "true"})
    )
    again = driver.look().manifest
    assert again is not None
    assert again.version == 2
    assert driver.registry.choose(fingerprint_of(driver.table.spec, TASKS)).version == again


def test_the_pinned_version_is_used_until_it_is_not(objects: ObjectStore, folder: Path) -> None:
    driver = Driver(objects, folder)
    push(folder / "v1", {"N1": 1})
    driver.look()
    push(folder / "v2", {"N1": 2})
    driver.look()
    driver.registry.pin(1, "somebody")
    pinned = driver.look()
    assert pinned.manifest is not None
    assert (pinned.manifest.version, pinned.pinned) == (1, True)
    push(folder / "v3", {"N1": 3})
    assert driver.look().manifest == pinned.manifest
    assert driver.registry.versions().numbers == (1, 2, 3)
    driver.registry.pin(None)
    newest = driver.look()
    assert newest.manifest is not None
    assert (newest.manifest.version, newest.pinned) == (3, False)


def test_old_versions_go_but_not_those_in_use(objects: ObjectStore, folder: Path) -> None:
    driver = Driver(objects, folder, needed=lambda table: {"planes": (1,)}[table], retained=2)
    for number in range(5):
        push(folder / f"v{number}", {"N1": number})
        driver.look()
    assert driver.registry.versions().numbers == (1, 4, 5)
    assert files_of(objects) == named_files(driver.registry)


def test_a_push_without_half_of_its_files_is_refused_until_they_come(
    objects: ObjectStore, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    push(folder / "v1", {"N1": 1, "N2": 2})
    driver = Driver(objects, folder)
    first = driver.look().manifest
    push(folder / "v2", {"N1": 2, "N2": 3}, complete=False)
    kept = (folder / "v2" / "part-1.parquet").read_bytes()
    (folder / "v2" / "part-1.parquet").unlink()
    (folder / "v2" / "_manifest.json").write_text('{"files": ["part-0.parquet", "part-1.parquet"], "rows": 2}')
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            refused = driver.look()
    assert refused.manifest == first
    assert "1 file of 2 that" in refused.note
    assert "`part-1.parquet`" in refused.note
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "(version 1 stays)" in caplog.text
    shown = driver.table.refusal.get()
    assert shown is not None
    assert "`part-1.parquet`" in shown.reason
    (folder / "v2" / "part-1.parquet").write_bytes(kept)
    second = driver.look()
    assert second.manifest is not None
    assert (second.manifest.version, second.note, driver.table.refusal.get()) == (2, "", None)


@pytest.mark.parametrize(
    ("rows", "check", "reason"),
    [
        (3, None, "its manifest says 3 rows, and its files have 2"),
        (2, lambda version: version.rows > 2, "its check returned False, with 2 rows"),
        (2, lambda version: 1 / 0, "its check failed: ZeroDivisionError"),
    ],
)
def test_what_was_built_is_checked(
    objects: ObjectStore, folder: Path, rows: int, check: Callable[[Any], object] | None, reason: str
) -> None:
    push(folder, {"N1": 1, "N2": 2}, complete=False)
    (folder / "_manifest.json").write_text(json.dumps({"files": ["part-0.parquet", "part-1.parquet"], "rows": rows}))
    driver = Driver(objects, folder, check=check)
    refused = driver.look()
    assert refused.manifest is None
    assert reason in refused.note
    builds = len({key.split("/")[-2] for key in files_of(objects)})
    assert builds <= 1
    driver.look()
    assert files_of(objects) == set()  # collected, and not built again
    assert driver.look().note == refused.note


def test_the_check_sees_the_version_before(objects: ObjectStore, folder: Path) -> None:
    seen: list[TableCandidate] = []
    driver = Driver(objects, folder, check=seen.append)
    push(folder / "v1", {"N1": 1})
    driver.look()
    push(folder / "v2", {"N1": 1, "N2": 2, "N3": 3})
    driver.look()
    assert [(each.table, each.rows, each.previous_rows) for each in seen] == [("planes", 1, None), ("planes", 3, 1)]
    assert seen[1].source.endswith("planes/v2")


class Builder(ArrowTableBuilder):
    """Does something else before each build."""

    before: Callable[[], None] = staticmethod(lambda: None)

    def build(self, request: BuildRequest) -> tuple[TableFile, ...]:
        self.before()
        return super().build(request)


def test_a_source_that_changes_while_it_is_read_is_read_again(objects: ObjectStore, folder: Path) -> None:
    push(folder, {"N1": 1, "N2": 2})
    builder = Builder(objects, PATHS)
    changes = iter([{"N1": 7, "N2": 8, "N3": 9}])

    def change() -> None:
        for rows in changes:
            push(folder, rows)

    builder.before = change
    driver = Driver(objects, folder, builder=builder)
    assert driver.look().manifest is None
    found = driver.look().manifest
    assert found is not None
    assert (found.version, found.rows) == (1, 3)
    driver.look()
    assert files_of(objects) == named_files(driver.registry)


def test_a_version_that_comes_while_the_one_before_is_read_is_what_the_log_names(
    objects: ObjectStore, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    push(folder / "v1", {"N1": 1})
    builder = Builder(objects, PATHS)
    later = iter([folder / "v2"])

    def push_once() -> None:
        for version in later:
            push(version, {"N1": 2})

    builder.before = push_once
    driver = Driver(objects, folder, builder=builder)
    assert driver.look().manifest is None
    assert "changed while it was read" not in caplog.text
    assert re.search(r"of `\S*v1` is not published, because the newest version is another one now", caplog.text)
    found = driver.look().manifest
    assert found is not None
    assert found.source.endswith("v2")


def test_what_may_pass_is_tried_again_but_not_forever(objects: ObjectStore, folder: Path) -> None:
    push(folder, {"N1": 1})
    builder = Builder(objects, PATHS)

    def fail() -> None:
        raise RetryableError("an executor was lost")

    builder.before = fail
    driver = Driver(objects, folder, builder=builder)
    notes = [driver.look().note for _ in range(4)]
    assert notes[:2] == ["", ""]
    assert "it failed 3 times, the last time with: an executor was lost" in notes[2]
    assert notes[3] == notes[2]
    builder.before = lambda: None
    assert driver.look().manifest is None  # refused until the source changes
    push(folder, {"N1": 2})
    assert driver.look().manifest is not None


def test_two_versions_that_are_pushed_at_once(objects: ObjectStore, folder: Path) -> None:
    push(folder / "v1", {"N1": 1})
    push(folder / "v2", {"N1": 1, "N2": 2})
    driver = Driver(objects, folder)
    found = driver.look().manifest
    assert found is not None
    assert found.source_version.startswith("v2 ")
    assert driver.registry.versions().numbers == (1,)


class Killed(BaseException):
    """The process of the driver ends."""


class DyingStore(ForwardingStore):
    """Its process is killed before or after write number `last`."""

    def __init__(self, inner: ObjectStore, last: int, *, after: bool) -> None:
        super().__init__(inner)
        self.left, self.after, self.dead = last, after, False

    def _write(self, call: Callable[[], Any]) -> Any:
        if self.dead:
            raise Killed
        self.left -= 1
        self.dead = self.left < 0
        if self.dead and not self.after:
            raise Killed
        result = call()
        if self.dead:
            raise Killed
        return result

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return bool(self._write(lambda: self._inner.put_if_absent(key, data)))

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        return bool(self._write(lambda: self._inner.put_if_match(key, data, tag)))

    def delete(self, key: str) -> None:
        self._write(lambda: self._inner.delete(key))

    def delete_durably(self, key: str) -> None:
        self._write(lambda: self._inner.delete_durably(key))


@pytest.mark.parametrize("after", [False, True])
def test_a_driver_that_is_killed_at_any_step_leaves_the_old_version_or_the_new_one(tmp_path: Path, after: bool) -> None:
    folder = tmp_path / "planes"
    push(folder / "v1", {"N1": 1, "N2": 2, "N3": 3})
    push(folder / "v2", {"N1": 1, "N4": 4})
    ended = False
    for step in range(40):
        objects = FileObjectStore(tmp_path / f"root-{step}")
        (folder / "v1" / "_SUCCESS").touch()
        before = Driver(objects, folder, retained=1)
        before.look()
        (folder / "v2" / "_SUCCESS").touch()
        try:
            Driver(DyingStore(objects, step, after=after), folder, epoch=2, retained=1).look()
            ended = True
        except Killed:
            pass
        left = before.registry.versions().numbers
        assert left in ((1,), (1, 2), (2,))
        for manifest in before.registry.versions().manifests:  # what is visible is whole
            sizes = objects.sizes(f"{PATHS.tables}/planes/builds")
            keys = [before.registry.file_key(manifest, file) for file in manifest.files]
            assert [sizes[key] for key in keys] == [file.size_bytes for file in manifest.files]
        heir = Driver(objects, folder, epoch=3, retained=1)
        found = heir.look().manifest
        assert found is not None
        assert found.rows == 2
        heir.look()
        assert heir.content() == {"N1": 2, "N4": 2}
        if ended:
            break
        Driver(objects, folder, epoch=4, retained=1).look()
        rest = files_of(objects) - named_files(heir.registry)
        assert rest == set()
    assert ended


@pytest.mark.parametrize("seed", range(6))
def test_a_store_that_fails_delays_only(
    objects: ObjectStore, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.tables.registry._WRITE", Retry(pause_s=0.001, tries=5))
    faulty = FaultyStore(objects, seed, rate=0.2)
    driver = Driver(faulty, folder)
    for number in range(4):
        push(folder / f"v{number}", dict.fromkeys([f"N{n}" for n in range(number + 1)], 1))
        for _ in range(200):
            try:
                found = driver.look().manifest
            except RetryableError:
                driver.table._refused = ""
                continue
            driver.table._refused = ""
            if found is not None and found.rows == number + 1:
                break
        assert found is not None
        assert found.rows == number + 1
    faulty.rate = 0
    Driver(objects, folder, epoch=2).look()
    assert files_of(objects) == named_files(driver.registry)


def test_a_driver_that_lost_the_job_publishes_nothing(objects: ObjectStore, folder: Path) -> None:
    push(folder / "v1", {"N1": 1})
    old, new = Driver(objects, folder, epoch=1), Driver(objects, folder, epoch=2)
    new.look()
    push(folder / "v2", {"N1": 2})
    with pytest.raises(FencedError):
        old.look()
    found = new.look().manifest
    assert found is not None
    assert found.rows == 1


def test_a_version_that_is_gone_is_built_again(objects: ObjectStore, folder: Path) -> None:
    """A driver that was replaced, and ended while it deleted old versions, can take one with it."""
    push(folder / "v1", {"N1": 1})
    driver = Driver(objects, folder)
    first = driver.look().manifest
    driver.look()
    assert first is not None
    objects.delete(PATHS.table_version("planes", first.version))
    again = driver.look().manifest
    assert again is not None
    assert (again.build != first.build, again.source_version) == (True, first.source_version)
    assert files_of(objects) >= named_files(driver.registry)


def job_of(objects: ObjectStore, folder: Path, root: Path) -> InProcessDriver:
    systems = {"local": MemorySystem("local")}
    systems["local"].admin().create_stream("trips", TASKS)
    config = load_config(overrides={"job.name": "flights", "job.root": str(root), "tables.poll.ms": 10})
    return InProcessDriver(planes(folder).graph(), config, objects, systems)


def test_the_thread_of_a_run(objects: ObjectStore, folder: Path, tmp_path: Path) -> None:
    driver = job_of(objects, folder, tmp_path / "root")
    builds = TableBuilds(driver.job, ArrowTableBuilder(objects, PATHS))
    assert builds.published("planes") == NOT_LOOKED
    builds.start()
    wait_until(lambda: "has no complete version" in builds.published("planes").note, "nothing is complete")
    push(folder, {"N1": 1})
    wait_until(lambda: builds.published("planes").manifest is not None, "a version is published")
    builds.close()
    builds.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-tables"]
    driver.close()


def test_a_source_that_cannot_be_listed_is_said_once(
    objects: ObjectStore, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Forbidden(ArrowTableBuilder):
        def markers(self, url: str) -> list[Any]:
            raise ConfigError("`planes` cannot be listed: permission denied")

    driver = job_of(objects, folder, tmp_path / "root")
    builds = TableBuilds(driver.job, Forbidden(objects, PATHS))
    with caplog.at_level(logging.WARNING):
        builds.look()
        builds.look()
    assert caplog.text.count("permission denied") == 1
    assert builds.published("planes").note == "`planes` cannot be listed: permission denied"
    driver.close()


def test_a_job_without_tables_has_no_thread(objects: ObjectStore, tmp_path: Path) -> None:
    app = ps.StreamApplication("flights")
    app.input("local.trips").process(Ignore)
    systems = {"local": MemorySystem("local")}
    systems["local"].admin().create_stream("trips", 1)
    config = load_config(overrides={"job.name": "flights", "job.root": str(tmp_path / "root")})
    driver = InProcessDriver(app.graph(), config, objects, systems)
    builds = TableBuilds(driver.job, ArrowTableBuilder(objects, PATHS))
    builds.start()
    builds.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-tables"]
    driver.close()
