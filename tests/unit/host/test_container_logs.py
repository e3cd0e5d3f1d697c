"""The logs of containers: bounded in size and number, complete to the last line, and how a process ended."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.host import logs

LIMIT = 100_000
WRITER = """
import os, sys
from pathlib import Path
from penstock.host import logs
logs.FILE_BYTES = int(sys.argv[2])
logs.log_to(Path(sys.argv[1]))
logs.setup_logging()
"""


def write(log: Path, code: str) -> int:
    return subprocess.run([sys.executable, "-c", WRITER + code, str(log), str(LIMIT)], check=False).returncode


def test_prints_without_end_leave_two_files_of_bounded_size(tmp_path: Path) -> None:
    log = tmp_path / "container-a-1.log"
    assert write(log, "for n in range(100_000): print('line', n)") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["container-a-1.log", "container-a-1.log.1"]
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert all(size < LIMIT + 1000 for size in sizes), sizes
    lines = [line for path in (Path(f"{log}.1"), log) for line in path.read_text().splitlines()]
    assert lines == [f"line {n}" for n in range(100_000 - len(lines), 100_000)], "nothing is lost in between"


def test_one_write_that_is_larger_than_a_file_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "container-a-1.log"
    assert write(log, f"print('x' * {5 * LIMIT})") == 0
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * LIMIT + 1000


def test_every_line_is_there_after_kill_9(tmp_path: Path) -> None:
    log = tmp_path / "container-a-1.log"
    code = "import logging; logging.warning('logged'); print('printed'); os.write(1, b'past Python\\n')"
    assert write(log, f"{code}; os.kill(os.getpid(), 9)") == -9
    text = log.read_text()
    assert [word in text for word in ("logged", "printed", "past Python")] == [True] * 3


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("kill -9 $$", "was killed by SIGKILL (9: probably out of memory, or killed by hand)"),
        ("kill -SEGV $$", "was killed by SIGSEGV (11)"),
        ("exit 70", "ended with exit status 70"),
        ("exit 0", "ended with exit status 0"),
    ],
)
def test_how_a_process_ended_is_in_its_log(tmp_path: Path, command: str, words: str) -> None:
    log = tmp_path / "it's a container.log"
    inner = f"sh -c 'echo its last words; {command}'"
    with log.open("wb") as file:
        subprocess.run(["/bin/sh", "-c", logs.wrapped(inner, log)], stdout=file, stderr=file, check=False)
    how, last = logs.epitaph(123, log)
    assert how == f"process 123 {words}"
    assert last == "its last words: its last words", "and none of the shell"


def test_of_a_process_that_has_not_ended_nothing_is_known(tmp_path: Path) -> None:
    assert logs.exit_status(tmp_path / "missing.log", 60) is None
    (tmp_path / "a.log").write_text("it works\n")
    assert logs.exit_status(tmp_path / "a.log", 0.0) is None


def test_logs_of_containers_that_ended_are_bounded_in_number(tmp_path: Path) -> None:
    for number in range(8):
        path = tmp_path / f"container-{number}.log"
        for name in (path, path.with_suffix(".log.1")):
            name.touch()
            os.utime(name, (number, number))
    with (tmp_path / "container-0.log").open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        logs.prune(tmp_path, keep=3)
    left = {path.name for path in tmp_path.glob("*.log")}
    assert left == {f"container-{number}.log" for number in (0, 5, 6, 7)}
    assert len(list(tmp_path.glob("*.log.1"))) == 4


def test_a_log_is_held_from_the_start_of_its_process_to_its_end(tmp_path: Path) -> None:
    log = tmp_path / "container-0.log"
    with logs.open_log(log) as file:
        assert log.stat().st_mode & 0o777 == 0o600
        process = subprocess.Popen(["/bin/sh", "-c", logs.wrapped("cat", log)], stdin=subprocess.PIPE, stderr=file)
    logs.prune(tmp_path, keep=0)
    assert log.exists()
    process.communicate(timeout=60)
    logs.prune(tmp_path, keep=0)
    assert not log.exists()
