"""tests/unit has the folders of the package: who knows where code is finds its tests. Packages say their promises."""

from __future__ import annotations

import ast
from configparser import ConfigParser

from tests.support.tools.places import ROOT

OTHERS = {"benchmarks", "examples", "tools"}
"""Folders of tests of things beside the package."""
WHOLE = {
    "benchmarks", "docstrings", "doctests", "exported_names", "kernel_alone", "metrics_page", "mirror",
    "names_in_texts", "package", "readme",
}  # fmt: skip
"""Tests of the package as a whole."""


def test_every_folder_of_unit_tests_is_a_folder_or_module_of_the_package() -> None:
    unit = ROOT / "tests" / "unit"
    folders = {file.parent.relative_to(unit).as_posix() for file in unit.rglob("*.py")} - {"."}
    package = ROOT / "penstock"
    there = {each for each in folders if (package / each).is_dir() or (package / f"{each}.py").is_file()}
    assert folders - OTHERS - there == set()
    modules = {file.stem for file in (ROOT / "penstock").glob("*.py")}
    flat = {file.stem.removeprefix("test_") for file in unit.glob("test_*.py")}
    assert flat - WHOLE - modules == set(), "put it in the folder of what it tests"


def test_rooms_say_what_they_promise_and_who_may_import_them() -> None:
    """A room's top package says it in its docstring. Pages describe the folders inside, which have an empty file."""
    plan = ConfigParser()
    plan.read(ROOT / ".importlinter", "utf-8")
    tops = {name.replace(".", "/") for name in plan["importlinter:contract:rooms"]["rooms"].split()}
    silent, talkative = [], []
    for file in sorted((ROOT / "penstock").rglob("__init__.py")):
        name = file.parent.relative_to(ROOT).as_posix()
        text = file.read_text("utf-8")
        tree = ast.parse(text)
        if name in tops or name == "penstock":
            if "import" not in (ast.get_docstring(tree) or ""):
                silent.append(name)
        elif text and all(isinstance(node, ast.Expr) for node in tree.body):
            talkative.append(name)
    assert (silent, talkative) == ([], [])


def test_no_two_files_have_the_same_name() -> None:
    """pytest imports a test file by its name alone: the second one would not be collected."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []
