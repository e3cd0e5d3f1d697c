"""Linux's ways to know processes, hosts, clocks and disks, and the ways of other POSIX systems in their place.

No other module asks which system it runs on. Each function says where it is weaker elsewhere. Only Linux was tried:
tests hide what it alone has, and what this module has for macOS is otherwise untested.

By them this machine is identified, and other processes on it are watched.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

SOCKET_PATH_BYTES = 103
"""The longest path of a Unix socket on macOS and BSD; Linux has room for 107."""
_LOOK_SECONDS = 0.2
_PR_SET_CHILD_SUBREAPER = 36
_DRIVER, _MARK = "PENSTOCK_DRIVER", "{},{},{}"
"""A driver's pid, its start, and the namespace that its pid is of."""
_NO_FULL_SYNC = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY})


def boot_id() -> str:
    """An identity of this machine since its last start: two machines never have the same one. Empty where the system
    tells none, which is on all but Linux and macOS."""
    if sys.platform == "darwin":
        return _boot_session()
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return ""


@cache
def _boot_session() -> str:
    program = shutil.which("sysctl", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")  # cron's path lacks it
    if program is None:
        return ""
    command = [program, "-n", "kern.bootsessionuuid"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)  # noqa: S603 - ours
        return done.stdout.strip()
    return ""


def namespace(kind: str) -> str:
    """This process's namespace of a kind (`pid`, `mnt`); `-` on systems without, and empty if Linux does not tell."""
    if sys.platform != "linux":
        return "-"
    with suppress(OSError):
        return os.readlink(f"/proc/self/ns/{kind}")
    return ""


def process_start(pid: int) -> str | None:
    """The start of a living process, for `is_process`; None if the process is gone, empty if it is not told.

    Linux counts it in ticks since boot, which no change of the wall clock moves, and never equal for two processes with
    one pid. Elsewhere it is psutil's time of creation.
    """
    try:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return None
        with suppress(OSError):
            return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[19]
        return f"at {psutil.Process(pid).create_time()}"
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return ""


def is_process(pid: int, start: str) -> bool | None:
    """True if the process of this host with this start lives, False if it is gone, None if that is not known.

    Weaker elsewhere than on Linux: a pid that another process has by now counts as unknown, because a clock that was
    set may have moved the time of creation.
    """
    found = process_start(pid)
    if found is None:
        return False
    if found == start:
        return True if found else None
    return False if found.isdecimal() and start.isdecimal() else None


def await_input(descriptor: int, timeout_s: float | None = None) -> bool:
    """Wait until something can be read, or the other side has ended. False if that took too long. Unlike `select`, it
    takes the descriptors of a process that has more than 1,024 files open."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(None if timeout_s is None else timeout_s * 1000))


def await_end(pid: int) -> None:
    """Return when the process has ended; elsewhere than on Linux up to 0.2 s later."""
    try:
        with open(os.pidfd_open(pid), "rb", buffering=0) as handle:
            await_input(handle.fileno())
    except ProcessLookupError:
        pass
    except (AttributeError, OSError):  # another system, an old kernel, or a container that forbids it
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:  # nor has another one its pid
                time.sleep(_LOOK_SECONDS)


def driver_mark() -> dict[str, str]:
    """Environment variables for what this driver starts, and what that starts in turn: `wake_left` knows it by them."""
    return {_DRIVER: _MARK.format(os.getpid(), process_start(os.getpid()) or "", namespace("pid"))}


def wake_left() -> list[int]:
    """Continue (SIGCONT) what stands still on this host and was started by a driver that is dead. Returns the pids.

    Every process of a job ends by itself when its driver or its executor does. One that somebody has stopped (SIGSTOP)
    does not notice that, and nobody is left who would continue it. What belongs to a living driver stays as it is.
    """
    woken = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError, ValueError):  # it has ended, or is another user's
            if process.status() == psutil.STATUS_STOPPED and _is_left(process.environ().get(_DRIVER, "")):
                process.send_signal(signal.SIGCONT)
                woken.append(process.pid)
    return woken


def _is_left(mark: str) -> bool:
    pid, start, where = mark.split(",")
    return where == namespace("pid") and is_process(int(pid), start) is False


def adopt_orphans() -> bool:
    """Become the parent of every descendant whose own parent ends, in place of process 1. True if that is so, which is
    on Linux alone."""
    if sys.platform != "linux":
        return False
    try:
        return int(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False


def boot_time() -> float:
    """Seconds on a clock that also counts suspended time, so that a process that slept knows that it did.

    macOS's CLOCK_MONOTONIC counts it, unlike Python's `time.monotonic` there. Where neither does, a holder of a lease
    that slept learns it from its next renewal alone.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def sync(descriptor: int) -> None:
    """Return once the content of an open file or folder survives a power cut.

    macOS's `fsync` leaves it in the drive's cache, so its F_FULLFSYNC is used. A file system without that, such as one
    of a network, gets `fsync`, and promises no more than its server does.
    """
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(descriptor, full)
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
        else:
            return
    os.fsync(descriptor)


def sync_path(path: str | os.PathLike[str]) -> None:
    """`sync` for the file or folder at a path."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def other_spelling(path: str | os.PathLike[str]) -> str | None:
    """The name by which its folder lists an existing file or folder, if that is another one than the path's.

    File systems of macOS take names that differ in case alone for one name. None if the names are equal, if nothing is
    there, or if the file system is none of those.
    """
    folder, name = os.path.split(os.fspath(path))
    try:
        if name == name.swapcase() or not os.path.samefile(path, os.path.join(folder, name.swapcase())):
            return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    names = os.listdir(folder)
    return None if name in names else next((each for each in names if each.casefold() == name.casefold()), None)


def forks_with_libraries() -> bool:
    """True if a process that has loaded numpy and Arrow may fork. macOS's frameworks, which they may use, do not bear
    it."""
    return sys.platform != "darwin"


def machine_id() -> str:
    """Equal for two processes if, and only if, they can reach each other's Unix sockets and pids."""
    return "/".join((socket.gethostname(), boot_id(), namespace("pid"), namespace("mnt")))


@dataclass(frozen=True, slots=True)
class ExecutorProcess:
    """The executor that a Spark worker belongs to, as its command line describes it."""

    pid: int
    id: str
    """Spark's name for it; `driver` in local mode."""
    host: str | None
    """The host's name or address, as the executor reported it to the driver."""
    bind_address: str | None


def own_executor() -> ExecutorProcess:
    for parent in psutil.Process().parents():
        if "java" in parent.name().lower():
            arguments = parent.cmdline()
            return ExecutorProcess(
                parent.pid,
                _argument(arguments, "--executor-id") or "driver",
                _argument(arguments, "--hostname"),
                _argument(arguments, "--bind-address"),
            )
    return ExecutorProcess(os.getppid(), "driver", None, None)


def _argument(arguments: list[str], name: str) -> str | None:
    places = [place for place, argument in enumerate(arguments[:-1]) if argument == name]
    return arguments[places[-1] + 1] if places else None


def watch_process(pid: int, gone: Callable[[], None]) -> None:
    """Call `gone` from a daemon thread when the process has ended. Lives as long as this process."""
    threading.Thread(target=_watch, args=(pid, gone), name=f"watch-{pid}", daemon=True).start()


def _watch(pid: int, gone: Callable[[], None]) -> None:
    await_end(pid)
    gone()


def ending(status: int) -> str:
    """An exit status as `subprocess` has it, in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    memory = ": probably out of memory, or killed by hand" if -status == signal.SIGKILL else ""
    return f"was killed by {name} ({-status}{memory})"
