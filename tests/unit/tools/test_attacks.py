"""`make attack`, and that what SECURITY.md names as an attack is one of its tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tools.places import ROOT

SUITE = """
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_nobody_gets_in(n): assert n

@pytest.mark.parametrize("n", [0, 1])
def test_nobody_gets_over(n): assert n

@pytest.mark.skip(reason="only root can be another user")
def test_nobody_gets_under(): ...

@pytest.fixture
def broken(): raise OSError

def test_a_wall_that_could_not_be_built(broken): ...
"""
RUN = """
import pytest, sys
from tests.support.tools.attacks import Reporter
sys.exit(pytest.main(sys.argv[1:], [Reporter()]))
"""
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::\w+)*`")


@pytest.mark.slow
def test_each_attack_has_a_line_and_one_that_is_not_held_fails(tmp_path: Path) -> None:
    (tmp_path / "test_walls.py").write_text(SUITE)
    run = [sys.executable, "-c", RUN, "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    done = subprocess.run([*run, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=False, timeout=60)
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    for line in (
        "held     nobody gets in (2 cases)   test_walls.py",
        "NOT held nobody gets over (2 cases, 1 not held)   test_walls.py",
        "skipped  nobody gets under (1 skipped: only root can be another user)   test_walls.py",
        "NOT held a wall that could not be built   test_walls.py",
        "4 attacks: 1 held, 2 NOT held, 1 skipped",
    ):
        assert line in lines


def named_in_tables(page: str) -> set[str]:
    """The files of tests that the tables of a page name."""
    return {name for line in page.splitlines() if line.startswith("|") for name in NAMED.findall(line)}


def test_what_tables_name() -> None:
    page = "`tests/a.py`\n| what | test |\n|---|---|\n| a message | `tests/b/c.py::test_d`, `tests/e.py` |\n"
    assert named_in_tables(page) == {"tests/b/c.py", "tests/e.py"}


def test_the_tests_that_the_page_names_are_run_by_make_attack() -> None:
    named = named_in_tables((ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    unmarked = {name for name in named if "pytest.mark.attack" not in (ROOT / name).read_text(encoding="utf-8")}
    assert unmarked == set(), "mark these files, or their tests from an attacker's side, with `pytest.mark.attack`"
