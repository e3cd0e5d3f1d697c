"""Penstock without what only Linux has, and settings of a long-lived process of a job."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from penstock.errors import ConfigError
from penstock.host import posix
from penstock.objects.file import FileObjectStore
from penstock.system.local import LocalSystem
from tests.support.processes.containers import wait_until
from tests.support.tools.places import ROOT

DEADLINE_S = 60.0
OTHERS = (
    "tests/unit/testing/test_test_runner.py::test_a_restore_goes_back_to_the_last_commit_and_reads_again",
    "tests/unit/direct/test_direct_worker.py::test_it_runs_one_batch_after_the_other",
    "tests/unit/host/test_host_folder.py",
    "tests/unit/host/test_posix.py::test_what_a_dead_driver_left_standing_still_goes_on",
    "tests/fault/test_container_endings.py::test_a_container_ends_when_its_parent_process_dies",
    "tests/fault/test_container_endings.py::test_a_killed_container_breaks_its_beats_and_every_call_and_is_reported",
)
"""A job in `TestRunner`, and the processes of a local run. Spark's own are not among them."""
COMMANDS = """
import fcntl, json, os, subprocess, sys, time
from dataclasses import replace
from pathlib import Path

assert (sys.platform, hasattr(os, "pidfd_open"), Path("/proc/self/stat").exists()) == ("darwin", False, False)

from penstock.checkpoint.log import CheckpointLog
from penstock.errors import PenstockTimeoutError
from penstock.job.lease import LeaseHeldError, LeaseHolder, acquire
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from tests.support.tools.cli import call, call_json, published

def full_syncs():
    return int(os.environ.get("FULL_SYNCS", "0"))

published(20)
assert full_syncs() > 0, "macOS's fsync leaves a stream in the drive's cache"
assert '"k19"' in call("stream", "tail", "flights")[0]
assert call_json("stream", "describe", "flights")["messages"] == 20

objects, paths = FileObjectStore("home/jobs"), JobPaths("flights", "1")
before = full_syncs()
CheckpointLog(objects, paths).claim("run-1")
assert full_syncs() > before
assert call_json("status", "flights")["status"] == "not running"

HOLD = '''
import sys, time
from penstock.job.lease import LeaseHolder, acquire
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from tests.support.tools.leases import LONG_MS, EagerKeeper
holder = LeaseHolder.of_this_process("run-1")
lease = acquire(FileObjectStore("home/jobs"), JobPaths("flights", "1"), holder, LONG_MS, time.monotonic() + 60)
EagerKeeper(lease).start()
print("held", flush=True)
sys.stdin.read()
'''
driver = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert driver.stdout.readline() == b"held\\n"
assert call_json("status", "flights")["status"] == "running"
me = LeaseHolder.of_this_process("run-2")
try:
    acquire(objects, paths, me, 60_000, time.monotonic() + 60)
    raise AssertionError("the driver lives")
except LeaseHeldError as error:
    held = error.holder
    assert held.pid == driver.pid
driver.kill()
lease = acquire(objects, paths, me, 60_000, time.monotonic() + 10)  # at once, by the end of its process
driver.communicate()
assert held.known_dead() and not me.known_dead() and me.known_alive()

# Weaker than on Linux: a process that got the pid counts as unknown, so that the lease must stand still.
other = replace(me, process_start="at 1.0")
assert not other.known_dead() and other.known_alive() is None
print("done")
"""


def without_linux(*arguments: str, cwd: Path = ROOT) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    own["HYPOTHESIS_NO_PLUGINS"] = "1"  # trio has one, which refuses to be loaded there
    own |= {
        "PYTHONPATH": f"{ROOT / 'tests/support/without_linux'}{os.pathsep}{ROOT}",
        "PENSTOCK_HOME": str(cwd / "home"),
    }
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=cwd, env=own, capture_output=True, text=True, check=False, timeout=5 * DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_commands_and_leases_without_what_only_linux_has(tmp_path: Path) -> None:
    assert without_linux("-c", COMMANDS, cwd=tmp_path) == "done\n"


@pytest.mark.slow
def test_a_job_and_the_processes_of_a_local_run_without_what_only_linux_has() -> None:
    told = without_linux("-m", "pytest", "-q", "-p", "no:cacheprovider", *OTHERS)
    assert int(told.splitlines()[-1].split(" passed")[0]) >= len(OTHERS), told


def test_a_file_system_without_a_full_sync_gets_the_usual_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This system refuses macOS's command, as a file system of a network does there."""
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    posix.sync_path(tmp_path)
    closed = os.open(tmp_path, os.O_RDONLY)
    os.close(closed)
    with pytest.raises(OSError, match="Bad file descriptor"):
        posix.sync(closed)


