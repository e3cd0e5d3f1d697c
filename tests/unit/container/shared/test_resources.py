"""Resources that all tasks of a container share."""

from __future__ import annotations

from pathlib import Path

import penstock as ps
from penstock.config import load_config
from penstock.container.shared import EpochResources
from penstock.graph.topology import plan_topology
from penstock.runtime.settings import RuntimeSettings
from penstock.wire.ports import JobPackage


def test_what_a_restore_finds_to_be_damaged_the_backup_of_the_same_backend_knows(tmp_path: Path) -> None:
    app = ps.StreamApplication("a")
    app.input("m.in")
    folders = {"job.root": str(tmp_path / "jobs"), "job.logged.store.base.dir": str(tmp_path / "state")}
    config = load_config(overrides={"job.name": "a", **folders})
    package = JobPackage(plan_topology(app.graph()), RuntimeSettings("a", 2, {}), config, "uid", "probe", {})
    resources = EpochResources(package, "c", 1, 2)
    restoring = resources.backend_context("changelog-files", 0, ("totals",))
    backing_up = resources.backend_context("changelog-files", 0, ("totals", "others"))
    restoring.damaged.add("a/snapshot.zip")
    assert backing_up.damaged == {"a/snapshot.zip"}
    assert resources.backend_context("blob", 0, ("totals",)).damaged == set()
    resources.close()
