"""`kill -9` of the driver, a container, an executor or a Spark worker at every step of a drain: the drain begins again
and ends, state and positions change once, and every pane and timer comes at least once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.faults.plan import Fault
from tests.support.jobs.drained_job import DrainHome, Read
from tests.support.jobs.fault_jobs import executor_env
from tests.support.jobs.home import DriverProcess, kill, wait_until
from tests.support.processes import class_archive

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SIGKILLED = -9
CONFIG = {
    "job.drain-monitor.poll.interval.ms": 50,
    "job.lease.ms": 1500,
    "job.retry.max": 20,
    **executor_env(),
}
CLUSTER = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.extraJavaOptions": class_archive.java_options(),
    "spark.executor.memory": "1g",
    "spark.ui.enabled": "false",
}
STEPS = {
    "noticed": "drain.noticed",
    "planned": "drain.planned",
    "in the first stage": "drain.first",
    "in the last stage": "drain.last",
    "before End": "drain.end.before",
    "after End": "drain.end.after",
    "in an upload of the last commit": "upload.middle",
    "before the record": "append.before",
    "after the record": "drain.record",
}
"""The point at which somebody waits while a process is killed."""
VICTIMS: dict[str, Callable[[DriverProcess], list[psutil.Process]]] = {
    "container": DriverProcess.containers,
    "worker": DriverProcess.workers,
    "executor": DriverProcess.executors,
}
"""But for the driver."""
COMMITTED, UNCOMMITTED, UNREAD = 12, 10, 10
"""Messages of each partition that the last checkpoint before the drain has, that were read after it, and that came
when the drain had begun."""


def cases() -> Iterator[object]:
    for victim in ("driver", *VICTIMS):
        for step in STEPS:
            yield pytest.param("two_exchanges", victim, step, id=f"{victim} {step}")
    for victim in ("driver", "container"):
        for step in ("planned", "in the first stage", "after End", "in an upload of the last commit"):
            case = f"{victim} {step}, a durable stream"
            yield pytest.param("two_exchanges_one_durable", victim, step, id=case)


def verify_next_run(home: DrainHome, read: Read) -> None:
    """The log says that the run has drained. The next one reads on, and deletes the request that was left."""
    drained = home.checkpoints[-1]
    assert (drained.ended, home.read(drained)) == ("drained", read)
    home.verify_stores(drained, home.expect(read))
    assert len(home.requests.find().notifications) == 1
    with home.driver(app=home.app, until="latest") as driver:
        driver.succeeded()
    last = home.checkpoints[-1]
    assert (last.ended, home.read(last)) == ("end-of-stream", home.everything)
    assert last.run_id != drained.run_id
    assert home.requests.find().notifications == ()
    expected = home.expect(home.everything)
    for operator, counts in (("first", expected.keys), ("last", expected.groups)):
        kept = {name: count for name, count in home.kept(operator).items() if name.startswith("count")}
        assert kept == {f"count {name}": count for name, count in counts.items()}
    panes: Counter[tuple[str, int]] = Counter()
    for place, count in home.panes():
        panes[place] += count
    assert panes == expected.panes, "each message in one pane of one of the two runs"


@pytest.mark.parametrize(("app", "victim", "step"), list(cases()))
def test_a_process_is_killed_at_a_step_of_a_drain(tmp_path: Path, app: str, victim: str, step: str) -> None:
    home = DrainHome(tmp_path, app, config={**CONFIG, **(CLUSTER if victim == "executor" else {})})
    home.put(COMMITTED, commit=True)
    with home.driver(app=home.app, until=None) as driver:
        home.await_checkpoint(home.everything, lambda: driver.running)
        committed = home.everything
        home.put(UNCOMMITTED, at="process")
        wait_until(lambda: len(home.faults.trace("process")) == len(committed) or not driver.running, "all messages")
        read = home.everything
        home.faults.plan(Fault("hold", STEPS[step], "block"))
        notification = home.ask()
        wait_until(lambda: home.faults.is_reached("hold") or not driver.running, f"the drain, {step}")
        assert driver.running, driver.log[-6000:]
        home.put(UNREAD)
        if victim == "driver":
            driver.kill()
            home.faults.open()
            assert driver.ended().status == SIGKILLED
        else:
            found = sorted(VICTIMS[victim](driver), key=lambda process: process.pid)
            assert any(kill(process) for process in found[:1])
            home.faults.open()
            assert driver.succeeded().facts["phase"] == "drained"
    if victim == "driver" and step == "after the record":
        verify_next_run(home, read)
        return
    if victim == "driver":
        with home.driver(app=home.app, until=None) as again:
            assert again.succeeded().facts["phase"] == "drained"
    assert home.read() in (committed, read)
    if victim == "driver":
        assert home.read() == committed
    home.verify_drained(notification, committed, read)


def test_a_process_is_killed_at_one_step_after_the_other(tmp_path: Path) -> None:
    """In one drain: the driver at its steps, a container at those of containers."""
    home = DrainHome(tmp_path, "two_exchanges", config=CONFIG)
    home.put(COMMITTED, commit=True)
    with home.driver(app=home.app, until=None) as driver:
        home.await_checkpoint(home.everything, lambda: driver.running)
        home.faults.plan(*(Fault(step, point, "kill") for step, point in STEPS.items() if step != "after the record"))
        committed = home.everything
        notification = home.ask()
        home.put(UNREAD)
        driver.ended()
    while not has_drained(home):
        with home.driver(app=home.app, until=None) as driver:
            assert driver.ended().status == (0 if has_drained(home) else SIGKILLED)
    assert not home.faults.left()
    home.verify_drained(notification, committed)


def has_drained(home: DrainHome) -> bool:
    return home.checkpoints[-1].ended == "drained"
