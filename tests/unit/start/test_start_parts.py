"""Parts of a start from outside the tree, and sections of wings that are not here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import penstock as ps
from penstock.base import plugins
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.sections import Sections, WrittenSection
from penstock.config.model import JobConfig
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.graph.serdes import with_serdes
from penstock.graph.specs import ApplicationGraph
from penstock.objects.store import ObjectStore
from penstock.start.check import check_start
from penstock.start.job import JobPlan
from penstock.start.job_streams import JobStreams
from penstock.start.part import DecidedStart, StartPart
from penstock.system.base import SystemAdmin
from penstock.testing.in_process import InProcessDriver
from penstock.wing import Wing, wings
from tests.support.stores.stopped_job import replaced_sections
from tests.support.world.sums_job import TASKS, SumsWorld, drain_and_commit, state
from tests.support.world.world import World


class PlainStart(StartPart):
    """Makes texts of all values, and writes a note into the job's folder."""

    refusal: ClassVar[str | None] = None
    """The hook that refuses the start."""
    steps: ClassVar[list[str]] = []
    output_is_there: ClassVar[list[bool]] = []
    claims: ClassVar[list[int]] = []

    def _at(self, step: str) -> None:
        self.steps.append(step)
        if step == self.refusal:
            raise IncompatibleError(f"{step} refuses")

    def complete(self, graph: ApplicationGraph, config: JobConfig) -> ApplicationGraph:
        self._at("complete")
        return with_serdes(graph, lambda serde: ps.String() if isinstance(serde, ps.Json) else serde)

    def connect(self, graph: ApplicationGraph, config: JobConfig) -> ApplicationGraph:
        self._at("connect")
        return graph

    def misfits(self, graph: ApplicationGraph, config: JobConfig) -> Iterable[ConfigError]:
        self.steps.append("misfits")
        return [ConfigError("misfits refuses")] if self.refusal == "misfits" else []

    def check_streams(self, graph: ApplicationGraph, admins: Mapping[str, SystemAdmin], tasks: int) -> None:
        assert {*admins, tasks} == {"m", 2}
        self._at("check_streams")

    def settle(self, start: DecidedStart) -> DecidedStart:
        self._at("settle")
        self.output_is_there.append(_is_there(start.streams))
        return replace(start, publisher=f"plain-{start.publisher}")

    def claimed(self, plan: JobPlan, objects: ObjectStore) -> None:
        self._at("claimed")
        self.claims.append(plan.claim.epoch)
        objects.put_if_absent(plan.paths.metadata("plain", "note"), plan.publisher.encode())

    def before_fences(self, plan: JobPlan, streams: JobStreams, view: LogView) -> None:
        self._at("before_fences")
        assert _is_there(streams)

    def for_containers(self, graph: ApplicationGraph) -> Mapping[str, int]:
        self._at("for_containers")
        return {"operators": len(graph.operators)}


PLAIN = Wing("plain", start=f"{__name__}:PlainStart")


def _is_there(streams: JobStreams) -> bool:
    try:
        return streams.admins["m"].partition_count("out") > 0
    except NotFoundError:
        return False


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setitem(plugins.WINGS, "plain", f"{__name__}:PLAIN")
    wings.cache_clear()
    for name in ("steps", "output_is_there", "claims"):
        monkeypatch.setattr(PlainStart, name, [])
    made = World(tmp_path, "plain", ("in",), 2)
    yield made
    made.close()
    wings.cache_clear()


def application() -> ApplicationGraph:
    app = ps.StreamApplication("plain")
    app.input("m.in").map(lambda text: text.upper()).send_to(app.output("m.out"))
    return app.graph()


def start(world: World) -> InProcessDriver:
    return world.make(application(), {}, until_latest=True)


def test_a_part_completes_the_application_and_writes_once_the_log_is_claimed(world: World) -> None:
    world.append("in", 0, (1, None, b"no json"))
    driver = start(world)
    driver.loop.run()
    assert [record[2] for record in world.records("out")] == [b"NO JSON"]
    before = ["complete", "connect", "misfits", "check_streams", "settle", "for_containers", "claimed", "before_fences"]
    assert PlainStart.steps == before
    assert (PlainStart.output_is_there, PlainStart.claims) == ([False], [1])
    assert driver.job.writer(1).name.startswith("plain-plain-1-")
    assert world.objects.get(world.paths.metadata("plain", "note")) == driver.job.plan.publisher.encode()


