"""Drain notifications: their fields, their bytes, and the monitor that looks for them."""

from __future__ import annotations

import threading
import uuid

import pytest

from penstock.api.drain import NEXT_RUN, DrainMode, DrainNotification
from penstock.drain.monitor import DrainPoller, DrainPollerState
from penstock.drain.notification import NAMESPACE, decode_notification, encode_notification
from penstock.drain.requests import DrainRequests
from penstock.errors import ConfigError, CorruptError, PenstockError, RetryableError
from penstock.job.paths import JobPaths
from penstock.objects.open import forget_memory_store, open_store
from penstock.objects.store import ObjectStore
from tests.support.tools.places import GOLDEN

UUID = uuid.UUID("9c3f0b6e-2c1d-4d8e-9f3a-5b7c1e2d3f40")
WRITTEN = (GOLDEN / "drain-notification.json").read_bytes()
PATHS = JobPaths("flights", "1")
DEADLINE_S = 60.0


class TestNotification:
    """As Samza's."""

    def test_its_bytes_are_samzas(self) -> None:
        notification = DrainNotification.create(UUID, "3f2a")
        assert encode_notification(notification) == WRITTEN
        assert decode_notification(WRITTEN, "x") == notification

    def test_the_mode_in_any_case_and_unknown_fields(self) -> None:
        data = WRITTEN.replace(b"DEFAULT", b"Default").replace(b"{", b'{"more":[1],')
        assert decode_notification(data, "x").drain_mode is DrainMode.DEFAULT

    @pytest.mark.parametrize(
        "data",
        [
            b"{",
            b"[]",
            b"{}",
            WRITTEN.replace(b"DEFAULT", b"SUDDEN"),
            WRITTEN.replace(b"9c3f", b"zzzz"),
            WRITTEN.replace(b"3f2a", b""),
            WRITTEN.replace(b'"3f2a"', b"7"),
        ],
    )
    def test_damage_names_the_object(self, data: bytes) -> None:
        with pytest.raises(CorruptError, match="`the-object` is not a drain notification"):
            decode_notification(data, "the-object")

    @pytest.mark.parametrize(
        "fields",
        [
            (None, "a", DrainMode.DEFAULT),
            (UUID, "", DrainMode.DEFAULT),
            (UUID, None, DrainMode.DEFAULT),
            (UUID, "a", None),
        ],
    )
    def test_all_fields_are_required(self, fields: tuple[object, object, object]) -> None:
        with pytest.raises(ConfigError, match="a drain notification needs"):
            DrainNotification(*fields)  # type: ignore[arg-type]


@pytest.fixture
def objects() -> ObjectStore:
    root = f"memory://{uuid.uuid4().hex}"
    store = open_store(root)
    forget_memory_store(root)
    return store


def test_a_notification_is_never_overwritten(objects: ObjectStore) -> None:
    requests = DrainRequests(objects, PATHS)
    requests.write(DrainNotification.create(UUID, "a"))
    requests.write(DrainNotification.create(UUID, "b"))
    assert [each.run_id for each in requests.find().notifications] == ["a"]
    assert objects.list(PATHS.metadata_folder(NAMESPACE)) == [f"flights-1/metadata/samza-drain-v1/{UUID}"]


def test_what_cannot_be_read_hides_nothing(objects: ObjectStore, caplog: pytest.LogCaptureFixture) -> None:
    requests = DrainRequests(objects, PATHS)
    requests.write(DrainNotification.create(UUID, "a"))
    path = PATHS.metadata(NAMESPACE, "0")
    objects.put_if_absent(path, b"{")
    for _ in range(3):
        found = requests.find()
    assert [each.run_id for each in found.notifications] == ["a"]
    assert [name for name, _ in found.unreadable] == [path]
    assert len([record for record in caplog.records if path in record.message]) == 1


def test_a_damaged_note_of_the_run_that_obeys(objects: ObjectStore) -> None:
    requests = DrainRequests(objects, PATHS)
    requests.write(DrainNotification.create(UUID, NEXT_RUN))
    path = requests._obeyed_path(DrainNotification.create(UUID, NEXT_RUN))
    objects.put_if_absent(path, b"\xff")
    found = requests.find()
    assert (found.notifications, len(found.unreadable)) == ((), 1)
    assert f"`{path}` does not name a run" in found.unreadable[0][1]


def state_of(monitor: DrainPoller) -> DrainPollerState:
    """Its state now: a type checker takes an attribute for constant."""
    return monitor.state


class TestMonitor:
    """As Samza's."""

    @pytest.fixture
    def requests(self, objects: ObjectStore) -> DrainRequests:
        return DrainRequests(objects, PATHS)

    def test_its_life(self, requests: DrainRequests) -> None:
        monitor, called = DrainPoller(requests, "a", 1), threading.Event()
        assert monitor.state is DrainPollerState.INIT
        assert monitor.register_drain_callback(called.set)
        assert not monitor.register_drain_callback(called.set)
        monitor.start()
        assert state_of(monitor) is DrainPollerState.RUNNING
        assert not monitor.register_drain_callback(called.set)
        requests.write(DrainNotification.create(uuid.uuid4(), "b"))
        assert not monitor.look()
        requests.write(DrainNotification.create(UUID, "a"))
        assert called.wait(DEADLINE_S)
        assert state_of(monitor) is DrainPollerState.STOPPED
        monitor.stop()
        monitor.stop()

    def test_it_needs_a_callback(self, requests: DrainRequests) -> None:
        with pytest.raises(PenstockError, match="needs a callback"):
            DrainPoller(requests, "a", 1).start()

    @pytest.mark.parametrize("interval_ms", [0, -1])
    def test_the_interval_is_positive(self, requests: DrainRequests, interval_ms: int) -> None:
        with pytest.raises(ConfigError, match=r"job\.drain-monitor\.poll\.interval\.ms"):
            DrainPoller(requests, "a", interval_ms)

    def test_once_stopped_it_calls_nobody(self, requests: DrainRequests) -> None:
        before = set(threading.enumerate())
        monitor, calls = DrainPoller(requests, "a", 1), list[int]()
        monitor.register_drain_callback(lambda: calls.append(1))
        monitor.start()
        monitor.stop()
        requests.write(DrainNotification.create(UUID, "a"))
        monitor.start()
        assert (monitor.state, calls) == (DrainPollerState.STOPPED, [])
        assert not any(each.name == "penstock-drain-monitor" for each in set(threading.enumerate()) - before)

    def test_a_store_that_fails_delays_it(self, requests: DrainRequests, monkeypatch: pytest.MonkeyPatch) -> None:
        failures = iter([RetryableError("the store is away")] * 3)
        find = requests.find

        def failing() -> object:
            if (error := next(failures, None)) is not None:
                raise error
            return find()

        monkeypatch.setattr(requests, "find", failing)
        requests.write(DrainNotification.create(UUID, "a"))
        monitor, called = DrainPoller(requests, "a", 1), threading.Event()
        monitor.register_drain_callback(called.set)
        monitor.start()
        assert called.wait(DEADLINE_S)
