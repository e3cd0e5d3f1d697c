"""A wing that another distribution brings: no line of Penstock knows it."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from penstock import wing
from penstock.admin.jobs import open_job
from penstock.base import plugins
from penstock.checkpoint.sections import Section, Sections
from penstock.cli import main as cli
from penstock.config import keys
from penstock.config.key import AbsentDefault, Key, Settings, Topic
from penstock.config.kinds import Number
from penstock.config.settings import KEYS, TaskSettings
from penstock.container.handlers import answers, serve
from penstock.dashboard.watch import look_at
from penstock.dashboard.work import History
from penstock.drain.requests import DrainSection
from penstock.driver.part import DriverPart
from penstock.driver.show.exports import MetricsExports
from penstock.errors import ConfigError, FencedError, IncompatibleError, PenstockError
from penstock.facts import Column, Facts, FactTable
from penstock.testing.in_process import InProcessDriver
from penstock.wing import Wing, check_wings, wings
from penstock.wire.protocol import Call, Identity, Request
from tests.support.tools.fixtures import fixture_of
from tests.support.tools.pages import blocks
from tests.support.tools.places import ROOT
from tests.support.tools.wings import wings_of
from tests.support.world.sums_job import SumsWorld, drain_and_commit

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


world = fixture_of(lambda installed, tmp_path: SumsWorld(tmp_path))


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
    driver = world.started(audit_every_commits=2)
    for _ in range(3):
        world.put(1, 2, 3)
        drain_and_commit(driver)
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
    sections = json.loads(invoke(world, "checkpoint", "show", "sums", "--json"))["sections"]
    (section,) = (each for each in sections if each["wing"] == "audit")
    assert section == {"wing": "audit", "needed": True, "bytes": len(json.dumps(asdict(found), separators=(",", ":")))}
    shown = invoke(world, "checkpoint", "show", "sums")
    assert re.search(rf"^ audit +yes +{section['bytes']} *$", shown, re.MULTILINE), shown


def test_the_next_start_reads_its_section_back(world: SumsWorld, installed: Any) -> None:
    for starts in (1, 2, 3):
        driver = world.driver()
        driver.loop.start()
        driver.close()
        assert world.checkpoints[-1].section(installed.RECORDED).commits == starts


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
    driver = world.started()
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
    (listed,) = blocks(page, "text")
    assert set(re.findall(r"(\w+\.py) ", listed)) == {file.name for file in (OUTSIDE / "audit").glob("*.py")}
    driver = world.started()
    shows(driver)
    printed = [invoke(world, *line.split()[1:]) for line in commands.splitlines()]
    assert [name in printed[0], printed[1]] == [True, "0 runs, 1 commits\n"]


def test_its_call_reaches_the_container_that_it_is_meant_for(world: SumsWorld, installed: Any) -> None:
    driver = world.started()
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


def test_a_checkpoint_that_needs_it_is_listed_not_restored(world: SumsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = world.started()
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


class Entry(EntryPoint):
    """An entry point of a distribution that is not installed, whose object is given."""

    def __init__(self, name: str, wing: object, distribution: str = "given-wing") -> None:
        super().__init__(name, f"{distribution}:WING", plugins.OUTSIDE_WINGS)
        given = SimpleNamespace(name=distribution, version="2.1")
        vars(self).update(wing=wing, dist=given)

    def load(self) -> Any:
        return vars(self)["wing"]


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Lets distributions bring these entry points meanwhile, and no other ones."""

    def bring(*entries: EntryPoint) -> None:
        monkeypatch.setattr(plugins, "entry_points", lambda group: entries)
        _forget()

    yield bring
    monkeypatch.undo()
    _forget()


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("no_such_module:AUDIT", "cannot be loaded from no_such_module:AUDIT: ModuleNotFoundError"),
        ("json:nothing", "cannot be loaded from json:nothing: AttributeError"),
        ("json:loads", "is a function, and no Wing"),
    ],
)
def test_a_broken_wing_is_refused_and_hides_no_command(place: str, problem: str, brought: Callable[..., None]) -> None:
    brought(EntryPoint("broken", place, plugins.OUTSIDE_WINGS))
    with pytest.raises(ConfigError, match=problem):
        wings()
    with pytest.raises(ConfigError, match=f"remove the distribution that brings `{place}`"):
        keys.describe()
    assert "Show whether a job is running" in CliRunner().invoke(cli.app, ("--help",)).output


