"""The logs of containers: bounded in size and number, complete to the last line, and how a process ended."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from penstock.host import logs
from penstock.host.log_lines import LINE_CHARACTERS, LINES_AT_ONCE, LineFormatter, PassedLine, PassedOn, Work, at_work

LIMIT = 100_000
WRITER = """
import os, sys
from pathlib import Path
from penstock.host import logs
logs.FILE_BYTES = int(sys.argv[2])
logs.setup_logging(logs.log_to(Path(sys.argv[1])), "text", "clicks-1")
"""


def write(log: Path, code: str) -> int:
    return subprocess.run([sys.executable, "-c", WRITER + code, str(log), str(LIMIT)], check=False).returncode


def test_prints_without_end_leave_two_files_of_bounded_size(tmp_path: Path) -> None:
    log = tmp_path / "container-a-1.log"
    assert write(log, "for n in range(10_000): print('line', n)") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["container-a-1.log", "container-a-1.log.1"]
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert all(size < LIMIT + 1000 for size in sizes), sizes
    lines = [line.partition(" INFO ")[2] for p in (Path(f"{log}.1"), log) for line in p.read_text().splitlines()]
    assert lines == [f"line {n}" for n in range(10_000 - len(lines), 10_000)], "nothing is lost in between"


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


def test_a_line_has_its_time_its_level_and_the_work_that_it_belongs_to(tmp_path: Path) -> None:
    log = tmp_path / "container-a-1.log"
    code = """
import logging, threading
from penstock.host.log_lines import Work, at_work
def work(task):
    with at_work(Work(3, 7, task)):
        print("begun", end=" ")
        for _ in range(3): both.wait()
        print("and", "ended")
        logging.getLogger("shop").warning("of %s", task)
both = threading.Barrier(2)
threads = [threading.Thread(target=work, args=(task,)) for task in (0, 1)]
for each in threads: each.start()
for each in threads: each.join()
sys.stdout.buffer.write(b"bytes\\n")
sys.stdout.flush()
print("two\\nlines", file=sys.stderr)
try: 1 / 0
except ZeroDivisionError: logging.exception("no")
"""
    assert write(log, code) == 0
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    lines = log.read_text().splitlines()
    assert lines.pop(4) == "bytes"
    assert all(re.match(time, line) for line in lines[:7])
    assert sorted(line.partition(" ")[2] for line in lines[:4]) == [
        "INFO [epoch 3 batch 7 task 0] begun and ended",
        "INFO [epoch 3 batch 7 task 1] begun and ended",
        "WARNING [epoch 3 batch 7 task 0] of 0",
        "WARNING [epoch 3 batch 7 task 1] of 1",
    ]
    assert [line.partition(" ")[2] for line in lines[4:7]] == ["WARNING two", "WARNING lines", "ERROR no"]
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_lines_of_json() -> None:
    record = logging.LogRecord("shop", logging.INFO, "", 0, "of %s", ("b\udcff",), None)
    record.created = 1.25
    record.work = Work(3, 7, 2)
    assert orjson.loads(LineFormatter("json", "clicks-1").format(record)) == {
        "time": "1970-01-01T00:00:01.250Z",
        "level": "INFO",
        "logger": "shop",
        "job": "clicks-1",
        "epoch": 3,
        "batch": 7,
        "task": 2,
        "message": "of b\\udcff",
    }


def test_only_so_many_lines_of_the_application_are_passed_on() -> None:
    passed_on, logger = PassedOn(), logging.getLogger("of-an-application")
    logger.addHandler(passed_on)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    with at_work(Work(3, 7, 2)):
        for number in range(LINES_AT_ONCE + 5):
            logger.info("line %d", number)
    logger.debug("no")
    passed_on.emit(logging.LogRecord("penstock.state", logging.ERROR, "", 0, "its own", (), None))
    lines, left_out = passed_on.take()
    assert lines == [PassedLine(logging.INFO, f"line {n}", 3, 7, 2) for n in range(LINES_AT_ONCE)]
    assert left_out == 5
    logger.warning("x" * 5_000)
    ((line,), left_out) = passed_on.take()
    assert (len(line.text), line.task, left_out) == (LINE_CHARACTERS, -1, 0)
    assert passed_on.take() == ([], 0)


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
