"""Publishing objects of an outbox: each message once, whatever fails on the way, and whoever continues."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import Retry
from penstock.config import load_config
from penstock.container.shared import EpochResources
from penstock.errors import (
    ConfigError,
    ContainerLostError,
    CorruptError,
    FencedError,
    IncompatibleError,
    NotFoundError,
    PenstockTimeoutError,
    RetryableError,
)
from penstock.metrics.snapshot import CounterValue, GaugeValue, TimerValue
from penstock.objects.open import forget_memory_store, open_store
from penstock.outbox import container as publisher_module
from penstock.outbox.container import Publisher
from penstock.outbox.task import KeptPacket, ObjectContents, Outbox, OutboxSnapshot, encode, objects_of
from penstock.outbox.wing import OutboxObject, Publish
from penstock.runtime.messages.incoming import Spool
from penstock.runtime.settings import RuntimeSettings
from penstock.system.base import RawRecord, System
from penstock.system.local import LocalSystem
from penstock.system.memory import MemorySystem
from penstock.wire.ports import JobPackage
from tests.support.streams.hooked_system import STEPS, HookedSystem
from tests.support.streams.outboxes import bring, once_topology, payload, read_all, record

WAIT_S = 20.0
PARTITIONS = 3


class World:
    """An output, an object store, and publishers of one epoch after the other."""

    def __init__(self, system: System, folder: Path) -> None:
        self.system = HookedSystem(system)
        system.admin().create_stream("out", PARTITIONS)
        self.folder = folder
        self.root = f"memory://{uuid.uuid4().hex}"
        self.objects = open_store(self.root)
        self.epoch = 0
        self.open: list[tuple[Publisher, EpochResources]] = []
        self.expected: dict[int, list[RawRecord]] = {p: [] for p in range(PARTITIONS)}
        self._made = 0

    def publisher(self, timeout_ms: int = 20_000) -> Publisher:
        """The next epoch's."""
        self.epoch += 1
        config = load_config(
            overrides={
                "job.name": "a",
                "job.root": self.root,
                "job.logged.store.base.dir": str(self.folder),
                "task.commit.timeout.ms": timeout_ms,
            }
        )
        settings = RuntimeSettings("a", 1, {"m.out": PARTITIONS})
        systems = {"m": self.system}
        package = JobPackage(once_topology(), settings, config, "uid", "probe", systems, writer="a-1-uid")
        resources = EpochResources(package, "c1", self.epoch, 1, self.objects)
        self.open.append((Publisher(resources), resources))
        return self.open[-1][0]

    def make(
        self, messages: int, task: int = 0, size: int = 10
    ) -> tuple[OutboxSnapshot, list[ObjectContents], list[OutboxObject]]:
        """The result of a commit of `messages` messages, a packet each."""
        outbox = Outbox(task)
        for batch in range(1, messages + 1):
            self._made += 1
            one = record(self._made, size)
            bring(outbox, batch, (self._made % PARTITIONS, [one]))
            self.expected[self._made % PARTITIONS].append(one)
        taken = outbox.take()
        assert taken is not None
        contents = list(objects_of(taken, f"a-1/outbox/{self.epoch}-{self._made}-0-{task}-{{}}".format))
        named = []
        for each in contents:
            description, data = encode(each, task)
            self.objects.put_if_absent(each.key, data)
            named.append(description)
        return taken, contents, named

    def threads(self) -> int:
        """The number of threads that publish in this epoch."""
        return sum(thread.name == f"publish-{self.epoch}_0" for thread in threading.enumerate())

    def check(self) -> None:
        """Readers see every message once, in order."""
        assert read_all(self.system) == self.expected

    def close(self) -> None:
        for publisher, resources in self.open:
            publisher.stop()
            resources.close()
        forget_memory_store(self.root)


