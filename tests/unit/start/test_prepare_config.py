"""Application and configuration must agree before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock as ps
from penstock.api.retention import StreamRetention
from penstock.config.load import load_config
from penstock.errors import ConfigError, IncompatibleError
from penstock.graph.specs import ApplicationGraph
from penstock.job.identity import OwnedStreams
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.start.fit import check_config
from penstock.start.job_streams import JobStreams
from penstock.start.part import start_parts
from penstock.system.local import LocalSystem


def graph(*stores: str) -> ApplicationGraph:
    app = ps.StreamApplication("flights")
    for store in stores:
        app.store(store, key=ps.String(), value=ps.Json())
    app.input("local.trips").process(ps.StreamTask, stores=list(stores), id="totals")
    return app.graph()


def check(*stores: str, **config: object) -> None:
    check_config(graph(*stores), load_config(overrides={"job.name": "flights", **config}, environ={}), start_parts())


def test_a_store_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"`stores\.b\.\*` is configured, but the application has the stores: `a`"):
        check("a", **{"stores.b.factory": "memory"})


@pytest.mark.parametrize(
    "versions",
    [
        {"task.checkpoint.write.versions": "1"},
        {"task.checkpoint.write.versions": "1,2", "task.checkpoint.read.versions": "1"},
        {"task.checkpoint.write.versions": "1,2", "task.checkpoint.read.versions": "1,2"},
    ],
)
def test_a_version_that_cannot_hold_a_stores_markers(versions: dict[str, str]) -> None:
    streamed = {"stores.a.backup.factories": "blob,changelog-stream"}
    with pytest.raises(ConfigError, match=r"read in version 1 .* The stores `b`, `c` are not backed up to it"):
        check("a", "b", "c", **versions, **streamed)
    check("a", **versions, **streamed)
    check(**versions)


def test_versions_that_hold_everything() -> None:
    check("a", **{"task.checkpoint.write.versions": "1,2"})
    check("a", **{"task.checkpoint.read.versions": "1,2"})


def test_outputs_are_created_with_the_configured_retention(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock.start")
    app = ps.StreamApplication("flights")
    app.input("local.trips").send_to(app.output("local.copies"))
    config: dict[str, object] = {"systems.local.path": str(tmp_path), "streams.local.copies.retention.bytes": "2GB"}

    def create(**more: object) -> StreamRetention:
        overrides = {"job.name": "flights", **config, **more}
        streams = JobStreams.open(app.graph(), load_config(overrides=overrides, environ={}))
        try:
            owned = OwnedStreams(open_store("memory://outputs"), JobPaths("flights", "1"))
            assert streams.create_outputs(3, owned) == {"local.copies": 3}
            return streams.admins["local"].retention("copies")
        finally:
            streams.close()

    for _ in range(2):
        assert create() == StreamRetention(max_bytes=2 << 30)
    (created,) = [record.getMessage() for record in caplog.records]
    assert created == (
        "created the output `local.copies`, which did not exist, with 3 partitions; it keeps its messages: 2GB per "
        "partition"
    )
    with pytest.raises(IncompatibleError, match=r"2GB per partition; asked for: 7d, 2GB per partition.* stream retain"):
        create(**{"streams.local.copies.retention.ms": "7d"})
    LocalSystem("local", str(tmp_path)).admin().set_retention("copies", StreamRetention(max_age_ms=1))
    with pytest.raises(IncompatibleError, match="keeps its messages: 1ms"):
        create()
    config.clear()
    assert create(**{"systems.local.path": str(tmp_path)}) == StreamRetention(max_age_ms=1)


def test_retention_of_a_stream_that_is_no_output() -> None:
    with pytest.raises(ConfigError, match=r"`local.trips` is not an output .*penstock stream retain local.trips"):
        check(**{"streams.local.trips.retention.ms": "1d"})
    check(**{"task.dead.letter.stream": "local.dead", "streams.local.dead.retention.ms": "1d"})
    for wrong in ({"streams.local.x.retention.bytes": "1000"}, {"streams.local.x.retention.ms": "0"}):
        with pytest.raises(ConfigError, match="expected"):
            check(**wrong)


def test_a_consumer_group_needs_an_input_that_has_them() -> None:
    app = ps.StreamApplication("copy")
    app.input("local.in").send_to(app.output("local.out"))
    config = load_config(overrides={"job.name": "copy", "task.commit.group": "copies"}, environ={})
    with pytest.raises(ConfigError, match=r"`task\.commit\.group` = `copies`, and no input is of a system that has"):
        JobStreams.used(app.graph(), config)