def settings(*given: Key[Any]) -> type[Settings]:
    return type("GivenSettings", (Settings,), {f"key{n}": each for n, each in enumerate(given)})


def number(name: str, otherwise: Any = "1", kind: Any = Number(1), topic: Any = Topic.COMMITS) -> Key[Any]:  # noqa: B008
    return Key(name, topic, kind, otherwise, "A key.", "Penstock")


ANSWERED = Call("given-count", Request, int)
MODULE = "tests.unit.test_wing"
FAULTS = {
    "a name with a dash": (Wing("given-wing"), "has a name that is not made of letters"),
    "an empty name": (Wing(""), "has a name that is not made of letters"),
    "no text as name": (Wing(3), "has a declaration that cannot be read"),  # type: ignore[arg-type]
    "a wing of Penstock": (Wing("standby"), "has the name of a wing of Penstock"),
    "a command": (Wing("status"), "has the name of the command `penstock status`"),
    "a section of the kernel": (Wing("time"), "has the name of a section that checkpoints have without it"),
    "another entry point": (Wing("other"), "has the entry point `given`: give both one name"),
    "no place": (Wing("given", driver="audit"), "names its `driver` as 'audit', which has not the form"),
    "a dotted place": (Wing("given", facts="audit.facts.f"), "names its `facts` as 'audit.facts.f', which has not"),
    **{
        f"no module of {part}": (
            Wing("given", **{part: "json.nowhere:Part"}),  # type: ignore[arg-type]
            f"names its `{part}` as `json.nowhere:Part`, and there is no module `json.nowhere`",
        )
        for part in ("start", "driver", "container", "facts", "commands")
    },
    "no module on a host": (
        Wing("given", driver="json:X", on_host={"spark": "no_such:f"}),
        "names its `on_host` for `spark` as `no_such:f`, and there is no module `no_such`",
    ),
    "a module in a module": (Wing("given", start="json.decoder.more:X"), "there is no module `json.decoder.more`"),
    "no part for a host's": (
        Wing("given", on_host={"spark": "json:loads"}),
        "has `on_host`, and no part in the driver",
    ),
    "no part for calls": (Wing("given", calls=(ANSWERED,)), "has calls, and no part in containers"),
    "no call": (Wing("given", calls=("open",), container="json:X"), "has 'open' among its `calls`, which is no"),  # type: ignore[arg-type]
    "no calls": (Wing("given", calls=ANSWERED, container="json:X"), "cannot be read, because of TypeError"),  # type: ignore[arg-type]
    "a call of the kernel": (
        Wing("given", calls=(Call("open", Request, int),), container="json:X"),
        "has a call `open`, and so has Penstock",
    ),
    "a call of a wing": (
        Wing("given", calls=(Call("publish", Request, int),), container="json:X"),
        "has a call `publish`, and so has Penstock",
    ),
    "a call twice": (Wing("given", calls=(ANSWERED, ANSWERED), container="json:X"), "and so has the same wing"),
    "no settings": (Wing("given", keys=Number), "as its `keys`, which is no subclass of Settings"),  # type: ignore[arg-type]
    "settings that are made": (Wing("given", keys={}), "has {} as its `keys`"),  # type: ignore[arg-type]
    **{
        f"the key {name}": (
            Wing("given", keys=settings(number(name))),
            f"declares the key `{name}`, which cannot be told from `{other}` of Penstock",
        )
        for name, other in {
            "task.commit.ms": "task.commit.ms",
            "app.given.every": "app.<key>",
            "spark.given": "spark.<key>",
            "systems.<name>.given": "systems.<name>.<option>",
            "stores.<name>.factory": "stores.<name>.factory",
            "stores.<name>.more.factory": "stores.<name>.factory",
            "stores.given.factory": "stores.<name>.factory",
            "task.<name>": "task.commit.ms",
        }.items()
    },
    "a key twice": (
        Wing("given", keys=settings(number("given.a"), number("given.a"))),
        "declares the key `given.a`, which cannot be told from `given.a` of the same wing",
    ),
    "no kind": (Wing("given", keys=settings(number("given.a", kind=int))), "which is no ValueKind, such as `Number"),
    "no topic": (Wing("given", keys=settings(number("given.a", topic="x"))), "with 'x', which is no Topic"),
    "a refused default": (
        Wing("given", keys=settings(number("given.a", "0"))),
        "declares the key `given.a` with the default `0` (out of range), which is not an integer, at least 1",
    ),
    "a default of no text": (
        Wing("given", keys=settings(number("given.a", 1))),
        "declares the key `given.a` with the default 1: a default is the text that a user would write",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_a_wing_declares_is_checked_when_it_is_found(
    case: str, brought: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """By whoever asks first, and the error names the wing, its distribution and what to do."""
    wing, fault = FAULTS[case]
    brought(Entry("given" if wing.name in {"other", 3} else wing.name, wing))
    for ask in (wings, keys.describe):
        with pytest.raises(ConfigError) as caught:
            ask()
        assert str(caught.value).startswith(f"the wing `{wing.name}` ")
        assert fault in str(caught.value)
        assert str(caught.value).endswith(". Mend the wing, or remove the distribution `given-wing` 2.1")
    assert "Show whether a job is running" in CliRunner().invoke(cli.app, ("--help",)).output
    assert f"warning: {caught.value}\n" == capsys.readouterr().err


@given(data=st.data())
def test_a_key_of_a_wing_takes_no_text_from_another_key(data: st.DataObject) -> None:
    """Any key is refused that takes a text which was another key's, and any other one is accepted."""
    words = st.sampled_from(["task", "commit", "ms", "stores", "<name>", "factory", "app", "given", "changelog"])
    parts = data.draw(st.lists(words, min_size=2, max_size=4).filter(lambda found: found[1:].count("<name>") < 2))
    assume(parts[0] != "<name>")
    mine = number(".".join(parts))
    refused = any("cannot be told from" in fault for fault in keys.faults_of(settings(mine), dict.fromkeys(KEYS, "P")))
    for own in KEYS:
        text = own.full(data.draw(st.sampled_from(["x", "x.y", mine.full("x")])))
        taken = mine.name == text or (mine.is_pattern and _fills(mine, text))
        assert refused or not taken, (mine.name, own.name, text)


def _fills(key: Key[Any], text: str) -> bool:
    return re.fullmatch(f"{re.escape(key.prefix)}.+{re.escape(key.suffix)}", text) is not None


def test_what_a_wing_may_declare(brought: Callable[..., None]) -> None:
    declared = settings(
        number("given.every"),
        number("stores.<name>.given.ms", AbsentDefault("never")),
        number("given.more", TaskSettings.commit_ms),
    )
    brought(
        Entry("given", Wing("given", (ANSWERED,), declared, container="json:X", on_host={})),
        Entry("more", Wing("more", facts="json.decoder:f"), "more-wings"),
    )
    assert [each.name for each in wings()][-2:] == ["given", "more"]
    assert {each.name for each in keys.describe()} >= {"given.every", "stores.<name>.given.ms", "given.more"}


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        (Wing("other", keys=settings(number("given.a"))), "the key `given.a`, which cannot be told from `given.a` of"),
        (Wing("other", calls=(ANSWERED,), container="json:X"), "has a call `given-count`, and so has"),
    ],
)
def test_two_wings_that_take_the_same(other: Wing, fault: str, brought: Callable[..., None]) -> None:
    first = Wing("given", (ANSWERED,), settings(number("given.a")), container="json:X")
    brought(Entry("other", other, "other-wing"), Entry("given", first))
    with pytest.raises(ConfigError, match=f"the wing `other` .*{fault} the wing `given`.*`other-wing` 2.1"):
        wings()


def test_two_wings_of_one_name_are_refused_and_both_distributions_named(brought: Callable[..., None]) -> None:
    brought(Entry("given", Wing("given")), Entry("given", Wing("given"), "other-wing"))
    with pytest.raises(ConfigError, match=r"bring `given` .*: the distribution `given-wing` 2.1 and .* `other-wing`"):
        wings()


def test_nothing_of_a_wing_is_imported_when_it_is_checked(brought: Callable[..., None], tmp_path: Path) -> None:
    for name in ("heavy/__init__", "heavy/parts/__init__", "heavy/parts/driver"):
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("raise MemoryError\n")
    sys.path.insert(0, str(tmp_path))
    try:
        brought(Entry("given", Wing("given", driver="heavy.parts.driver:Driver")))
        assert wings()[-1].name == "given"
        with pytest.raises(ConfigError, match=r"the wing `given` cannot be used here: .* because of MemoryError"):
            wings()[-1].load(wings()[-1].driver)
    finally:
        sys.path.remove(str(tmp_path))
    assert "heavy" not in sys.modules


NO_TYPER = object()


@pytest.mark.parametrize("place", ["json:nothing", f"{MODULE}:NO_TYPER"])
def test_commands_that_cannot_be_loaded_name_the_wing(place: str, brought: Callable[..., None]) -> None:
    brought(Entry("given", Wing("given", commands=place, help="Given.")))
    assert "Given." in CliRunner().invoke(cli.app, ("--help",)).output
    result = CliRunner().invoke(cli.app, ("given", "x"))
    assert result.exit_code == 2
    assert f"the wing `given` cannot be used here: `{place}`" in " ".join(result.output.split())


@pytest.mark.parametrize("part", ["start", "driver", "container"])
@pytest.mark.parametrize("place", ["json:nothing", "json:JSONDecoder", "json:loads"])
def test_a_part_that_is_none_names_the_wing(
    part: str, place: str, brought: Callable[..., None], tmp_path: Path
) -> None:
    brought(Entry("given", Wing("given", **{part: place})))  # type: ignore[arg-type]
    world = SumsWorld(tmp_path)
    try:
        with pytest.raises(PenstockError, match=f"the wing `given` cannot be used here: `{place}`"):
            world.driver().loop.start()
    finally:
        world.close()


@dataclass(frozen=True)
class Odd:
    """A section with a field that may be written as anything."""

    count: int = 0


ODD = Section("odd", Odd)


def fails(*_: object) -> Any:
    raise KeyError("no such count")


def lost(*_: object) -> Any:
    raise FencedError("another one")


@pytest.mark.parametrize(
    ("sections", "kind", "fault"),
    [
        (fails, PenstockError, r"gives no section for .*: KeyError\('no such count'\)"),
        (lost, FencedError, "gives no section for a checkpoint's record: another one"),
        (lambda *_: None, PenstockError, "gives no section for .*: TypeError"),
        (lambda *_: {"audit": 1}, PenstockError, "gives the section `'audit'`"),
    ],
)
@pytest.mark.parametrize("hook", ["sections", "last_commit"])
def test_a_section_that_cannot_be_given_names_the_wing(
    hook: str, sections: Any, kind: type[PenstockError], fault: str, world: SumsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.driver.AuditDriver." + hook, sections)
    driver = world.driver()

    def run() -> None:
        driver.loop.start()
        driver.loop.finish()

    with pytest.raises(kind, match=f"the wing `audit` {fault}"):
        run()


@pytest.mark.parametrize("value", [Odd("one"), Odd(2**70), object()])  # type: ignore[arg-type]
def test_a_section_that_could_not_be_read_again_is_not_written(value: object) -> None:
    with pytest.raises(PenstockError, match=r"the section `odd` of a checkpoint's record cannot be written.*`odd`"):
        Sections.of({ODD: value})


def test_the_commands_whose_names_are_taken_are_those_of_penstock() -> None:
    assert set(plugins.COMMANDS) == cli.COMMANDS.keys()


def test_each_wing_of_the_package_has_tests_under_its_name() -> None:
    found = {wing for file in (ROOT / "tests").rglob("test_*.py") for wing in wings_of(file)}
    assert found == plugins.WINGS.keys() == {each.name for each in wings()}
