"""Pages of the part "How to" have one form, and the commands on them run as written."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

import penstock as ps
from penstock.admin.configuration import check_configuration
from penstock.config import load_config
from penstock.objects.open import open_store
from penstock.system.registry import open_systems
from penstock.testing.in_process import InProcessDriver
from tests.support.tools.cli import call, command, own_home
from tests.support.tools.pages import blocks, run_example
from tests.support.tools.places import ROOT

NAV = (ROOT / "mkdocs.yml").read_text("utf-8").partition("  - How to:\n")[2].partition("  - Reference:\n")[0]
PAGES = [name for name in re.findall(r"(docs/\S+\.md)$", NAV, re.MULTILINE) if name != "docs/projects.md"]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


# ---- the form


@pytest.mark.parametrize("name", PAGES)
def test_a_page_begins_with_its_use_and_an_example_and_ends_with_what_can_go_wrong(name: str) -> None:
    title, use, *_ = (ROOT / name).read_text("utf-8").split("\n\n")
    assert re.fullmatch("# .+", title)
    assert re.match(r"[A-Z`\[]", use), "the first paragraph says when you need it"
    beginning, *sections = re.split(r"^## (.+)\n", (ROOT / name).read_text("utf-8"), flags=re.MULTILINE)
    assert re.search("^```(python|sh|yaml)\n", beginning, re.MULTILINE), "no example before the first section"
    assert sections[-4::2] == ["What can go wrong", "See also"]


def test_a_test_reads_each_page() -> None:
    read = {Path(text).name for file in sorted((ROOT / "tests").rglob("*.py")) for text in texts(file)}
    assert [name for name in PAGES if Path(name).name not in read] == [], "no test reads it and runs its example"


def texts(file: Path) -> Iterator[str]:
    """The names of pages in a file's code; docstrings do not count."""
    source = file.read_text("utf-8")
    if ".md" not in source:
        return
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from re.findall(r"^[\w/-]+\.md$", node.value)


# ---- the commands


class Flights(ps.StreamTask):
    def init(self, context: ps.TaskContext) -> None:
        self.aircraft: ps.KeyValueStore[str, int] = context.store("aircraft")

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
        self.aircraft[envelope.key] = self.aircraft.get(envelope.key, 0) + 1


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_home(tmp_path, monkeypatch)


def stopped_job(config: Mapping[str, object], commits: int = 4) -> None:
    """The job `flights`, which has counted messages of `local.flights` by key, and made a checkpoint of each batch."""
    app = ps.TaskApplication("flights", Flights)
    app.store("aircraft", value=ps.Long())
    app.input("local.flights")
    call("stream", "create", "flights", "--partitions", "2")
    loaded = load_config(overrides={"job.name": "flights", **config})
    driver = InProcessDriver(app.graph(), loaded, open_store(loaded.job.root), open_systems(loaded))
    driver.loop.start()
    for _ in range(commits):
        Path("in.jsonl").write_text('{"tail": "N14228"}\n{"tail": "N10156"}\n', "utf-8")
        call("stream", "publish", "flights", "--file", "in.jsonl", "--key", "tail")
        driver.loop.step()
        driver.loop.commit()
    driver.close()


def run(commands: str) -> str:
    """Run each line; what all of them print."""
    lines = [line.removeprefix("$ ") for line in commands.splitlines() if line.strip()]
    return "".join(call(*shlex.split(line, comments=True)[1:])[0] for line in lines)


def test_the_example_of_systems(tmp_path: Path) -> None:
    beginning = page("systems.md").split("\n## ")[0]
    printed, shown = run_example(beginning.replace("/srv/archive", str(tmp_path / "archive")), tmp_path)
    assert re.sub('"timestamp":[0-9]+', "", printed).endswith(re.sub('"timestamp":[0-9]+', "", shown))


def test_the_commands_of_startpoints() -> None:
    stopped_job({})
    (commands, *_) = blocks(page("startpoints.md"), "sh")
    assert "oldest" in run(commands)


def test_the_commands_of_state_backends() -> None:
    """As written: a job with two backups, whose store is read and compared."""
    beginning = page("state-backends.md").split("\n## ")[0]
    looking = page("state-backends.md").split("\n## Looking into the state\n")[1].split("\n## ")[0]
    (config,), (checks,), (reads,) = blocks(beginning, "yaml"), blocks(beginning, "sh"), blocks(looking, "sh")
    Path("job.yaml").write_text(config, "utf-8")
    stopped_job(yaml.safe_load(config))
    assert "N14228" in run(checks) + run(reads)


def test_the_change_of_an_entry(capsys: pytest.CaptureFixture[str]) -> None:
    stopped_job({})
    section = page("state-backends.md").split("\n## Changing entries\n")[1].split("\n## ")[0]
    (command,), (program,) = blocks(section, "sh"), blocks(section, "python")
    run(command.rstrip() + " --yes")
    assert call("state", "get", "flights", "aircraft", "N14228")[0] == "7\n"
    exec(program, {})
    assert "None" in capsys.readouterr().out, "it has this value already"


def test_the_first_step_of_checkpoint_versions() -> None:
    """Each checkpoint has both versions, and commands read the old one."""
    (config, *_) = blocks(page("checkpoint-versions.md"), "yaml")
    stopped_job(yaml.safe_load(config), commits=1)
    exported = {version: call("checkpoint", "export", "flights", "--version", version)[0] for version in ("1", "2")}
    assert all("local" in text for text in exported.values())
    assert exported["1"] != exported["2"]


def test_the_commands_of_operations() -> None:
    (commands, *_) = blocks(page("operations.md").split("\n## ")[0], "sh")
    stopped_job({}, commits=1)
    assert "not running" in run(commands)


def test_the_configuration_of_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SECRET", "hunter2")
    (config,) = blocks(page("clusters.md"), "yaml")
    loaded = load_config(overrides=yaml.safe_load(config), default_job_name="flights")
    assert (loaded.spark["spark.authenticate.secret"], loaded.job.root) == ("hunter2", "s3://bucket/jobs")
    check_configuration(None, loaded)


def test_the_dashboard_of_its_page() -> None:
    stopped_job({}, commits=1)
    (_, line), *_ = (text.splitlines() for text in blocks(page("dashboard.md"), "sh"))
    with subprocess.Popen(command(*line.split()[1:]), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            (address,) = re.findall(r"http://\S+", process.stdout.readline())
            with urllib.request.urlopen(address.partition("#")[0], timeout=30) as answer:
                assert b"<html" in answer.read()
        finally:
            process.terminate()


def configurations() -> list[tuple[str, str]]:
    """The YAML on pages."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [(file.name, block) for file in files for block in blocks(file.read_text("utf-8"), "yaml")]


@pytest.mark.parametrize(("file", "text"), configurations())
def test_a_configuration_of_a_page_is_accepted(file: str, text: str) -> None:
    text = re.sub(
        r"\$\{(file|env|cmd):[^}]*\}|(?<=: )(file|env|cmd):\S+", "a secret of more than thirty-two characters", text
    )
    Path("page.yaml").write_text(text, "utf-8")
    assert load_config("page.yaml", default_job_name="flights").job.name, file
