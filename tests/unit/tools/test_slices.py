"""Turns of the slow tests: what a check runs, what it leaves when its time is over, and how much memory it may take."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.testing import SettableClock
from tests.support.tools import slices
from tests.support.tools.memory import limit_bytes
from tests.support.tools.places import ROOT

FILES = st.from_regex(r"tests/[a-z]{1,8}/test_[a-z_]{1,12}\.py", fullmatch=True)
SECONDS = st.dictionaries(FILES, st.floats(0.5, 5000), max_size=60)
NUMBERS = range(1, slices.SLICES + 1)
SUITE = """
import os, time
import pytest

def test_at_once(): ...

@pytest.mark.slow
def test_short(): time.sleep({pause})

@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_after_it(number): ...

@pytest.mark.slow
def test_that_grows():
    kept = []
    while os.environ.get("GROW"):
        kept.append(bytearray(1 << 28))
"""
RUN = """
import resource, sys, time
import pytest
from tests.support.tools import deadline, durations, memory, places, slices
from pathlib import Path

places.ROOT = durations.ROOT = Path.cwd()
memory._LEAST_BYTES, memory._SHARE = 1 << 30, 1 << 20
memory.limit()
plugins = [memory.Explanation(), durations.Recorder(Path("quick.json"), Path("slow.json"))]
if sys.argv[1]:
    plugins.append(deadline.Deadline(time.time() + float(sys.argv[1])))
if sys.argv[2]:
    plugins.append(slices.Slice(sys.argv[2]))
given = ["-q", "-rs", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".", *sys.argv[3:]]
sys.exit(pytest.main(given, plugins))
"""


@given(SECONDS, st.lists(FILES, max_size=20, unique=True))
def test_every_file_is_in_one_slice_and_a_new_one_moves_no_other(seconds: dict[str, float], new: list[str]) -> None:
    planned = slices.plan(seconds)
    assert planned.keys() == seconds.keys()
    files = {*seconds, *new}
    found = {number: {file for file in files if slices.slice_of(file, planned) == number} for number in NUMBERS}
    assert sum(map(len, found.values())) == len(files)
    assert set().union(*found.values()) == files


@given(SECONDS)
def test_slices_take_as_long_as_each_other(seconds: dict[str, float]) -> None:
    """But for what a single file takes."""
    taken = dict.fromkeys(NUMBERS, 0.0)
    for file, number in slices.plan(seconds).items():
        taken[number] += seconds[file]
    assert max(taken.values()) - min(taken.values()) <= max(seconds.values(), default=0.0) + 1e-6


def test_files_whose_seconds_nobody_knows_are_spread_by_their_names() -> None:
    counts = defaultdict[int, int](int)
    for number in range(1000):
        counts[slices.slice_of(f"tests/unit/test_{number}.py", {})] += 1
    assert sorted(counts) == list(NUMBERS)
    assert max(counts.values()) < 150


@given(st.integers(1, 10**6))
def test_ten_checks_in_a_row_run_every_slice(commits: int) -> None:
    assert sorted(slices.of_count(commits + more) for more in range(slices.SLICES)) == list(NUMBERS)


def test_a_slice_that_does_not_exist_is_refused() -> None:
    assert [slices.number(str(each)) for each in NUMBERS] == list(NUMBERS)
    assert slices.number(slices.OF_COMMIT) in NUMBERS
    for wrong in ("0", "11", "-1", "three", ""):
        with pytest.raises(pytest.UsageError, match="it is one of 1 to 10"):
            slices.number(wrong)


def test_the_commits_of_a_shallow_clone_and_of_a_folder_without_history_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check would have the same slice each time. The day decides there."""
    assert slices.commits(tmp_path) is None
    monkeypatch.setattr(slices, "ROOT", tmp_path)
    days = []
    for day in range(20_000, 20_010):
        monkeypatch.setattr(slices, "SYSTEM_CLOCK", SettableClock(day * 86_400_000 + 1))
        days.append(slices.number(slices.OF_COMMIT))
    assert sorted(days) == list(NUMBERS)
    whole, shallow = tmp_path / "a whole one", tmp_path / "a shallow one"
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "--quiet", whole], check=True, timeout=60)
    for message in ("one", "two"):
        commit = ["git", "-C", whole, *author, "commit", "--quiet", "--allow-empty", "-m", message]
        subprocess.run(commit, check=True, timeout=60)
    assert slices.commits(whole) == 2
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", whole.as_uri(), shallow], check=True, timeout=60)
    assert slices.commits(shallow) is None


def run(folder: Path, *arguments: str, seconds: str = "", number: str = "", **variables: str) -> tuple[int, str]:
    """Run the suite in the folder with these plugins alone."""
    command = [sys.executable, "-c", RUN, seconds, number, *arguments]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=environment, check=False, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


def suite(folder: Path, pause: float = 0.0) -> None:
    for name in ("test_one.py", "test_two.py"):
        (folder / name).write_text(SUITE.replace("{pause}", str(pause)), encoding="utf-8")


def test_a_run_of_a_slice_has_its_files_and_says_which_it_is(tmp_path: Path) -> None:
    suite(tmp_path, pause=0.6)
    one, two = (slices.slice_of(f"test_{each}.py", {}) for each in ("one", "two"))
    assert one != two
    status, printed = run(tmp_path, "-m", "slow", number=str(one))
    assert status == 0, printed
    assert "5 passed, 7 deselected" in printed
    assert printed.startswith(f"slow tests: slice {one} of 10\n"), printed
    assert printed.count("slow tests: slice") == 2
    (tmp_path / "slow.json").write_text('{"test_gone.py": 77.0}')
    began = time.monotonic()
    status, printed = run(tmp_path, number=str(two))
    took = time.monotonic() - began
    assert "7 passed, 5 deselected" in printed
    seconds = json.loads((tmp_path / "slow.json").read_text())
    assert seconds.keys() == {"test_two.py"}, "seconds of slow tests are recorded apart"
    assert 0.6 <= seconds["test_two.py"] <= took
    assert json.loads((tmp_path / "quick.json").read_text()) == {}
    status, printed = run(tmp_path, "-m", "nothing", number=str(two))
    assert status == 0, printed


def test_after_its_time_a_run_takes_no_new_test_and_says_what_it_left(tmp_path: Path) -> None:
    suite(tmp_path, pause=3.1)
    (tmp_path / "slow.json").write_text('{"test_two.py": 77.0}')
    status, printed = run(tmp_path, seconds="3")
    assert status == 0, printed
    assert "2 passed, 10 skipped" in printed
    assert "   4 test_one.py\n   6 test_two.py\n" in printed
    assert json.loads((tmp_path / "slow.json").read_text()) == {"test_two.py": 77.0}, "half a file is not recorded"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory that is written")
def test_a_test_that_grows_without_end_fails_and_says_what_the_limit_is(tmp_path: Path) -> None:
    suite(tmp_path)
    status, printed = run(tmp_path, "test_one.py", GROW="1")
    assert status == 1
    assert "MemoryError" in printed
    assert "a process of the tests may have 1.0 GB" in printed
    assert "1 failed, 5 passed" in printed


def test_this_process_has_a_limit() -> None:
    if sys.platform == "linux":
        import resource

        assert resource.getrlimit(resource.RLIMIT_DATA)[0] <= limit_bytes()
