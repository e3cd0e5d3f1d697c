"""The verdict on the backends of a checkpoint, for each store and backend: they hold the same, or not."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.checkpoint.record import CheckpointId, CheckpointRecord
from penstock.checkpoint.task_values import CheckpointV2
from penstock.config.load import load_config
from penstock.errors import NotFoundError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore
from penstock.state.backends.base import BackendContext
from penstock.state.backends.registry import backend_factory
from penstock.state.engines.memory import MemoryEngine
from penstock.state.reading.comparison import BackendVerdict, digest, verify
from penstock.state.reading.reader import StateReader
from tests.support.faults.fault_backend import FaultyFactory
from tests.support.tools.fixtures import fixture_of
from tests.support.tools.places import GOLDEN

FIRST = "changelog-files"
SECOND = "tests.support.faults.fault_backend:SecondFiles"
ID = CheckpointId(1000, 0)
PATHS = JobPaths("job", "1")
TASKS = 2
Content = Mapping[bytes, bytes]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


objects = fixture_of(lambda root: open_store(str(root)))


class Written:
    """A checkpoint whose backends hold what a test says."""

    def __init__(self, root: Path, objects: ObjectStore) -> None:
        self.config = load_config(
            overrides={"job.name": "job", "job.root": str(root), "stores.backup.factories": f"{FIRST},{SECOND}"},
            environ={},
        )
        self.objects = objects
        self.markers: dict[int, dict[str, dict[str, str]]] = {task: {} for task in range(TASKS)}
        self.looked_at: list[tuple[str, str, int]] = []

    def put(self, backend: str, task: int, content: Content, store: str = "totals") -> None:
        """One task's part of a store, in a backend."""
        context = BackendContext(self.objects, PATHS, task, (store,), 1, self.config)
        manager = backend_factory(backend).backup_manager(context)
        manager.init(None, {})
        manager.snapshot(ID, {store: dict(content)})
        self.markers[task].setdefault(backend, {}).update(manager.upload(ID, {}))
        manager.close()

    def record(self, **stores: str) -> CheckpointRecord:
        """The checkpoint, with the store `totals` unless told otherwise."""
        values = {task: {"2": CheckpointV2(ID, {}, own).encode()} for task, own in self.markers.items()}
        return CheckpointRecord(
            id=ID,
            parent=None,
            epoch=1,
            run_id="run",
            writer="writer",
            task_count=TASKS,
            batch=1,
            batch_time_ms=1,
            stores=stores or {"totals": "layout"},
            next_offsets={task: {} for task in range(TASKS)},
            tasks=values,
        )

    def verdicts(self, *stores: str, layout: str = "layout") -> dict[str, dict[str, BackendVerdict]]:
        """The texts of `verify` by store and backend; checks that `agrees` fits them."""
        found = self._verify(stores, layout)
        return {each.store: {verdict.backend: verdict for verdict in each.backends} for each in found}

    def agrees(self, *stores: str) -> bool:
        return all(each.agrees for each in self._verify(stores))

    def _verify(self, stores: tuple[str, ...], layout: str = "layout") -> list[Any]:
        names = stores or ("totals",)
        self.looked_at.clear()
        with StateReader(self.config, PATHS, self.objects, {}) as reader:
            record = self.record(**dict.fromkeys(names, layout))
            return verify(reader, record, names, lambda *args: self.looked_at.append(args))


@pytest.fixture
def written(root: Path, objects: ObjectStore) -> Written:
    return Written(root, objects)


@pytest.fixture
def both(written: Written) -> Written:
    """Two backends that hold the same."""
    for backend in (FIRST, SECOND):
        written.put(backend, 0, {b"a": b"1", b"b": b"22"})
        written.put(backend, 1, {b"c": b"333"})
    return written


def test_two_backends_that_hold_the_same(both: Written) -> None:
    found = both.verdicts()["totals"]
    assert found.keys() == {FIRST, SECOND}
    first, second = found[FIRST].digest, found[SECOND].digest
    assert first is not None
    assert first == second
    assert (first.entries, first.size_bytes) == (3, 3 + 1 + 2 + 3)
    assert both.agrees()
    assert both.looked_at == [("totals", backend, task) for backend in (FIRST, SECOND) for task in range(TASKS)]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "other",
    [
        {b"a": b"1", b"b": b"2X"},
        {b"a": b"1"},
        {b"a": b"1", b"b": b"22", b"d": b""},
        {b"a": b"12", b"b": b"2"},
        {b"a": b"1", b"bb": b"2"},
        {},
    ],
    ids=["a value", "one less", "one more", "bytes moved to another value", "a byte moved to the key", "nothing"],
)
def test_one_backend_differs(written: Written, other: Content) -> None:
    for backend, content in ((FIRST, {b"a": b"1", b"b": b"22"}), (SECOND, other)):
        written.put(backend, 0, {b"z": b"same"})
        written.put(backend, 1, content)
    found = written.verdicts()["totals"]
    assert found[FIRST].digest is not None
    assert found[SECOND].digest is not None
    assert found[FIRST].digest != found[SECOND].digest
    assert not written.agrees()


