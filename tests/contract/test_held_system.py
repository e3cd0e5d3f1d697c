"""A shadow's system keeps the contract of every system in what it writes, and changes nothing in the one it reads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.errors import NotFoundError
from penstock.state.backends.changelog_partition import ChangelogReader, history_system
from penstock.system.base import (
    Compaction,
    OffsetRange,
    Progress,
    RecordLimits,
    System,
    SystemAdmin,
    SystemReader,
    SystemWriter,
    WriterIdentity,
)
from penstock.system.held import HeldSystem
from penstock.system.local import LocalSystem
from penstock.system.memory import MemorySystem
from penstock.testing.system_contract import STREAM, SystemContract, append, read_all, records, ssp
from tests.support.tools import contracts

ME = WriterIdentity("job-1", 7)


class OnlyRead(System):
    """Raises if somebody writes to it, or makes or changes a stream."""

    dense_offsets = True
    readers_seek = True

    def __init__(self, real: MemorySystem) -> None:
        self.name = real.name
        self.real = real

    def admin(self) -> SystemAdmin:
        found: SystemAdmin = _only_read(self.real.admin())
        return found

    def reader(self) -> SystemReader:
        return self.real.reader()

    def writer(self, identity: WriterIdentity | None) -> SystemWriter:
        raise AssertionError("somebody writes to the real system")


CHANGES = (
    *("create_stream", "create_compacted", "delete_stream", "set_retention", "end_stream", "fence", "published"),
    *("show_positions", "own", "compact"),
)


def _only_read(admin: Any) -> Any:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("somebody changes the real system")

    for name in CHANGES:
        setattr(admin, name, refuse)
    return admin


@pytest.mark.quick(*contracts.SYSTEM)
class TestHeldSystem(SystemContract):
    """The streams that a shadow writes. They are not in the other system."""

    @pytest.fixture
    def system(self, tmp_path: Path) -> System:
        return HeldSystem("memory", OnlyRead(MemorySystem("memory")), str(tmp_path / "held"))


@pytest.fixture
def real() -> MemorySystem:
    made = MemorySystem("memory")
    made.admin().create_stream(STREAM, 3)
    append(made, SystemStreamPartition("memory", STREAM, 0), records(0, 4))
    return made


@pytest.fixture
def held(real: MemorySystem, tmp_path: Path) -> HeldSystem:
    return HeldSystem("memory", OnlyRead(real), str(tmp_path / "held"))


def test_what_the_job_does_not_write_is_read_where_it_is(held: HeldSystem, real: MemorySystem) -> None:
    assert read_all(held, ssp(held, 0)) == read_all(real, ssp(real, 0))
    assert held.admin().offsets(STREAM) == real.admin().offsets(STREAM)
    assert held.admin().stream_identity(STREAM) == real.admin().stream_identity(STREAM)
    assert not held.written.admin().streams()


WAYS: dict[str, Callable[[HeldSystem], object]] = {
    "append": lambda held: append(held, ssp(held, 1), records(0, 2)),
    "transaction": lambda held: _in_transaction(held),
    "mark": lambda held: _marks(held),
    "progress": lambda held: held.writer(ME).progress([ssp(held, 1)]),
    "fence": lambda held: held.admin().fence(STREAM, ME),
    "own": lambda held: held.admin().own(STREAM, "job-1"),
    "published": lambda held: held.admin().published(STREAM, "job-1", 3),
    "retention": lambda held: held.admin().set_retention(STREAM, StreamRetention(max_age_ms=60_000)),
    "end": lambda held: held.admin().end_stream(STREAM),
    "compact": lambda held: held.admin().compact(OffsetRange(ssp(held, 0), 0, 0), ME),
}


def _in_transaction(held: HeldSystem) -> None:
    with held.writer(ME).begin() as transaction:
        transaction.append(ssp(held, 1), records(0, 2))
        transaction.mark(ssp(held, 1), Progress(slot=3, chunk=1))


def _marks(held: HeldSystem) -> None:
    with held.writer(ME).begin() as transaction:
        transaction.mark(ssp(held, 1), Progress(slot=3, chunk=1))


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_change_a_stream_holds_it(way: str, held: HeldSystem, real: MemorySystem) -> None:
    before = [read_all(real, SystemStreamPartition("memory", STREAM, number)) for number in range(3)]
    WAYS[way](held)
    assert held.written.admin().partition_count(STREAM) == 3, "as many as the real one has"
    assert [read_all(real, SystemStreamPartition("memory", STREAM, number)) for number in range(3)] == before
    assert real.admin().owner(STREAM) is None


def test_every_call_of_an_admin_is_decided_about() -> None:
    """A call that is added to the contract must not reach the real system by itself."""
    calls = {name for name in vars(SystemAdmin) if not name.startswith("_")}
    from penstock.system.held import HeldAdmin, HeldReader, HeldWriter

    assert calls <= vars(HeldAdmin).keys()
    for kind, own in ((SystemReader, HeldReader), (SystemWriter, HeldWriter)):
        assert {name for name in vars(kind) if not name.startswith("_")} <= vars(own).keys()


class Compacts(OnlyRead):
    """Compacts in its own time: of what was written, offset 2 is the first that is certainly whole."""

    compacts_by_age = True

    def admin(self) -> SystemAdmin:
        found: Any = super().admin()
        found.compaction = lambda stream: Compaction({0: 2, 1: 0, 2: 0}, lag_ms=1000, deletes_stay_ms=1000)
        found.record_limits = lambda stream: RecordLimits(needs_key=True, max_bytes=77)
        return found  # type: ignore[no-any-return]


def test_a_changelog_is_restored_as_the_system_that_has_it_keeps_it(real: MemorySystem, tmp_path: Path) -> None:
    """The real one may have gaps, and a restore must notice; what the shadow writes itself has none."""
    held = HeldSystem("memory", Compacts(real), str(tmp_path / "held"))
    stream = SystemStream("memory", STREAM)

    def restored() -> int:
        with closing(ChangelogReader(history_system({"memory": held}, stream))) as history:
            return sum(len(messages) for messages in history.read_every(OffsetRange(ssp(held, 0), 0, 4)))

    with pytest.raises(NotFoundError, match=r"may no longer be whole"):
        restored()
    append(held, ssp(held, 0), records(0, 4))
    assert restored() == 4


def test_a_shadow_refuses_the_records_that_the_job_would(real: MemorySystem, tmp_path: Path) -> None:
    held = HeldSystem("memory", Compacts(real), str(tmp_path / "held"))
    assert held.admin().record_limits(STREAM).max_bytes == 77
    append(held, ssp(held, 0), records(0, 1))
    assert held.admin().record_limits(STREAM).max_bytes == 77


def test_a_group_of_the_job_shows_no_positions_of_a_shadow(held: HeldSystem) -> None:
    held.admin().show_positions("job-1", {ssp(held, 0): 3})
    assert not held.written.admin().streams()


def test_a_stream_that_is_nowhere(held: HeldSystem) -> None:
    with pytest.raises(NotFoundError):
        held.admin().fence("nowhere", ME)
    with pytest.raises(NotFoundError):
        append(held, SystemStreamPartition("memory", "nowhere", 0), records(0, 1))


def test_the_configuration_of_a_shadow(tmp_path: Path) -> None:
    from penstock.config import load_config
    from penstock.system.registry import open_systems

    LocalSystem("local", str(tmp_path / "real")).admin().create_stream(STREAM, 2)
    keys = {
        "job.name": "what-if",
        "job.shadow.enabled": True,
        "systems.local.path": tmp_path / "real",
        "systems.other.samza.factory": "local",
        "systems.other.path": tmp_path / "other",
    }
    found = open_systems(load_config(overrides=keys, environ={"PENSTOCK_HOME": str(tmp_path / "home")}))
    append(found["local"], ssp(found["local"], 1), records(0, 2))
    found["other"].admin().create_stream("new", 1)
    assert (tmp_path / "home" / "shadow" / "what-if-1" / "local" / STREAM / "1.db").exists()
    assert (tmp_path / "home" / "shadow" / "what-if-1" / "other" / "new").is_dir()
    assert not read_all(LocalSystem("local", str(tmp_path / "real")), ssp(found["local"], 1))
    assert not (tmp_path / "other").exists()
