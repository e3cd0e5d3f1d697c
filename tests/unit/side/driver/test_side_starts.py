"""Starts with side inputs: the refusals, and checkpoints of a store that something else fills now."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.api.requests import StartpointOldest
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.config import load_config
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.job.paths import JobPaths
from penstock.side.inputs import SideInputService
from penstock.side.start import with_side_inputs
from penstock.start.job_streams import JobStreams
from penstock.start.startpoint_manager import StartpointManager
from penstock.testing.in_process import InProcessDriver
from tests.support.tools.fixtures import fixture_of
from tests.support.world.world import World


class Copy(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        self.own: ps.KeyValueStore[str, Any] = context.store("planes")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: Any, coordinator: Any) -> None:
        self.own[envelope.key] = envelope.value


class Job(World):
    """A job with an input of three partitions, so three tasks."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "side", ("in",), 3)

    def app(self, **planes: Any) -> ps.TaskApplication:
        app = ps.TaskApplication("side", Copy)
        app.input("m.in")
        app.store("planes", **planes)
        return app

    def start(self, app: ps.TaskApplication, **keys: object) -> InProcessDriver:
        return self.make(app.graph(), {"stores.planes.factory": "memory", **keys}, memory=False, containers=1)

    def refused(self, app: ps.TaskApplication, error: type[Exception], said: str, **keys: object) -> None:
        with pytest.raises(error, match=re.escape(said)):
            self.start(app, **keys)


world = fixture_of(Job)


class Note(ps.StreamTask):
    """Writes to `own` what `planes` has."""

    def init(self, context: ps.TaskContext) -> None:
        self.own: ps.KeyValueStore[str, Any] = context.store("own")
        self.planes: ps.KeyValueStore[str, Any] = context.store("planes")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: Any, coordinator: Any) -> None:
        self.own[envelope.key] = self.planes.get(envelope.key)


@pytest.mark.few(1)
@pytest.mark.parametrize("factory", ["memory", "rocksdb"])
def test_every_backend_beside_a_side_store(world: Job, factory: str) -> None:
    app = ps.TaskApplication("side", Note)
    app.input("m.in")
    app.store("own")
    app.store("planes", **SIDE)
    world.system.admin().create_stream("planes", 3)
    backends = "changelog-files,blob,changelog-stream"
    keys: dict[str, object] = {
        "stores.backup.factories": backends,
        "stores.own.changelog": "m.own",
        "stores.planes.factory": factory,
        "systems.m.samza.factory": "memory",
    }

    def put(stream: str, value: bytes) -> None:
        at = SystemStreamPartition("m", stream, 1)
        world.system.writer(None).append(at, [(0, b"N1", value)])

    put("planes", b'"A319"')
    put("in", b"0")
    driver = world.start(app, **keys)
    driver.loop.start()
    driver.loop.step()
    driver.loop.commit()
    driver.close()
    put("planes", b'"A320"')
    record = driver.log.read().latest
    assert record is not None
    assert list(record.stores) == ["own"]
    driver = world.start(app, **keys)
    driver.loop.start()
    container = driver.fleet.container_of(1)
    assert container.tasks[1].engine("own").get(b"N1") == b'"A319"'
    epoch = container.current
    assert epoch is not None
    assert epoch.wings.of(SideInputService).engine("planes", 1).get(b"N1") == b'"A320"'
    driver.close()


SIDE: dict[str, Any] = {"side_inputs": ["m.planes"]}


def test_a_stream_that_does_not_exist(world: Job) -> None:
    said = (
        "the side input `m.planes` of store `planes` does not exist: create it "
        "(`penstock stream create m.planes --partitions 3`), or correct its name"
    )
    world.refused(world.app(**SIDE), NotFoundError, said)
    world.refused(world.app(**SIDE, broadcast=True), NotFoundError, said)


def test_a_system_that_is_not_configured(world: Job) -> None:
    world.refused(world.app(side_inputs=["other.planes"]), ConfigError, "there is no system `other`")


@pytest.mark.parametrize(
    "key", ["streams.m.planes.samza.offset.default", "streams.m.planes.samza.reset.offset", "streams.m.planes.idle.ms"]
)
def test_a_side_input_has_no_position_to_configure(world: Job, key: str) -> None:
    world.system.admin().create_stream("planes", 3)
    value = {"default": "upcoming", "offset": "true", "ms": "5"}[key.rpartition(".")[2]]
    keys: dict[str, object] = {"systems.m.samza.factory": "memory", key: value}
    said = f"`{key}` (dict): `m.planes` is a side input of store `planes`, which has no position in a checkpoint"
    world.refused(world.app(**SIDE), ConfigError, said, **keys)
    app = world.app(**SIDE)
    app.input("m.planes")
    world.start(app, **keys).close()  # it is read twice, and these keys are of the input


def test_a_side_input_takes_no_startpoint(world: Job) -> None:
    world.system.admin().create_stream("planes", 3)
    paths = JobPaths("side", "1")
    manager = StartpointManager(world.objects, paths)
    manager.write_startpoint(SystemStreamPartition("m", "planes", 0), StartpointOldest())
    with pytest.raises(IncompatibleError, match=r"m\.planes.* is a side input of store `planes`"):
        world.start(world.app(**SIDE))


def test_what_takes_no_startpoint(world: Job) -> None:
    world.system.admin().create_stream("planes", 3)
    app = world.app(**SIDE)
    config = load_config(overrides={"job.name": "side", "systems.m.samza.factory": "memory"})
    graph = with_side_inputs(app.graph(), config)
    streams = JobStreams.open(graph, config, {"m": world.system})
    assert SystemStream("m", "planes") in streams.without_startpoints(graph, config)
    app.input("m.planes")
    graph = app.graph()
    streams = JobStreams.open(graph, config, {"m": world.system})
    assert SystemStream("m", "planes") not in streams.without_startpoints(graph, config)


def test_a_store_that_the_job_wrote_before(world: Job, caplog: pytest.LogCaptureFixture) -> None:
    driver = world.start(world.app())
    driver.loop.start()
    driver.loop.commit()
    driver.close()
    assert list(driver.log.read().latest.stores) == ["planes"]  # type: ignore[union-attr]
    world.system.admin().create_stream("planes", 3)
    driver = world.start(world.app(**SIDE))
    assert "the job wrote store `planes` until checkpoint" in caplog.text
    origin = driver.job.start.origin
    assert origin.restored == ()
    assert driver.job.plan.layout == {}
    driver.close()
    world.refused(world.app(value=ps.Long()), IncompatibleError, "store `planes` was written as")
