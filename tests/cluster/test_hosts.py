"""On a Spark standalone cluster of several hosts, each with a network of its own: hosts are killed and cut off."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import penstock
from tests.support.jobs.home import DriverProcess, Home, wait_until
from tests.support.processes.hosts import why_no_hosts
from tests.support.processes.standalone import Standalone, standalone

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(why_no_hosts() is not None, reason=str(why_no_hosts())),
]

MESSAGES = 2000
QUICK: dict[str, Any] = {"container_lost_ms": 2000, "job_container_start_timeout_ms": 120_000}
"""A lost host is noticed soon; Spark itself would take two minutes."""
DIRECT: dict[str, Any] = {"job_latency_target_ms": 50, "job_batch_max_messages": 40}
"""All batches are small, and go directly."""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.publish(MESSAGES, seed=7)
    return home


@contextmanager
def running(cluster: Standalone, home: Home, until: str | None = None, **config: object) -> Iterator[DriverProcess]:
    """A driver whose first epoch has containers on all workers: it knows how many executors to wait for."""
    with cluster.driver(home, until, spark_executor_instances=len(cluster.workers), **config) as driver:
        for host in cluster.workers:
            wait_until(lambda: cluster.containers(host) or not driver.running, f"containers on {host.name}")  # noqa: B023
        assert driver.await_output(200), driver.log
        yield driver


@dataclass(frozen=True)
class Killed:
    """A job of which a container was killed on another host than the driver's, after its end."""

    home: Home
    addresses: dict[str, set[str]]
    """The ports of each host's containers, by the address of the host."""
    address: str
    pid: int
    incarnation: str
    log: str


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """A driver waits some seconds for the report of another host, and says why if there is none: on a busy machine the
    report may come too late, or Spark may run the task elsewhere. So there are three tries to see one."""
    for _ in range(3):
        found = _kill_one(tmp_path_factory.mktemp("killed"))
        if "was killed by SIGKILL" in found.log:
            break
    return found


def _kill_one(folder: Path) -> Killed:
    home = Home(folder)
    home.publish(MESSAGES, seed=7)
    with standalone(folder / "spark") as cluster, running(cluster, home) as driver:
        addresses = {h.address: set().union(*map(listens_on, cluster.containers(h))) for h in cluster.workers}
        host = cluster.workers[0]
        lost = cluster.containers(host)[0]
        incarnation = lost.cmdline()[-2]
        epochs = len(home.log.claims)
        lost.kill()
        await_while_running(driver, lambda: len(home.log.claims) > epochs, "an epoch without the container")
        driver.stopped()
        return Killed(home, addresses, host.address, lost.pid, incarnation, driver.log)


def test_containers_are_reached_though_host_names_resolve_to_loopback(killed: Killed) -> None:
    assert killed.addresses == {address: {address} for address in killed.addresses}
    killed.home.verify()


def listens_on(container: psutil.Process) -> set[str]:
    """The addresses of a container's ports, in the network of its host."""
    found = set()
    for name, width in (("tcp", 8), ("tcp6", 32)):
        for line in Path(f"/proc/{container.pid}/net/{name}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            local, state, inode = fields[1], fields[3], fields[9]
            if state == "0A" and f"socket:[{inode}]" in sockets(container):
                found.add(address(local[:width]))
    return found


def sockets(process: psutil.Process) -> set[str]:
    found = set()
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            found.add(str(descriptor.readlink()))
        except OSError:
            continue
    return found


def address(text: str) -> str:
    """As Linux lists it: the last four bytes, least first."""
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(text[-8:])))


def test_a_container_that_is_killed_on_another_host_is_reported_with_its_signal_and_last_words(killed: Killed) -> None:
    found = re.search(rf"process {killed.pid} was killed by SIGKILL .*", killed.log)
    assert found is not None, killed.log[-6000:]
    assert re.search(rf"its last words: .*incarnation {killed.incarnation}", found[0])
    assert re.search(rf"its log: \S+\.log on the host of grpc\+tls://{killed.address}:", found[0])


def test_a_host_is_killed(tmp_path: Path, home: Home) -> None:
    with standalone(tmp_path / "spark") as cluster, running(cluster, home, **QUICK) as driver:
        cluster.workers[0].kill()
        await_while_running(driver, lambda: len(home.log.claims) > 1, "an epoch without the lost host")
        driver.stopped()
    home.verify()
    assert len(home.log.claims) >= 2, "its tasks were restored on the other host"


def test_a_host_is_killed_while_batches_go_directly(tmp_path: Path, home: Home) -> None:
    with standalone(tmp_path / "spark") as cluster, running(cluster, home, **QUICK, **DIRECT) as driver:
        assert driver.await_output(800), driver.log
        cluster.workers[0].kill()
        await_while_running(driver, lambda: len(home.log.claims) > 1, "an epoch without the lost host")
        ended = driver.stopped()
    home.verify()
    assert ended.facts["progress"]["way"] == "direct"


def test_a_host_is_cut_off_for_ever(tmp_path: Path, home: Home) -> None:
    with standalone(tmp_path / "spark") as cluster, running(cluster, home, **QUICK) as driver:
        lost = cluster.workers[0]
        old = [*cluster.containers(lost), *cluster.executors(lost)]
        lost.cut()
        await_while_running(driver, lambda: len(home.log.claims) > 1, "an epoch without the lost host")
        driver.stopped()
        assert_given_up(driver, old)
    home.verify()


