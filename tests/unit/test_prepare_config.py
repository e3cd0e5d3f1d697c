"""What an application and a configuration have to agree on before anything is started."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.api.graph import ApplicationGraph
from penstock.config.load import load_config
from penstock.engine.prepare import check_config
from penstock.errors import ConfigError


def graph(*stores: str) -> ApplicationGraph:
    app = ps.StreamApplication("flights")
    for store in stores:
        app.store(store, key=ps.String(), value=ps.Json())
    app.input("local.trips").process(ps.StreamTask, stores=list(stores), id="totals")
    return app.graph()


def check(*stores: str, **config: object) -> None:
    check_config(graph(*stores), load_config(overrides={"job.name": "flights", **config}, environ={}))


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
