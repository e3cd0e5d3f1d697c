"""A wing that another distribution brings: no line of Penstock knows it."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any

import pytest
from typer.testing import CliRunner

from penstock import wing
from penstock.admin.jobs import open_job
from penstock.base import plugins
from penstock.checkpoint.sections import Section
from penstock.cli import main as cli
from penstock.config import keys
from penstock.container.process.handlers import answers, serve
from penstock.dashboard.watch import look_at
from penstock.dashboard.work import History
from penstock.drain.requests import DrainSection
from penstock.driver.part import DriverPart
from penstock.driver.show.exports import MetricsExports
from penstock.errors import ConfigError, IncompatibleError, PenstockError
from penstock.facts import Column, Facts, FactTable
from penstock.testing.in_process import InProcessDriver
from penstock.wing import Wing, check_wings, wings
from penstock.wire.protocol import Identity
from tests.support.tools.pages import blocks
from tests.support.tools.places import ROOT
from tests.support.tools.wings import wings_of
from tests.support.world.sums_job import SumsWorld, drain

OUTSIDE = ROOT / "tests" / "support" / "outside"
KNOWN = (
    plugins.from_outside,
    wing.wings,
    wing.calls,
    keys.describe,
    keys.exact,
    keys.patterns,
    keys.find,
    cli.commands,
)
"""Functions whose answers a process keeps."""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the wing, whose distribution is installed meanwhile."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    _forget()
    import audit.wing

    yield audit.wing
    monkeypatch.undo()
    _forget()
    for name in [name for name in sys.modules if name.partition(".")[0] == "audit"]:
        del sys.modules[name]


def _forget() -> None:
    for each in KNOWN:
        each.cache_clear()


@pytest.fixture
def world(installed: Any, tmp_path: Path) -> Iterator[SumsWorld]:
    world = SumsWorld(tmp_path)
    yield world
    world.close()


def shows(driver: InProcessDriver) -> None:
    """Write what commands read."""
    documents = [each for part in driver.loop.parts.wings for each in part.shown()]
    MetricsExports(driver.job, driver.job.claim.run_id, driver.board, lambda: True, shown=documents).close()


def invoke(world: SumsWorld, *arguments: str) -> str:
    config = ("-c", f"job.root={world.root}")
    result = CliRunner().invoke(cli.app, (*arguments, *config))
    assert result.exit_code == 0, result.output
    return result.output


def test_its_call_option_facts_and_command(world: SumsWorld, installed: Any) -> None:
    driver = world.driver(audit_every_commits=2)
    driver.loop.start()
    for _ in range(3):
        world.put(1, 2, 3)
        drain(driver)
        driver.loop.commit()
    shows(driver)
    world.check(driver)
    status = json.loads(invoke(world, "status", "sums", "--json", "--no-wait"))
    assert status["wings"]["audit"]["lines"]["audited commits"] == 4
    batches = driver.loop.boundary.batch
    runs = {row["container"]: row["runs"] for row in status["wings"]["audit"]["tables"][0]["rows"]}
    assert set(runs.values()) == {batches}
    found = world.checkpoints[-1].section(installed.RECORDED)
    assert (found.commits, found.runs) == (4, batches * len(runs))
    text = invoke(world, "status", "sums", "--no-wait")
    assert re.search(r"^audited commits +4 *$", text, re.MULTILINE), text
    assert re.search(rf"^ container +runs *\n[ ─]+\n.+ {batches} *$", text, re.MULTILINE), text
    with open_job("sums", assignments=[f"job.root={world.root}"]) as job:
        page = look_at(job, History(), lambda: None)
    assert ("audited commits", "4") in page["facts"]
    (table,) = [each for each in page["tables"] if each["title"] == "Audit"]
    assert (table["columns"], {row[1] for row in table["rows"]}) == (["container", "runs"], {f"{batches:,}"})
    assert invoke(world, "audit", "runs", "sums") == f"{sum(runs.values())} runs, 4 commits\n"


@dataclass(frozen=True)
class Misspelt:
    """Its annotation names no type, which shows when a table is laid out."""

    count: Annotated[intt, Column("count")]  # type: ignore[name-defined]  # noqa: F821


@dataclass(frozen=True)
class Untold:
    """Its text cannot be made."""

    count: Annotated[int, Column("count", lambda count: count / 0)]


def raises(*_: object) -> Facts:
    raise KeyError("facts")


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (raises, "KeyError: 'facts'"),
        (lambda *_: None, "TypeError: it gives None in place of Facts"),
        (lambda *_: Facts({}, (FactTable("T", [Misspelt(1)]),)), "NameError: name 'intt' is not defined"),
        (lambda *_: Facts({}, (FactTable("T", [Untold(1)]),)), "ZeroDivisionError: division by zero"),
        (lambda *_: Facts({}, (FactTable("T", [object()]),)), "TypeError: "),
        (lambda *_: sys.exit("no facts"), None),
    ],
)
def test_facts_that_fail_hide_nothing_else_of_the_job(
    world: SumsWorld, facts: Callable[..., object], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for what is meant to end the process."""
    driver = world.driver()
    driver.loop.start()
    shows(driver)
    monkeypatch.setattr("audit.facts.audit_facts", facts)
    if reason is None:
        arguments = ("status", "sums", "--no-wait", "-c", f"job.root={world.root}")
        assert CliRunner().invoke(cli.app, arguments).exit_code != 0
        return
    text = " ".join(invoke(world, "status", "sums", "--no-wait").split())
    assert f"wing audit its facts cannot be read, because of {reason}" in text
    status = json.loads(invoke(world, "status", "sums", "--json", "--no-wait"))
    assert list(status["wings"]["audit"]["lines"]) == ["wing audit"]
    assert status["checkpoints"] == len(world.checkpoints)


