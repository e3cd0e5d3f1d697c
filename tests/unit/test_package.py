"""The package as a user meets it before any code: the license, the metadata, and missing parts."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

from tests.support.tools.places import ROOT


def test_the_package_says_whose_it_is_and_under_which_license() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["license"] == "Apache-2.0"
    assert project["authors"] == [{"name": "The Penstock authors"}]
    assert "Typing :: Typed" in project["classifiers"]
    (name,) = project["license-files"]
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_extra_of_kafka_is_its_client() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert extras["kafka"] == ["confluent-kafka>=2.10"]


def test_the_first_screen_of_the_readme_says_what_is_missing() -> None:
    screen = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:24]
    assert any("What is missing" in line for line in screen)
    assert any("Kafka" in line for line in screen)


def test_without_the_package_of_kafka_all_imports_work_and_the_system_names_the_extra() -> None:
    script = """
import sys
sys.modules["confluent_kafka"] = None  # as if it were not installed
import penstock, penstock.admin, penstock.cli.main, penstock.testing, penstock.testing.kafka_broker
from penstock.errors import ConfigError
from penstock.system.kafka.system import KafkaSystem
from penstock.system.registry import open_system
from penstock.config.load import load_config
config = load_config(overrides={
    "job.name": "job", "systems.kafka.samza.factory": "kafka", "systems.kafka.consumer.bootstrap.servers": "127.0.0.1:1"
})
for call in (lambda: open_system(config.system("kafka")), penstock.testing.kafka_broker.require_kafka):
    try:
        call()
    except ConfigError as error:
        assert "penstock-streams[kafka]" in str(error), error
    else:
        raise AssertionError(call)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_the_readme_links_to_exists() -> None:
    for line in (ROOT / "README.md").read_text(encoding="utf-8").split("](")[1:]:
        target = line.split(")")[0].split("#")[0]
        assert "://" in target or (ROOT / target).exists(), target


def test_what_the_package_needs_beside_its_code_is_packed() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    package = ROOT / "penstock"
    packed = {each for name in tool["setuptools"]["package-data"]["penstock"] for each in package.glob(name)}
    pages = {path.with_name("README.md") for path in package.rglob("__init__.py")}
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")} - pages
    assert others - packed == set()


def test_each_extra_that_a_text_names_exists_and_has_a_line_on_the_page_of_projects() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"])
    files = [each for folder in ("penstock", "docs", "examples", "deploy") for each in (ROOT / folder).rglob("*.*")]
    texts = [each for each in files if each.suffix in (".py", ".md", ".txt", ".yaml", ".in")]
    named = {
        extra: file
        for file in [*texts, ROOT / "README.md"]
        for names in re.findall(r"penstock-streams\[([\w,-]+)\]", file.read_text("utf-8"))
        for extra in names.split(",")
    }
    assert {extra: file for extra, file in named.items() if extra not in extras} == {}
    assert len(named) > 10
    table = (ROOT / "docs/projects.md").read_text("utf-8").partition("## Extras")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert set(re.findall(r"`([\w-]+)`", " ".join(cells))) == extras - {"dev", "docs", "demo"}
