"""`kill -9` of the driver, a container or a Spark worker at every step of a drain of one operator: what waits in it
comes out, all others keep what waits in them, and the changed program goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from penstock.drain.requests import DRAIN
from tests.support.apps.drained_app import DAY_MS, HOUR_MS, Message, group_of
from tests.support.faults.plan import Fault
from tests.support.jobs.drained_job import PATHS, DrainHome
from tests.support.jobs.fault_jobs import executor_env
from tests.support.jobs.home import DriverProcess, kill, wait_until
from tests.support.tools.cli import call

pytestmark = [pytest.mark.spark, pytest.mark.slow]
CONFIG = {"job.drain-monitor.poll.interval.ms": 50, "job.lease.ms": 1500, "job.retry.max": 20, **executor_env()}
FIRST, SECOND = 18, 14
"""Messages of each partition before and after the drain: an hour is open between them."""
VICTIMS: dict[str, Callable[[DriverProcess], list[psutil.Process]]] = {
    "container": DriverProcess.containers,
    "worker": DriverProcess.workers,
}
STEPS = {
    "driver": [
        "drain.noticed",
        "drain.planned",
        "drain.end.before",
        "drain.end.after",
        "upload.middle",
        "append.before",
        "drain.record",
    ],
    "container": ["drain.planned", "drain.end.before", "drain.end.after", "upload.middle", "append.before"],
    "worker": ["drain.planned", "drain.end.before"],
}


@pytest.mark.parametrize(("victim", "step"), [(victim, step) for victim, steps in STEPS.items() for step in steps])
def test_one_operator_is_drained_and_changed_though_a_process_is_killed(tmp_path: Path, victim: str, step: str) -> None:
    home = DrainHome(tmp_path, "alone", config=CONFIG)
    home.system.admin().create_stream("days", 2)
    home.put(FIRST, commit=True)
    with home.driver(app="alone", until=None) as driver:
        home.await_checkpoint(home.everything, lambda: driver.running)
        home.faults.plan(Fault("hold", step, "block"))
        ask(home, "hours")
        wait_until(lambda: home.faults.is_reached("hold") or not driver.running, f"the drain, {step}")
        assert driver.running, driver.log[-6000:]
        first = home.everything
        home.put(SECOND)
        if victim == "driver":
            driver.kill()
            home.faults.open()
            driver.ended()
        else:
            assert any(kill(process) for process in VICTIMS[victim](driver)[:1])
            home.faults.open()
            driver.succeeded()
    if victim == "driver" and step != "drain.record":
        with home.driver(app="alone", until=None) as again:
            again.succeeded()
    assert home.checkpoints[-1].section(DRAIN).answered
    assert home.read() == first
    assert not list(home.messages("timers"))
    assert home.kept("first") == counts(messages(home, before=True))
    assert panes(home) == hours(messages(home, before=True), HOUR_MS)

    with home.driver(app="alone_and_changed", until="latest") as changed:  # everything fires at the end
        changed.succeeded()
    both = messages(home, before=True) + messages(home, before=False)
    assert panes(home) == hours(messages(home, before=True), HOUR_MS) | hours(
        messages(home, before=False), HOUR_MS // 2
    )
    assert found(home, "days") == {
        (group, day, count)
        for (group, day), count in Counter((group_of(m), m["t"] // DAY_MS * DAY_MS) for m in both).items()
    }
    assert home.kept("first") == counts(both) | {f"fired {key}": 1 for key in {m["key"] for m in both}}


def ask(home: DrainHome, operator: str) -> None:
    """As an operator does."""
    call("drain", PATHS.name, "--operator", operator, "-c", f"job.root={home.config['job.root']}")


def messages(home: DrainHome, *, before: bool) -> list[Message]:
    return [m for there in home.given.values() for m in (there[:FIRST] if before else there[FIRST:])]


def counts(given: list[Message]) -> dict[str, int]:
    return {f"count {key}": n for key, n in Counter(m["key"] for m in given).items()}


def hours(given: list[Message], size_ms: int) -> set[tuple[str, int, int]]:
    found = Counter((m["key"], m["t"] // size_ms * size_ms) for m in given)
    return {(key, start, count) for (key, start), count in found.items()}


def panes(home: DrainHome) -> set[tuple[str, int, int]]:
    return found(home, "panes")


def found(home: DrainHome, stream: str) -> set[tuple[str, int, int]]:
    """The panes of a stream; a failure may have sent some twice."""
    return {(key, pane["from"], pane["count"]) for _, _, key, pane in home.messages(stream)}