@pytest.mark.parametrize("has_pidfd", [False, True])
def test_the_end_of_a_process_is_seen_before_a_wait_for_it(has_pidfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    waiting = threading.Thread(target=posix.await_end, args=(child.pid,))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    child.kill()
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()
    child.communicate()
    posix.await_end(child.pid)


def test_a_process_is_known_by_its_start() -> None:
    start = posix.process_start(os.getpid())
    assert start is not None
    assert posix.is_process(os.getpid(), start) is True
    assert posix.is_process(os.getpid(), "at 1.0") is None, "the clock may have been set"
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(DEADLINE_S)
    assert posix.is_process(child.pid, start) is False


def test_names_that_a_file_system_takes_for_one_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Symbolic links are the other names by which macOS finds an entry without listing it."""
    names = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [each for each in names(path) if not Path(path, each).is_symlink()])
    system = LocalSystem("local", str(tmp_path / "streams"))
    assert system.admin().create_stream("trips", 1)
    objects = FileObjectStore(tmp_path / "jobs")
    assert objects.put_if_absent("trips-1/lease", b"1")
    for folder in (tmp_path / "streams", tmp_path / "jobs"):
        (found,) = folder.glob("trips*")
        for name in ("Trips", "tRIPS"):
            (folder / found.name.replace("trips", name)).symlink_to(found)
    for call in (system.admin().create_stream, lambda name, _: system.admin().delete_stream(name)):
        with pytest.raises(ConfigError, match=r"`local\.Trips` cannot be told from `local\.trips`"):
            call("Trips", 1)
    with pytest.raises(ConfigError, match=r"Trips-1 cannot be told from `trips-1`"):
        objects.put_if_absent("Trips-1/lease", b"2")
    assert not system.admin().create_stream("trips", 1)
    assert objects.get("trips-1/lease") == b"1"


def test_waits_take_descriptors_beyond_those_of_select() -> None:
    """A container process has as many files open as its stores have."""
    code = """
import os, resource, subprocess, sys
from penstock.host.posix import await_end, await_input

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
reading, writing = os.pipe()
assert reading > 1024
assert not await_input(reading, 0.01)
os.write(writing, b"x")
assert await_input(reading, 60)
child.stdin.close()
await_end(child.pid)
assert child.poll() is not None
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=DEADLINE_S)


ORPHAN = """
import os, sys
from penstock.host.posix import adopt_orphans
print(int(adopt_orphans()), flush=True)
child = os.fork()
if child == 0:
    if os.fork() == 0:
        sys.stdin.read()  # lives until the test ends
    os._exit(0)
os.waitpid(child, 0)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has it")
def test_a_process_adopts_what_its_children_leave() -> None:
    """Containers stay below their executor, so that YARN counts their memory."""
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        assert parent.stdout.readline() == b"1\n"
        wait_until(lambda: [child.ppid() for child in psutil.Process(parent.pid).children()] == [parent.pid], "adopted")
        parent.stdin.close()


def test_without_linux_no_process_adopts_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not posix.adopt_orphans()


PROGRAM = """
import resource, sys
from penstock.host.process import allow_files
resource.setrlimit(resource.RLIMIT_NOFILE, tuple(map(int, sys.argv[1:])))
allow_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("soft", "hard", "then"), [(1024, 4096, "4096 4096"), (64, 64, "64 64")])
def test_as_many_files_as_the_host_allows(soft: int, hard: int, then: str) -> None:
    run = [sys.executable, "-c", PROGRAM, str(soft), str(hard)]
    assert subprocess.run(run, capture_output=True, text=True, check=True, timeout=60).stdout.strip() == then


DRIVER = """
import subprocess, sys, time
from penstock.host.posix import driver_mark
mark = driver_mark() if sys.argv[1] == "own" else {"PENSTOCK_DRIVER": sys.argv[1]}
waits = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=mark)
print(child.pid, int(child.stdout.readline()), flush=True)
time.sleep(600)
"""


@contextmanager
def started_driver(mark: str = "own") -> Iterator[tuple[psutil.Process, psutil.Process, psutil.Process]]:
    """A process, one that it has started and that waits for its input, and one that this one has started in turn."""
    with subprocess.Popen([sys.executable, "-c", DRIVER, mark], cwd=ROOT, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        own = [psutil.Process(driver.pid), *map(psutil.Process, map(int, driver.stdout.readline().split()))]
        try:
            yield own[0], own[1], own[2]
        finally:
            for process in own:
                if process.is_running():
                    process.kill()


def is_stopped(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_STOPPED


def test_what_a_dead_driver_left_standing_still_goes_on() -> None:
    with started_driver() as (driver, child, grandchild):
        for process in (child, grandchild):
            process.suspend()
            wait_until(lambda: is_stopped(process), "it stands still")  # noqa: B023
        driver.kill()
        wait_until(lambda: not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE, "the end of the driver")
        assert is_stopped(child), "its input has ended, and it does not notice"
        assert {child.pid, grandchild.pid} <= set(posix.wake_left())
        wait_until(lambda: not child.is_running(), "it ends by itself")
        assert grandchild.status() != psutil.STATUS_STOPPED


@pytest.mark.parametrize("case", ["living driver", "another namespace", "no driver", "runs"])
def test_nothing_else_is_continued(case: str) -> None:
    """A process that somebody has stopped stays so: to look at it, or because its driver is another host's."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    marks = {"another namespace": f"{gone.pid},1,pid:[1]", "no driver": "nobody"}
    with started_driver(marks.get(case, "own")) as (driver, child, _):
        if case != "runs":
            child.suspend()
            wait_until(lambda: is_stopped(child), "it stands still")
        if case == "runs":
            driver.kill()
        assert child.pid not in posix.wake_left()
        assert case == "runs" or is_stopped(child)