def test_containers_get_the_value_of_a_part(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = start(world)
    found: list[Mapping[str, Any]] = []
    opened = driver.fleet.open

    def look(opening: Any, package: Any, progress: Any) -> Any:
        found.append(package.of_start)
        return opened(opening, package, progress)

    monkeypatch.setattr(driver.fleet, "open", look)
    driver.loop.start()
    driver.loop.parts.epochs.rewind()
    assert [each["plain"] for each in found] == [{"operators": len(application().operators)}] * 2
    assert PlainStart.steps.count("for_containers") == 1, "before anything has run, and not again in a later epoch"
    assert PlainStart.steps.count("before_fences") == 2


@pytest.mark.parametrize("hook", ["complete", "connect", "misfits", "check_streams", "settle"])
def test_a_part_refuses_a_start_that_has_written_nothing_to_streams_or_the_log(
    world: World, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    monkeypatch.setattr(PlainStart, "refusal", hook)
    with pytest.raises((IncompatibleError, ConfigError), match=f"{hook} refuses"):
        start(world)
    with pytest.raises(NotFoundError):
        world.system.admin().partition_count("out")
    assert CheckpointLog(world.objects, world.paths).read().claims == ()


def test_a_check_of_a_start_refuses_alike_and_writes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    check_start(application(), world.load({}), world.store, world.systems)
    assert PlainStart.steps == ["complete", "connect", "misfits", "check_streams"]
    monkeypatch.setattr(PlainStart, "refusal", "misfits")
    with pytest.raises(ConfigError, match="misfits refuses"):
        check_start(application(), world.load({}), world.store, world.systems)


def test_a_part_that_refuses_the_fencing_of_outputs_ends_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = start(world)
    monkeypatch.setattr(PlainStart, "refusal", "before_fences")
    with pytest.raises(IncompatibleError, match="before_fences refuses"):
        driver.loop.start()
    assert world.checkpoints == ()


def test_commands_find_wings_and_complete_applications_without_arrow() -> None:
    code = (
        "import sys; from penstock.start.part import start_parts; from penstock.wing import wings; "
        "wings(), start_parts(); print([name for name in ('pyarrow', 'pyspark', 'rocksdict') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def summed(tmp_path: Path) -> Iterator[SumsWorld]:
    summed = SumsWorld(tmp_path)
    summed.put(*range(1, 2 * TASKS + 1))
    run(summed)
    yield summed
    summed.close()


def driver_of(summed: SumsWorld, from_checkpoint: str | None = None) -> InProcessDriver:
    return summed.make(summed.app.graph(), {}, containers=2, from_checkpoint=from_checkpoint)


def run(summed: SumsWorld, from_checkpoint: str | None = None) -> dict[str, int]:
    """Process everything and commit. Returns the state."""
    driver = driver_of(summed, from_checkpoint)
    driver.loop.start()
    drain_and_commit(driver)
    found = state(driver)
    driver.close()
    return found


def append_with(summed: SumsWorld, section: WrittenSection) -> CheckpointRecord:
    """Append the last checkpoint again, with a section `gifts`."""
    return replaced_sections(CheckpointLog(summed.objects, summed.paths), Sections({"gifts": section}))


def test_a_start_from_a_checkpoint_that_needs_it_is_refused(summed: SumsWorld) -> None:
    before = summed.checkpoints[-1]
    newest = append_with(summed, WrittenSection({"wrapped": 3}, needed=True))
    with pytest.raises(IncompatibleError) as refused:
        run(summed)
    assert str(refused.value) == (
        f"checkpoint {newest.id} cannot be restored here: it needs `gifts`, which wrote a section of it, and this "
        "installation of Penstock has nothing of that name. Install the distribution that brings it, or start from an "
        "older checkpoint (`from_checkpoint=...`)"
    )
    assert summed.checkpoints[-1] == newest, "nothing was written"
    assert run(summed, str(before.id)) == summed.sums
    assert summed.checkpoints[-1].sections.written.keys() == {"replay"}


def test_a_section_that_is_not_needed_is_not_read(summed: SumsWorld) -> None:
    """The records that follow have the sections of their own run."""
    newest = append_with(summed, WrittenSection({"wrapped": 3}))
    summed.put(7)
    assert run(summed) == summed.sums
    following = [each for each in summed.checkpoints if each.id > newest.id]
    assert following
    assert {name for each in following for name in each.sections.written} == {"replay"}
