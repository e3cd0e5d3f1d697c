"""A log that takes nothing, or only a part, disturbs nobody who prints and logs; what is missing is counted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from penstock.host.lossy import DroppedLines, LossyStream

SETUP = """
import io, logging, os, resource, sys, traceback, warnings
from pathlib import Path
from penstock.host import logs
log = Path(sys.argv[1])
passed_on = logs.setup_logging(logs.log_to(log), sys.argv[2], "clicks-1")

def full():
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.fstat(2).st_size + 5, resource.RLIM_INFINITY))

def room():
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
WAYS = {
    "print": "print('text')",
    "print to standard error": "print('text', file=sys.stderr)",
    "print to the real one": "print('text', file=sys.__stderr__)",
    "print of many lines": "print('text\\n' * 500)",
    "print of much": "print('x' * 200_000)",
    "bytes": "sys.stdout.buffer.write(b'text\\n')",
    "flush": "print('text', flush=True)",
    "log": "logging.warning('of %s', 'text')",
    "log of what does not fit": "logging.warning('of %d', 'text')",
    "log of what cannot be shown": "logging.warning('of %s', type('A', (), {'__str__': lambda self: 1 / 0})())",
    "log with its traceback": "try: 1 / 0\nexcept Exception: logging.exception('no')",
    "traceback": "try: 1 / 0\nexcept Exception: traceback.print_exc()",
    "warning": "warnings.warn('text')",
    "handler of the application": "logging.getLogger().addHandler(logging.StreamHandler()); logging.warning('text')",
    "other settings": "logging.basicConfig(force=True, level=10); logging.debug('text'); print('text')",
    "last resort": "logging.getLogger().handlers.clear(); logging.warning('text'); print('text')",
}


def run(log: Path | str, code: str, form: str = "text") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SETUP + code, str(log), form]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def each_way(before: str) -> str:
    """Every way to write something, three times each; those that raised are the exit status."""
    return f"""
raised = []
for way, code in {WAYS!r}.items():
    before = list(logging.getLogger().handlers)
    {before}
    try:
        for _ in range(3):
            exec(code)
    except BaseException as error:
        raised.append((way, repr(error)))
    logging.getLogger().handlers[:] = before
dropped = passed_on.dropped()
Path(str(log) + '.told' if log.is_file() else sys.argv[3]).write_text(repr((raised, dropped.lines, dropped.why)))
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_disk_that_is_full_raises_nothing_however_one_writes(tmp_path: Path, form: str) -> None:
    log = tmp_path / "container-a-1.log"
    assert run(log, each_way("full()") + "room(); print('there is room')", form).returncode == 0
    raised, lines, why = eval((tmp_path / "container-a-1.log.told").read_text())
    assert raised == []
    assert lines > 3 * (len(WAYS) - 1)
    assert why == os.strerror(27)
    note, last = [line for line in log.read_text().splitlines() if line][-2:]
    if form == "json":
        note, last = orjson.loads(note)["message"], orjson.loads(last)["message"]
    assert last.endswith("there is room")
    assert re.search(rf"{lines:,} lines could not be written and were dropped: {why}$", note)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_device_that_is_always_full(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SETUP + each_way("pass"), "/dev/full", "text", str(tmp_path / "told")]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
    raised, lines, why = eval((tmp_path / "told").read_text())
    assert (raised, why) == ([], os.strerror(28))
    assert lines > 3 * len(WAYS)


def test_what_the_application_prints_does_not_depend_on_its_levels_and_handlers(tmp_path: Path) -> None:
    log = tmp_path / "container-a-1.log"
    code = """
logging.getLogger().setLevel(logging.CRITICAL)
logging.disable(logging.CRITICAL)
print("first")
logging.disable(logging.NOTSET)
logging.basicConfig(force=True, level=logging.DEBUG, format="%(levelname)s of %(name)s: %(message)s")
logging.getLogger("shop").debug("second")
assert [line.text for line in passed_on.take()[0]] == ["first", "DEBUG of shop: second"]
"""
    done = run(log, code)
    assert done.returncode == 0, log.read_text()
    words = [re.sub(r"^\S+Z ", "", line) for line in log.read_text().splitlines()]
    assert words == ["INFO first", "WARNING DEBUG of shop: second"]


def test_a_log_that_could_not_begin_a_new_file_begins_it_later(tmp_path: Path) -> None:
    log = tmp_path / "container-a-1.log"
    code = """
logs.FILE_BYTES = 1_000
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 4096))  # no descriptor is left
for number in range(100): print("before", number)
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
for number in range(100): print("after", number)
"""
    assert run(log, code).returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"container-a-1.log", "container-a-1.log.1"}
    assert all(path.stat().st_size < 1_200 for path in tmp_path.iterdir())
    assert log.read_text().splitlines()[-1].endswith("after 99")


def test_lines_are_counted_and_told_with_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as file:
        stream = LossyStream(os.dup(file.fileno()))
    read_only = os.open(path, os.O_RDONLY)
    writable = os.dup(stream.fileno())
    stream.write(b"one\n")
    os.dup2(read_only, stream.fileno())
    assert [stream.write(data) for data in (b"two\n", b"three\nfour\n", b"five")] == [4, 11, 4]
    assert stream.dropped == DroppedLines(4, os.strerror(9))
    os.dup2(writable, stream.fileno())
    for data in (b"six\n", b"seven\n"):
        stream.write(data)
    note = f"4 lines could not be written and were dropped: {os.strerror(9)}"
    assert path.read_text().splitlines() == ["one", note, "six", "seven"]
    for descriptor in (read_only, writable, stream.fileno()):
        os.close(descriptor)


def test_another_process_prints_past_a_full_device(tmp_path: Path) -> None:
    code = "from penstock.host.lossy import print_lossily\nprint_lossily()\nprint('text')\nraise SystemExit(7)"
    with Path(os.devnull if not Path("/dev/full").exists() else "/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-c", code], check=False, stdout=full, stderr=full, timeout=60)
    assert done.returncode == 7
