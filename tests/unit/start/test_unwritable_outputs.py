"""A start is refused for an output that its system cannot write, before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import ConfigError
from penstock.system.files.system import FilesSystem
from tests.support.world.world import World

SCHEMA = {"schema": "n INT"}


@pytest.mark.parametrize(
    ("stream", "options", "reason"),
    [
        ("rides", SCHEMA, "Penstock cannot write to `local.rides`"),
        ("new", {}, "need a schema"),
        ("new", {**SCHEMA, "order": "name"}, "`systems.local.order` is for inputs"),
    ],
)
@pytest.mark.parametrize("role", ["output", "dead letters"])
def test_nothing_is_made_for_a_start_that_is_refused(
    tmp_path: Path, stream: str, options: dict[str, str], reason: str, role: str
) -> None:
    """Neither the outputs that could be made, nor anything in the folders."""
    (folder := tmp_path / "lake" / "rides").mkdir(parents=True)
    (folder / "hour-0.csv").write_bytes(b"n\n1\n")
    world = World(tmp_path / "work", "rides", ("in",))
    given = {"folder": str(tmp_path / "lake"), "listing": str(tmp_path / "listing"), **options}
    world.systems["local"] = FilesSystem.configured("local", given)
    app = ps.StreamApplication("rides")
    source = app.input("m.in")
    source.send_to(app.output("m.first"))
    if role == "output":
        source.send_to(app.output(f"local.{stream}"))
    keys = {} if role == "output" else {"task.dead.letter.stream": f"local.{stream}"}
    with pytest.raises(ConfigError, match=reason):
        world.make(app.graph(), keys).loop.start()
    assert world.system.admin().streams() == ["in"]
    assert [each.name for each in (tmp_path / "lake").rglob("*")] == ["rides", "hour-0.csv"]
    world.close()
