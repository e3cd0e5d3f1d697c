"""The site of the documentation: it builds without a warning, is whole, and needs no network."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By

from tests.support.jobs.home import wait_until
from tests.support.tools.browser import browser, complaints
from tests.support.tools.places import ROOT
from tools.docs_site.__main__ import build
from tools.docs_site.links import broken, from_network, read_page
from tools.docs_site.markdown import page_of_file, with_lists
from tools.docs_site.reference import GROUPS, page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: links, anchors and resources were checked."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    assert build(folder) == []
    return folder


def in_nav() -> list[str]:
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    return re.findall(r"(?:- |: )(\S+\.md)$", nav, re.MULTILINE)


def test_every_page_is_in_the_nav_once() -> None:
    pages = in_nav()
    assert len(pages) == len(set(pages))
    assert {file.relative_to(ROOT).as_posix() for file in (ROOT / "docs").rglob("*.md")} - set(pages) == set()


@pytest.mark.slow
def test_the_site_has_every_page_and_every_public_name(site: Path) -> None:
    for name in in_nav():
        folder, _, file = name.removesuffix(".md").rpartition("/")
        assert (site / folder / ("index.html" if file == "README" else f"{file}.html")).is_file(), name
    for module in GROUPS:
        shown = read_page((site / "docs" / "reference" / f"{module}.html").read_text("utf-8")).anchors
        names = importlib.import_module(module).__all__
        assert {f"{module}.{name}" for name in names} - shown == set()


@pytest.mark.slow
def test_no_page_names_a_folder_of_the_machine_that_built_it(site: Path) -> None:
    folders = [str(each).encode() for each in (site.parent, ROOT)]
    files = [file for file in site.rglob("*") if file.is_file()]
    assert [file for file in files for each in folders if each in file.read_bytes()] == []


@pytest.mark.slow
def test_the_search_finds_a_page_without_a_server(site: Path) -> None:
    with browser() as found:
        found.get((site / "docs" / "kafka.html").as_uri())
        found.find_element(By.CSS_SELECTOR, ".md-search__button").click()
        field = "return document.activeElement.shadowRoot !== null"
        wait_until(lambda: found.execute_script(field), "the field of the search", 60)
        found.switch_to.active_element.send_keys("draining")
        script = "return [...document.querySelectorAll('*')].map(each => each.shadowRoot?.textContent ?? '').join('')"
        wait_until(lambda: "Draining a job" in found.execute_script(script), "the page that is found", 60)
        assert complaints(found) == []


@pytest.mark.parametrize("module", GROUPS)
def test_every_public_name_is_in_one_group(module: str) -> None:
    text = page(ROOT, module)
    for name in importlib.import_module(module).__all__:
        assert text.count(f"::: {module}.{name}\n") == 1, name


def test_a_name_without_a_group_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "penstock" / "testing"
    folder.mkdir(parents=True)
    source = (ROOT / "penstock/testing/__init__.py").read_text("utf-8")
    (folder / "__init__.py").write_text(source + "\nfrom penstock.elsewhere import New as New\n")
    with pytest.raises(ValueError, match="New"):
        page(tmp_path, "penstock.testing")


def test_broken_links_and_resources_of_the_network_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">1</a><a href="b.html#gone">2</a><a href="c.html">3</a><a href="https://example.org">4</a>'
        '<img src="https://example.org/x.png"><style>p { background: url(//example.org/y.png) }</style>'
    )
    (tmp_path / "b.html").write_text('<p id="there">')
    (tmp_path / "s.css").write_text('@import "https://example.org/z.css";')
    assert list(broken(tmp_path)) == ["a.html: b.html#gone: no such anchor", "a.html: c.html: no such page"]
    assert list(from_network(tmp_path)) == [
        "a.html: https://example.org/x.png",
        "a.html: //example.org/y.png",
        "s.css: https://example.org/z.css",
    ]


def test_lists_are_written_as_python_markdown_reads_them() -> None:
    text = (
        "Steps:\n1. one\n   ```sql\n   a\n     b\n   ```\n   - inner\n     text\n2. two\nlazy\n\nAfter.\n\n    code\n"
    )
    assert with_lists(text) == (
        "Steps:\n\n1. one\n    ```sql\n    a\n      b\n    ```\n    - inner\n        text\n2. two\n    lazy\n\n"
        "After.\n\n    code\n"
    )


def test_a_file_with_a_fence_is_shown_whole() -> None:
    assert page_of_file("a.py", "x = '''\n```\n'''\n") == "# a.py\n\n````python\nx = '''\n```\n'''\n````\n"
