"""Docstrings, comments and pages for those who change the package name modules, files and members that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from penstock.config.settings import KEYS
from tests.support.tools.places import ROOT
from tests.support.tools.sources import names_and_comments, sources, statements

PACKAGE = ROOT / "penstock"
MODULES = {
    name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): text for name, text in sources().items()
}
DOTTED = re.compile(r"(?<![\w./<-])(penstock\.)?([a-z_]+(?:\.\w+)+)(?![\w(<=*-]|\.\w)")
MEMBER = re.compile(r"`(_?[A-Z]\w*[a-z]\w*)\.(\w+)")
PATH = re.compile(r"`((?:[a-z_]+/)+[a-z_]+(?:\.py)?)`")
IMPORTED = re.compile(r"^ *from penstock\.([\w.]+) import ([\w, ]+)$", re.MULTILINE)
KEYS_TEXT = " ".join(key.name for key in KEYS)
OTHERS = {"spark", "system"}
"""Keys of Spark begin so, and the names of streams in texts."""
MISTAKEN = {"job.commit.interval.ms"}
"""Keys that do not exist, of which a text says so."""
OF_KAFKA = {"heartbeat", "partitions", "progress", "signature", "tasks", "timestamp"}
"""Headers, properties and loggers that are named `penstock.<word>`."""

OF_OTHERS = {"DataFrame.toArrow", "JavaPairRDD.values", "Utils.toPositive"}
"""Members of classes of Spark and Kafka."""


ELSEWHERE = {
    "EndTxn", "WatermarkTracker", "__penstock_owners", "applyInPandasWithState", "createSimpleWorker", "handleDrain",
    "iloc", "rooms",
}  # fmt: skip
"""Names in Kafka, Spark, Samza, pandas and `.importlinter`."""
PAGES = {
    page.relative_to(ROOT).as_posix(): page.read_text("utf-8")
    for page in (
        ROOT / "ARCHITECTURE.md",
        *(file for file in sorted(PACKAGE.rglob("README.md")) if file.with_name("__init__.py").exists()),
    )
}
"""The page on the whole, and those of packages."""


@cache
def words() -> dict[str, set[str]]:
    return {name: set(re.findall(r"\w+", text)) for name, text in MODULES.items()}


@cache
def tokens() -> list[tuple[str, str, str]]:
    """File, kind and text of each name and comment. Made by the tests that look at them: every process of a run imports
    this."""
    return [(file, kind, text) for file, source in sources().items() for kind, text in names_and_comments(source)]


@cache
def texts() -> list[tuple[str, str]]:
    return list(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    yield from PAGES.items()
    for file, kind, text in tokens():
        if kind == "comment":
            yield file, text
    for file, source in sources().items():
        for node in statements(ast.parse(source)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                yield file, re.sub(r"(>>>|\.\.\.) .*", "", str(node.value.value))


def is_there(name: str) -> bool:
    """True if it is a module, or a word of one."""
    module, _, word = name.rpartition(".")
    above, _, kind = module.rpartition(".")
    return name in MODULES or word in words().get(module, ()) or {word, kind} <= words().get(above, set())


def means_the_package(name: str) -> bool:
    first = name.partition(".")[0]
    is_key = name in KEYS_TEXT or name in MISTAKEN or first in OTHERS
    return first in MODULES and not is_key and not name.endswith(".py")


def test_names_with_dots() -> None:
    wrong = {
        f"{file}: {found[0]}"
        for file, text in texts()
        for found in DOTTED.finditer(text)
        if (found[2] not in OF_KAFKA if found[1] else means_the_package(found[2])) and not is_there(found[2])
    }
    assert wrong == set()


def test_members_of_classes() -> None:
    names = {text for _, kind, text in tokens() if kind == "name"}
    wrong = {
        f"{file}: {kind}.{member}"
        for file, text in texts()
        for kind, member in MEMBER.findall(text)
        if not {kind, member} <= names and f"{kind}.{member}" not in OF_OTHERS
    }
    assert wrong == set()


def test_paths() -> None:
    named = {(file, path) for file, text in texts() for path in PATH.findall(text) if path.partition("/")[0] in MODULES}
    wrong = {
        f"{file}: {path}" for file, path in named if not any((PACKAGE / f"{path}{end}").exists() for end in ("", ".py"))
    }
    assert wrong == set()


@pytest.mark.parametrize("page", PAGES)
def test_paths_of_pages(page: str) -> None:
    """A file is named with its whole path, below `penstock/` or from the root."""
    paths = re.findall(r"`((?:[a-z_]+/)*\w+\.py|(?:[a-z_]+/)+)`", PAGES[page])
    assert [each for each in paths if not (PACKAGE / each).exists() and not (ROOT / each).exists()] == []


def test_names_of_pages() -> None:
    """A class, a function or a member in a page is a word of the code."""
    known = set().union(*words().values(), ELSEWHERE, *({file.stem} for file in (ROOT / "tests").rglob("*.py")))
    named = {
        (page, name)
        for page, text in PAGES.items()
        for code in re.findall(r"`([A-Za-z_][\w.]*)`", text)
        for name in ([] if code.endswith((".py", ".yml")) else code.split("."))
    }
    assert {f"{page}: {name}" for page, name in named if name and name not in known} == set()


def test_the_page_on_the_whole_lists_every_page_of_a_package() -> None:
    text = PAGES["ARCHITECTURE.md"]
    assert len(text.splitlines()) <= 500
    assert [page for page in PAGES if page != "ARCHITECTURE.md" and f"]({page})" not in text] == []


def test_programs_within_tests_import_what_exists() -> None:
    """A test that starts a program writes it as a text, which no type checker reads."""
    imported = (
        (file.relative_to(ROOT).as_posix(), module, name)
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for module, names in IMPORTED.findall(file.read_text("utf-8"))
        for name in re.findall(r"\w+", re.sub(r" as \w+", "", names))
        if module != "elsewhere"
    )
    assert [
        (file, module, name)
        for file, module, name in imported
        if name not in words().get(module, ()) and f"{module}.{name}" not in MODULES
    ] == []