def test_the_page_about_wings_shows_it_whole_and_its_commands_run(world: SumsWorld) -> None:
    page = (ROOT / "docs" / "wings.md").read_text("utf-8")
    files = {file.read_text("utf-8") for file in (OUTSIDE / "audit").glob("*.py") if file.name != "__init__.py"}
    assert set(blocks(page)) == files
    (entry_point,), (commands,) = blocks(page, "toml"), blocks(page, "sh")
    ((name, place),) = tomllib.loads(entry_point)["project"]["entry-points"]["penstock.wings"].items()
    installed = next(OUTSIDE.glob("*.dist-info/entry_points.txt")).read_text("utf-8")
    assert installed == f"[penstock.wings]\n{name} = {place}\n"
    driver = world.driver()
    driver.loop.start()
    shows(driver)
    printed = [invoke(world, *line.split()[1:]) for line in commands.splitlines()]
    assert [name in printed[0], printed[1]] == [True, "0 runs, 1 commits\n"]


def test_its_call_reaches_the_container_that_it_is_meant_for(world: SumsWorld, installed: Any) -> None:
    driver = world.driver()
    driver.loop.start()
    container, call = driver.fleet.container_of(0), installed.COUNT_RUNS
    identity = Identity(container.incarnation, driver.loop.epoch)
    assert [call.decode(each) for each in serve(call, container, call.encode(identity, installed.CountRuns()))] == [
        installed.Runs(0)
    ]
    with pytest.raises(Exception, match="the call is of epoch"):
        list(answers(call, container, Identity(container.incarnation, 99), installed.CountRuns()))


def test_its_options_are_keys_as_others_are(world: SumsWorld) -> None:
    with pytest.raises(ConfigError, match=r"audit\.every\.commits"):
        world.driver(audit_every_commits=0)
    with pytest.raises(ConfigError, match=r"did you mean `audit\.every\.commits`"):
        world.driver(audit_evry_commits=1)
    assert "audit.every.commits" in CliRunner().invoke(cli.app, ("config", "keys", "audit")).output


def test_a_checkpoint_that_needs_it_is_listed_and_not_restored_without_it(
    world: SumsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = world.driver()
    driver.loop.start()
    driver.close()
    monkeypatch.undo()
    _forget()
    assert json.loads(invoke(world, "checkpoint", "list", "sums", "--json"))
    with pytest.raises(IncompatibleError, match="it needs `audit`, which wrote a section of it"):
        world.driver()


@pytest.mark.parametrize("hook", ["sections", "last_commit"])
def test_a_section_of_another_name_is_refused_before_a_record_has_it(
    world: SumsWorld, hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    audits = Section("audits", DrainSection)
    monkeypatch.setattr(DriverPart, hook, lambda *_: {audits: DrainSection(("x",))})
    driver = world.driver()

    def run() -> None:
        driver.loop.start()
        driver.loop.finish()

    with pytest.raises(PenstockError, match=r"gives the section `audits` .* one of the name `\w+` alone"):
        run()
    assert all("audits" not in record.sections.written for record in world.checkpoints)


@pytest.mark.usefixtures("installed")
def test_its_commands_are_listed_and_have_help() -> None:
    assert "Show what the audit has counted." in CliRunner().invoke(cli.app, ("--help",)).output
    assert "runs" in CliRunner().invoke(cli.app, ("audit", "--help")).output


def test_a_host_without_it_is_refused(installed: Any) -> None:
    names = tuple(each.name for each in wings())
    assert names[-1] == "audit"
    check_wings(names, "this host")
    with pytest.raises(ConfigError, match="container c1 does not have the wing `other`, which the driver has: install"):
        check_wings((*names, "other"), "container c1")


def test_without_a_distribution_nothing_is_there() -> None:
    assert "audit" not in {each.name for each in wings()}
    assert CliRunner().invoke(cli.app, ("audit", "runs", "x")).exit_code == 2


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("no_such_module:AUDIT", "cannot be loaded from no_such_module:AUDIT: ModuleNotFoundError"),
        ("json:nothing", "cannot be loaded from json:nothing: AttributeError"),
        ("json:loads", "is a function, and no Wing"),
        ("tests.unit.test_wing:SECOND_STANDBY", "two wings have the name `standby`"),
    ],
)
def test_a_broken_wing_is_refused_and_hides_no_command(
    place: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda group: (EntryPoint("broken", place, group),))
    _forget()
    try:
        with pytest.raises(ConfigError, match=problem):
            wings()
        assert "Show whether a job is running" in CliRunner().invoke(cli.app, ("--help",)).output
    finally:
        monkeypatch.undo()
        _forget()


SECOND_STANDBY = Wing("standby")


def test_each_wing_of_the_package_has_tests_under_its_name() -> None:
    found = {wing for file in (ROOT / "tests").rglob("test_*.py") for wing in wings_of(file)}
    assert found == plugins.WINGS.keys() == {each.name for each in wings()}
