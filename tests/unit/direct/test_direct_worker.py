"""The direct worker as a process: its runs, and all the ways in which it can fail. After a failure, it is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from pyspark import cloudpickle

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import Batch
from penstock.batch.portions import Portion
from penstock.direct.worker import DirectWorker, RunOrder
from penstock.graph.topology import plan_topology
from penstock.runtime.reports import Report, SuccessfulBatch, decide_outcome
from penstock.runtime.settings import RuntimeSettings
from penstock.system.base import OffsetRange, WriterIdentity
from penstock.system.local import LocalSystem
from penstock.wire.containers import ContainerAddress, Lane
from penstock.wire.ports import OtherWayError, PackedPackage, WorkerPackage
from tests.support.processes.containers import wait_until
from tests.support.tools.fixtures import fixture_of
from tests.support.tools.places import ROOT

SSP = SystemStreamPartition("local", "in", 0)
LIMIT_BYTES = 1 << 20
MANY = 1_000_000


def expand(value: bytes) -> list[bytes]:
    """A message as often as it says, or a disaster."""
    match value:
        case b"raise":
            raise ValueError("bad message")
        case b"exit":
            os._exit(3)
        case b"stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case b"hang":
            threading.Event().wait()
        case b"many":
            return [value] * MANY
        case b"variable":
            return [os.environ["FROM_SPARK"].encode()]
    return [value]


class World:
    """A job without containers: one input, one output, one task."""

    def __init__(self, folder: Path) -> None:
        self.system = LocalSystem("local", str(folder))
        for stream in ("in", "out"):
            self.system.admin().create_stream(stream, 1)
        app = ps.StreamApplication("expand")
        messages = app.input("local.in", value=ps.Bytes())
        messages.flat_map(expand).send_to(app.output("local.out", value=ps.Bytes()))
        self.topology = plan_topology(app.graph())
        package = WorkerPackage(self.topology, RuntimeSettings("expand", 1, {"local.out": 1}), {"local": self.system})
        if str(ROOT) not in sys.path:  # the worker unpickles what tests define
            sys.path.append(str(ROOT))
        self.package = PackedPackage("", cloudpickle.dumps(package))
        self.read = 0
        self.batch = 0

    def order(self, *values: bytes) -> RunOrder:
        """The next batch: these messages."""
        writer = self.system.writer(None)
        writer.append(SSP, [(0, None, value) for value in values])
        writer.close()
        begin, self.read = self.read, self.read + len(values)
        self.batch += 1
        portion = Portion(OffsetRange(SSP, begin, self.read), len(values))
        address = ContainerAddress("0", "", "", 1, 1, "", "", "", (), "driver")
        return RunOrder(
            1, Batch(self.batch, 1, 0), {0: [(0, portion)]}, (Lane(address, (0,)),), WriterIdentity("expand", 1), "",
            None, LIMIT_BYTES,
        )  # fmt: skip

    def outcome(self, payloads: Sequence[bytes]) -> object:
        """The decision by the reports of a run."""
        return decide_outcome([Report.decode(payload) for payload in payloads], self.topology, 1)

    def output(self) -> list[bytes | None]:
        reader = self.system.reader()
        end = self.system.admin().offsets("out")[0].upcoming
        ssp = SystemStreamPartition("local", "out", 0)
        found = [value for chunk in reader.read(OffsetRange(ssp, 0, end), 100) for _, _, _, value, *_ in chunk]
        reader.close()
        return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@contextmanager
def started(world: World, patience_s: float = 2.0) -> Iterator[DirectWorker]:
    worker = DirectWorker(world.package, patience_s, patience_s, {"FROM_SPARK": "as in a worker of Spark"})
    wait_until(lambda: worker.is_ready or worker.failure, "the worker to start")
    assert worker.failure == ""
    yield worker
    worker.close()


worker = fixture_of(started, using=("world",))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, DirectWorker]]:
    """One that lives on, for several tests, also on a machine that is slow."""
    world = World(tmp_path_factory.mktemp("shared"))
    with started(world, 120.0) as worker:
        yield world, worker


def test_it_runs_one_batch_after_the_other(shared: tuple[World, DirectWorker]) -> None:
    world, worker = shared
    before = world.output()
    first = world.outcome(worker.run(world.order(b"a", b"b")))
    second = world.outcome(worker.run(world.order(b"c")))
    assert isinstance(first, SuccessfulBatch)
    assert isinstance(second, SuccessfulBatch)
    assert (first.messages_in, first.written, second.messages_out) == (2, {"local.out": 2}, 1)
    assert world.output() == [*before, b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"raise", r"the application failed on a message in task 0, stage 0"),
        (b"many", rf"take more than {LIMIT_BYTES} bytes"),
    ],
)
def test_it_declines_a_batch_and_touches_nothing(shared: tuple[World, DirectWorker], value: bytes, text: str) -> None:
    world, worker = shared
    before = world.output()
    with pytest.raises(OtherWayError, match=text) as caught:
        worker.run(world.order(b"a", value))
    assert caught.value.declined
    assert worker.is_ready
    assert isinstance(world.outcome(worker.run(world.order(b"b"))), SuccessfulBatch)
    assert world.output() == [*before, b"b"]


def test_it_has_the_variables_of_sparks_workers(shared: tuple[World, DirectWorker]) -> None:
    world, worker = shared
    before = world.output()
    worker.run(world.order(b"variable"))
    assert world.output() == [*before, b"as in a worker of Spark"]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"exit", r"ended with exit status 3"),
        (b"stop", r"gave no sign for 2 s, and was killed"),
        (b"hang", r"processed nothing for 2 s, and was killed"),
    ],
)
def test_after_a_broken_run_its_process_is_gone(world: World, worker: DirectWorker, value: bytes, text: str) -> None:
    worker.run(world.order(b"a"))
    with pytest.raises(OtherWayError, match=text) as caught:
        worker.run(world.order(b"b", value))
    assert not caught.value.declined
    assert not worker.is_ready
    assert not psutil.pid_exists(worker.pid)
    assert world.output() == [b"a"]


def test_what_ended_it_is_known_by_its_place(world: World, worker: DirectWorker) -> None:
    worker.run(world.order(b"a"))
    with pytest.raises(OtherWayError, match=r"while it processed one of the offsets 1 to 2 of stream `local\.in`"):
        worker.run(world.order(b"b", b"exit"))
    assert worker.death is not None
    (spot,) = worker.death.spots
    assert (worker.death.status, spot.batch, spot.stage, spot.task) == (3, world.batch, 0, 0)
    worker.kill()
    assert worker.death.by_itself


def test_another_thread_ends_a_run(world: World, worker: DirectWorker) -> None:
    order, errors = world.order(b"hang"), []

    def run() -> None:
        try:
            worker.run(order)
        except OtherWayError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    worker.kill()
    thread.join()
    assert errors == [f"the direct worker (process {worker.pid}) was ended"]


def test_a_worker_that_cannot_load_the_application_says_why(world: World) -> None:
    worker = DirectWorker(PackedPackage("", b"cno_such_module\nThing\n."), 2.0, 2.0)
    wait_until(lambda: worker.failure, "the worker to say why it does not start")
    assert "If module `no_such_module` is yours" in worker.failure
    assert not worker.is_ready
    worker.close()
    assert not psutil.pid_exists(worker.pid)


def test_it_never_outlives_its_driver(world: World, tmp_path: Path) -> None:
    script = (
        "import sys; from penstock.direct.worker import DirectWorker; from penstock.wire.ports import PackedPackage\n"
        "worker = DirectWorker(PackedPackage('', open(sys.argv[1], 'rb').read()), 9.0, 9.0)\n"
        "print(worker.pid, flush=True); sys.stdin.read()"
    )
    (tmp_path / "package").write_bytes(world.package.data)
    driver = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "package")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert driver.stdout is not None
    worker = psutil.Process(int(driver.stdout.readline()))
    driver.kill()
    driver.communicate()
    wait_until(lambda: not worker.is_running(), "the worker of a driver that was killed to end")