def test_the_same_entries_in_other_tasks_differ(written: Written) -> None:
    for backend, task in ((FIRST, 0), (SECOND, 1)):
        written.put(backend, task, {b"a": b"1"})
        written.put(backend, 1 - task, {})
    assert not written.agrees()


def test_a_backend_whose_data_is_gone_is_named_with_the_object(both: Written, root: Path) -> None:
    (missing,) = (root / "job-1" / "state" / "totals" / "1").glob("*.delta")
    missing.unlink()
    found = both.verdicts()["totals"]
    assert found[FIRST].digest is None
    assert str(missing.relative_to(root)) in str(found[FIRST].problem)
    assert found[SECOND].digest is not None
    assert not both.agrees()


def test_a_backend_without_a_marker_in_a_task_has_no_base_yet(both: Written) -> None:
    del both.markers[1][SECOND]["totals"]
    found = both.verdicts()["totals"]
    assert found[SECOND].digest is None
    assert found[SECOND].problem == "no marker yet in task 1: its base is not complete"
    assert found[FIRST].digest is not None
    assert not both.agrees()
    assert both.looked_at == [("totals", FIRST, 0), ("totals", FIRST, 1)]


def test_one_backend_alone_agrees_with_itself(written: Written) -> None:
    for task in range(TASKS):
        written.put(FIRST, task, {b"a": b"1"})
    assert written.agrees()


def test_a_store_without_any_marker_does_not_agree(written: Written) -> None:
    assert written.verdicts() == {"totals": {}}
    assert not written.agrees()


def test_each_store_is_judged_by_itself(both: Written) -> None:
    for task in range(TASKS):
        both.put(FIRST, task, {b"k": b"v"}, store="regions")
        both.put(SECOND, task, {b"k": b"w"}, store="regions")
    found = both.verdicts("totals", "regions")
    assert found["totals"][FIRST].digest == found["totals"][SECOND].digest
    assert found["regions"][FIRST].digest != found["regions"][SECOND].digest
    assert both.agrees("totals")
    assert not both.agrees("regions")


def _stores_of_operators() -> list[tuple[str, str, dict[bytes, bytes]]]:
    """Each store in which operators of some kind have entries, with its layout and these. Long values are others."""
    cases = json.loads((GOLDEN / "operator-stores.json").read_bytes())
    return [
        (name, each["layout"], {bytes.fromhex(key): _bytes(value) for key, value in each["entries"].items()})
        for stores in cases.values()
        for name, each in stores.items()
    ]


def _bytes(value: str) -> bytes:
    return value.encode() if value.startswith("sha256") else bytes.fromhex(value)


def test_the_stores_of_operators_are_what_their_layouts_say(written: Written) -> None:
    """A store has the name of its operator and of its use, and two uses may have one name."""
    timers = 0
    for number, (name, layout, entries) in enumerate(_stores_of_operators()):
        for task in range(TASKS):
            written.put(FIRST, task, entries, store := f"whole{number}-{name}")
        (verdict,) = written.verdicts(store, layout=layout)[store].values()
        assert (verdict.problem, layout) == (None, layout)
        if "timers(" in layout or "timers-1(" in layout:
            timers += 1
            for task in range(TASKS):
                written.put(FIRST, task, dict(list(entries.items())[task:]), store := f"cut{number}-{name}")
            (verdict,) = written.verdicts(store, layout=layout)[store].values()
            assert "timer" in str(verdict.problem)
    assert timers >= 2


def test_a_store_the_checkpoint_does_not_cover_is_an_error(both: Written) -> None:
    with StateReader(both.config, PATHS, both.objects, {}) as reader:
        record = both.record()
        with (
            pytest.raises(NotFoundError, match=r"has no store `regions`; it has: `totals`"),
            reader.open(record, "regions", 0),
        ):
            pass


def test_a_digest_does_not_depend_on_how_the_content_came_about() -> None:
    one, other = MemoryEngine(), MemoryEngine()
    one.apply({b"b": b"2", b"a": b"0", b"c": b"3"})
    one.apply({b"a": b"1", b"c": None})
    other.apply({b"a": b"1", b"b": b"2"})
    assert digest(one) == digest(other)
    assert digest(MemoryEngine()).entries == 0


def test_the_reader_leaves_nothing_behind(both: Written, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert both.agrees()
    assert not list(tmp_path.glob("penstock-read-*"))


def test_the_wrapped_backends_have_the_names_they_are_configured_by() -> None:
    factory = backend_factory(SECOND)
    assert isinstance(factory, FaultyFactory)
    assert factory.name == SECOND