@pytest.fixture(params=["memory", "local"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    system = MemorySystem("m") if request.param == "memory" else LocalSystem("m", str(tmp_path / "streams"))
    world = World(system, tmp_path)
    yield world
    world.close()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several objects, chunks and transactions of few messages."""
    monkeypatch.setattr("penstock.outbox.task.CHUNK_MESSAGES", 2)
    monkeypatch.setattr("penstock.outbox.task.OBJECT_BYTES", 5000)
    monkeypatch.setattr(publisher_module, "TRANSACTION_BYTES", 1500)
    monkeypatch.setattr(publisher_module, "_AGAIN", Retry(pause_s=0.001))


def published(publisher: Publisher, slot: int, named: Sequence[OutboxObject]) -> int:
    """Publish, and wait."""
    publication = publisher.publish(Publish(slot, tuple(named), slot))
    assert publication.await_end(WAIT_S)
    return publication.progress().messages


def test_objects_are_published_slot_by_slot_and_held_no_longer(world: World) -> None:
    publisher = world.publisher()
    for slot in range(1, 6):
        taken, contents, named = world.make(40)
        publisher.hold(taken, contents)
        assert len(named) > 2
        for _ in range(2):  # a second time nothing happens
            assert published(publisher, slot, named) == 40
            world.check()
        assert publisher._held == {}
    counted = {key.name: value for key, value in publisher.metrics().items()}
    assert counted["published-messages"] == CounterValue(200)
    assert counted["unpublished-messages"] == GaugeValue(0)
    assert isinstance(took := counted["publish-ns"], TimerValue)
    assert took.count > 5


@pytest.mark.few(12)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("count", [1, 3])
def test_another_epoch_continues_where_one_ended(world: World, step: str, count: int) -> None:
    """Whatever step the process dies in; it can do nothing more."""
    taken, contents, named = world.make(30)
    dying = world.publisher(timeout_ms=1)
    dying.hold(taken, contents)
    seen = 0

    def die(at: str) -> None:
        nonlocal seen
        seen += at == step
        if seen >= count:
            raise FencedError("dead")

    world.system.at = die
    publication = dying.publish(Publish(1, tuple(named), 1))
    if step != "progress" or count == 1:
        with pytest.raises(FencedError):
            publication.await_end(WAIT_S)
    world.system.at = lambda _: None
    following = world.publisher()
    assert published(following, 1, named) == 30
    world.check()
    _, _, more = world.make(10)
    assert published(following, 2, more) == 10
    world.check()


@pytest.mark.parametrize("step", STEPS)
def test_what_may_pass_is_tried_again(world: World, step: str) -> None:
    publisher = world.publisher()
    _, _, named = world.make(30)
    failures = 0

    def fail(at: str) -> None:
        nonlocal failures
        if at == step and failures < 3:
            failures += 1
            raise RetryableError("the broker is away")

    world.system.at = fail
    assert published(publisher, 1, named) == 30
    assert failures == 3
    world.check()


def test_what_does_not_pass_in_time_ends_the_publication(world: World) -> None:
    publisher = world.publisher(timeout_ms=300)
    _, _, named = world.make(3)
    waiting = threading.Event()

    def fail(at: str) -> None:
        if at == "begin":
            waiting.set()
            raise RetryableError("the broker is away")

    world.system.at = fail
    publication = publisher.publish(Publish(4, tuple(named), 4))
    assert waiting.wait(WAIT_S)
    with pytest.raises(PenstockTimeoutError, match=r"record 4 could not be published within .* the broker is away"):
        publication.await_end(WAIT_S)
    world.system.at = lambda _: None
    assert published(publisher, 4, named) == 3
    world.check()


def test_a_newer_epoch_ends_an_older_one(world: World) -> None:
    old = world.publisher()
    _, _, named = world.make(20)
    _, _, more = world.make(20)
    assert published(old, 1, named) == 20
    new = world.publisher()
    assert published(new, 2, more) == 20
    with pytest.raises(FencedError):
        published(old, 3, world.make(1)[2])
    world.expected = {p: [r for r in own if r[0] != 1041] for p, own in world.expected.items()}
    world.check()


def test_leaving_the_epoch_ends_a_publication_between_two_transactions(world: World) -> None:
    publisher = world.publisher()
    taken, contents, named = world.make(30)
    publisher.hold(taken, contents)
    inside, go_on = threading.Event(), threading.Event()

    def wait(at: str) -> None:
        if at == "commit":
            inside.set()
            assert go_on.wait(WAIT_S)

    world.system.at = wait
    publication = publisher.publish(Publish(1, tuple(named), 1))
    queued = publisher.publish(Publish(2, tuple(named), 2))
    assert inside.wait(WAIT_S)
    assert publisher.status() == "publishing record 1"
    stopping = threading.Thread(target=publisher.stop)
    stopping.start()
    while not publisher._stopping.is_set():
        pass
    go_on.set()
    stopping.join(WAIT_S)
    for each in (publication, queued):
        with pytest.raises(ContainerLostError, match="leaves epoch 1"):
            each.await_end(WAIT_S)
    with pytest.raises(ContainerLostError):
        publisher.publish(Publish(1, tuple(named), 1))
    assert 0 < sum(map(len, read_all(world.system).values())) < 30
    world.system.at = lambda _: None
    assert published(world.publisher(), 1, named) == 30
    world.check()


def test_an_object_that_is_damaged_or_gone_is_named(world: World) -> None:
    publisher = world.publisher()
    _, _, named = world.make(3)
    data = world.objects.get(named[0].key)
    world.objects.delete(named[0].key)
    with pytest.raises(NotFoundError, match=named[0].key):
        published(publisher, 1, named)
    world.objects.put_if_absent(named[0].key, data[:-1] + b"\1")
    with pytest.raises(CorruptError, match=named[0].key):
        published(publisher, 1, named)
    world.objects.delete(named[0].key)
    world.objects.put_if_absent(named[0].key, data)
    assert published(publisher, 1, named) == 3
    world.objects.delete(named[0].key)
    assert published(world.publisher(), 1, named) == 3  # what is published is not read again
    world.check()


def test_a_system_that_is_not_configured_is_named(world: World) -> None:
    publisher = world.publisher()
    _, _, named = world.make(3)
    publisher._systems = {}
    with pytest.raises(ConfigError, match="the system `m`, which is not configured"):
        published(publisher, 1, named)


def test_thousands_of_publications_keep_nothing(world: World) -> None:
    publisher = world.publisher()
    for slot in range(1, 100):
        taken, contents, named = world.make(2)
        publisher.hold(taken, contents)
        assert published(publisher, slot, named) == 2
    assert publisher._held == {}
    assert len(publisher._known) == PARTITIONS
    assert world.threads() == 1
    world.check()


def test_an_output_that_knows_of_a_later_record_than_the_log_is_not_published_to(world: World) -> None:
    """The number of a record is new to its outputs, or the job's folder was restored from a backup."""
    taken, contents, named = world.make(PARTITIONS)
    first = world.publisher()
    first.hold(taken, contents)
    assert published(first, 7, named) == PARTITIONS
    _, _, others = world.make(PARTITIONS)
    for slot in (7, 6):
        publication = world.publisher().publish(Publish(slot, tuple(others), slot - 1))
        with pytest.raises(IncompatibleError, match=r"has output of record 7 of this job.*published is [56]:"):
            publication.await_end(WAIT_S)
    assert published(world.publisher(), 8, others) == PARTITIONS
    world.check()


def test_what_an_attempt_published_that_failed_later_is_no_later_record(world: World) -> None:
    *_, named = world.make(20)
    publisher = world.publisher()
    fails = [1]

    def fail(step: str) -> None:
        if step == "committed" and fails:
            fails.clear()
            raise RetryableError("away")

    world.system.at = fail
    publication = publisher.publish(Publish(3, tuple(named), 2))
    assert publication.await_end(WAIT_S)
    assert not fails
    world.check()


@pytest.mark.parametrize("count", [3, 8])
def test_a_partition_in_several_objects_of_which_some_are_published(world: World, count: int) -> None:
    """Chunks of a partition are numbered from object to object."""
    *_, named = world.make(24, size=1000)
    assert max(sum(ssp.partition == p for each in named for ssp in each.parts) for p in range(PARTITIONS)) > 1
    came = 0

    def die(at: str) -> None:
        nonlocal came
        came += at == "committed"
        if came == count:
            raise FencedError("dead")

    world.system.at = die
    publication = world.publisher().publish(Publish(1, tuple(named), 0))
    with pytest.raises(FencedError):
        publication.await_end(WAIT_S)
    world.system.at = lambda _: None
    assert published(world.publisher(), 1, named) == 24
    world.check()


def test_a_system_with_little_in_each_of_many_objects(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages do not keep all these objects in memory until they make a transaction."""
    monkeypatch.setattr(publisher_module, "OPEN_BYTES", 20_000)
    tasks = 12
    systems = {name: HookedSystem(MemorySystem(name)) for name in ("big", "small")}
    named, expected = [], {}
    for system in systems.values():
        system.admin().create_stream("out", tasks)
    for task in range(tasks):
        sent = {"big": [record(task, 6000)], "small": [record(task + tasks)]}
        parts = {}
        for name, records in sent.items():
            data = payload(records)
            parts[SystemStreamPartition(name, "out", task)] = [KeptPacket(1, len(data), data)]
            expected[name, task] = records
        contents = objects_of(OutboxSnapshot(task, parts, Spool()), f"a-1/outbox/1-1-{task}-{{}}".format)
        for description, data in (encode(each, task) for each in contents):
            world.objects.put_if_absent(description.key, data)
            named.append(description)
    began = 0

    def count(step: str) -> None:
        nonlocal began
        began += step == "begin"

    systems["small"].at = count
    publisher = world.publisher()
    publisher._systems = systems
    assert published(publisher, 1, named) == 2 * tasks
    assert began > 1
    assert {(name, p): own for name, system in systems.items() for p, own in read_all(system).items()} == expected
