"""The pages of the examples, and the page "My job is slow"."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from penstock.dashboard.work import PARTS
from penstock.testing import TestRunner
from tests.support.tools.places import ROOT
from tests.unit.base.test_wording import AVOIDED

JOBS = sorted(file.stem for file in (ROOT / "examples/jobs").glob("*.py") if file.stem != "__init__")
INDEX = ROOT / "docs/examples.md"
PAGES = [INDEX, *sorted((ROOT / "docs/examples").glob("*.md"))]
SECTIONS = ["When you need it", "The job", "What comes out", "What to change", "What can go wrong"]


def test_each_job_has_a_page_and_a_line_in_the_index() -> None:
    assert len(JOBS) == 8
    assert [page.stem for page in PAGES[1:]] == JOBS
    assert sorted(re.findall(r"\(examples/(\w+)\.md\)", INDEX.read_text("utf-8"))) == JOBS


def test_the_test_in_the_index_runs_as_written() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", INDEX.read_text("utf-8"), re.DOTALL)
    exec(compile(block, "examples.md", "exec"), {"__name__": "examples_page"})


@pytest.mark.parametrize("name", JOBS)
def test_a_page_shows_the_job_as_it_is(name: str) -> None:
    text = (ROOT / f"docs/examples/{name}.md").read_text("utf-8")
    code = (ROOT / f"examples/jobs/{name}.py").read_text("utf-8")
    command = f"penstock run examples/jobs/{name}.py:app"
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0] == code
    assert f"`examples/jobs/{name}.py`" in text
    assert f"{command} --until latest\n" in text
    assert f"    {command}\n" in code
    assert 20 <= len(code.splitlines()) <= 70, "a user reads all of it"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_sections_that_exist(page: Path) -> None:
    for path, section in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text("utf-8")):
        target = page.parent / path if path else page
        assert target.is_file(), path
        titles = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}
        assert not section or section in anchors, section


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_avoid_phrases_that_make_people_read_twice(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    paragraphs = (" ".join(each.split()) for each in re.split(r"\n\s*\n|\n\s*(?:[*-]|\d+\.) |\|", text))
    assert [each for each in paragraphs if AVOIDED.search(each)] == []
    assert [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")] == []


def test_no_job_hides_a_package_that_is_installed() -> None:
    """The folder comes first on `sys.path` where `penstock run` loads one of its files."""
    assert set(JOBS) & (packages_distributions().keys() | sys.stdlib_module_names) == set()


PAGE = (ROOT / "docs" / "slow.md").read_text("utf-8")


def test_a_hot_key_is_added_up_in_parts() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    found: dict[str, Any] = {"__name__": "slow_page"}
    exec(compile(block, "slow.md", "exec"), found)
    chosen = random.Random(3)
    given = [("hot" if chosen.random() < 0.8 else f"k{number % 5}", number) for number in range(400)]
    runner = TestRunner(found["app"], partitions=4).input("local.amounts", given).run()
    expected = Counter[str]()
    for key, value in given:
        expected[key] += value
    last = {message.key: message.value for message in runner.output("local.totals")}
    assert last == expected
    assert len([part for part in runner.store("parts") if part.startswith("hot#")]) == 8


def test_the_page_names_the_parts_of_a_batch_as_the_chart_does() -> None:
    for part in (*PARTS.values(), "other"):
        assert f"`{part}`" in PAGE