def assert_given_up(driver: DriverProcess, old: Iterable[psutil.Process]) -> None:
    """The driver goes on without what is on a host that was cut off."""
    assert all(process.is_running() for process in old), "nobody could end them: they know nothing of it"
    assert "Spark gives up executor" in driver.log
    assert re.search(r"silent for \d+ ms, [^;]*; its host does not answer; its log: ", driver.log)


@pytest.mark.parametrize(
    ("cut_s", "config"),
    [
        pytest.param(0, QUICK, id="until-it-is-noticed"),
        pytest.param(20, {}, id="20s"),
        pytest.param(300, {}, id="5min"),
    ],
)
def test_a_host_that_comes_back_gets_a_new_executor(
    tmp_path: Path, home: Home, cut_s: float, config: dict[str, Any]
) -> None:
    with standalone(tmp_path / "spark") as cluster, running(cluster, home, **config) as driver:
        lost = cluster.workers[0]
        old = {*cluster.containers(lost), *cluster.executors(lost)}
        epochs = len(home.log.claims)
        lost.cut()
        cut_at = time.monotonic()
        await_while_running(driver, lambda: len(home.log.claims) > epochs, "an epoch without the lost host")
        home.publish(MESSAGES, seed=8)
        await_while_running(driver, lambda: home.all_committed, "all messages without the lost host")
        if config:
            assert_given_up(driver, old)
            assert "Spark itself sends its tasks in clear" in driver.log
        wait_until(lambda: time.monotonic() - cut_at >= cut_s, "the link to come back", cut_s + 10)
        lost.join()
        await_while_running(driver, lambda: set(cluster.containers(lost)) - old, "a container in a new executor")
        await_while_running(driver, lambda: not any(p.is_running() for p in old), "the old executor to end")
        home.publish(MESSAGES, seed=9)
        await_while_running(driver, lambda: len(home.log.claims) > epochs + 1, "an epoch with the host that came back")
        await_while_running(driver, lambda: home.all_committed, "the messages after it")
        driver.stopped()
    home.verify()


def test_an_executor_that_gets_sigterm_ends_by_itself_and_nothing_counts_twice(tmp_path: Path, home: Home) -> None:
    """As the kubelet ends a pod: the signal goes to the executor alone, and there is time before SIGKILL."""
    with standalone(tmp_path / "spark") as cluster, running(cluster, home) as driver:
        host = cluster.workers[0]
        (told,) = cluster.executors(host)
        old, epochs = [told, *cluster.containers(host)], len(home.log.claims)
        told.terminate()
        wait_until(lambda: not any(process.is_running() for process in old), "the executor and its containers", 30)
        await_while_running(driver, lambda: len(home.log.claims) > epochs, "an epoch without the executor")
        await_while_running(driver, lambda: set(cluster.containers(host)) - {*old}, "a container in a new executor")
        home.publish(MESSAGES, seed=8)
        driver.stopped()
    home.verify()


def test_a_link_that_delays_and_loses_packets(tmp_path: Path, home: Home) -> None:
    with standalone(tmp_path / "spark") as cluster, running(cluster, home, "latest") as driver:
        try:
            cluster.workers[0].throttle("400kbit", 50)
        except AssertionError as error:
            pytest.skip(f"this kernel cannot throttle a link: {error}")
        driver.succeeded(600)
    home.verify()


BROKEN = {
    "does-not-start": ("def main() -> None:", "raise OSError('no space left on device')\n\n\ndef main() -> None:"),
    "is-not-reached": ("        port.uri,", "        port.uri.rpartition(':')[0] + ':9',"),
}
"""The change of the container's main module."""


@pytest.mark.parametrize("change", BROKEN)
def test_an_executor_on_which_containers_fail_is_not_tried_for_ever(tmp_path: Path, home: Home, change: str) -> None:
    main = Path(penstock.__file__).parent / "container" / "__main__.py"
    text = main.read_text(encoding="utf-8")
    before, after = BROKEN[change]
    assert before in text
    broken = tmp_path / "broken.py"
    broken.write_text(text.replace(before, after), encoding="utf-8")
    with standalone(tmp_path / "spark") as cluster:
        bad = cluster.workers[1]
        bad.replace_file(main, broken)
        with cluster.driver(home, None, **QUICK) as driver:
            given_up = "no more containers are started on executor"
            await_while_running(driver, lambda: given_up in driver.log, "the end of the tries on the bad executor")
            await_while_running(driver, lambda: home.all_committed, "all messages without it")
            driver.stopped()
        if change == "does-not-start":
            assert "Its last words:" in driver.log
            assert "no space left on device" in driver.log
        else:
            place = rf"grpc(\+tls)?://{re.escape(bad.address)}:9"
            assert re.search(rf"listens on {place}, but the driver on main cannot reach it there", driver.log)
            assert "set SPARK_LOCAL_IP" in driver.log
    home.verify()


def await_while_running(driver: DriverProcess, condition: Callable[[], object], what: str) -> None:
    """Wait for something that the driver has to live to see."""
    wait_until(lambda: condition() or not driver.running, what)
    assert driver.running, driver.log[-4000:]
