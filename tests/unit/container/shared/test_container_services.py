"""Services of a container: one owner, started in order, stopped in reverse."""

from __future__ import annotations

import pytest

from penstock.container.shared import Service, Services


class Noted(Service):
    """Notes what is done to it."""

    def __init__(self, name: str, notes: list[str], fails: str = "") -> None:
        self.name, self.notes, self.fails = name, notes, fails
        self.given: float | None = None

    def _note(self, what: str) -> None:
        self.notes.append(f"{what} {self.name}")
        if what == self.fails:
            raise RuntimeError(f"{self.name} cannot {what}")

    def start(self) -> None:
        self._note("start")

    def wind_down(self, timeout_s: float) -> None:
        self.given = timeout_s
        self._note("wind down")

    def stop(self) -> None:
        self._note("stop")

    def status(self) -> str:
        return f"{self.name} works"


def services_of(*each: Service) -> Services:
    services = Services()
    for service in each:
        services.add(service)
    return services


def test_they_stop_in_the_reverse_of_the_order_in_which_they_started() -> None:
    notes: list[str] = []
    services = services_of(*(Noted(name, notes) for name in "abc"))
    services.stop()
    services.stop()
    assert notes == ["start a", "start b", "start c", "stop c", "stop b", "stop a"]
    assert services.status() == {}


def test_one_that_does_not_stop_is_logged_and_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    notes: list[str] = []
    services_of(Noted("a", notes), Noted("b", notes, fails="stop"), Noted("c", notes)).stop()
    assert notes[3:] == ["stop c", "stop b", "stop a"]
    assert "stopping the b failed" in caplog.text


def test_one_that_does_not_start_is_stopped_with_the_others() -> None:
    notes: list[str] = []
    services = services_of(Noted("a", notes))
    with pytest.raises(RuntimeError, match="b cannot start"):
        services.add(Noted("b", notes, fails="start"))
    services.stop()
    assert notes == ["start a", "start b", "stop b", "stop a"]


def test_winding_down_is_one_time_for_all() -> None:
    notes: list[str] = []
    first, second = Noted("a", notes), Noted("b", notes)
    services_of(first, second).wind_down(5.0)
    assert first.given is not None
    assert second.given is not None
    assert second.given <= first.given <= 5.0
    assert services_of(first).status() == {"a": "a works"}
