"""Logs and last words that the processes of a job leave on their host.

The log of a container has its own output and the application's, bounded in size and number, and the end of its
process. The containers that run here are found by their logs. A driver writes its last words here for a job root
that takes nothing any more: the disk is full, for example. Room for them is taken when the driver starts. Words are
written into it in place, which needs no free block of a disk.
"""

from __future__ import annotations

import fcntl
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import psutil

from penstock.config.model import JobConfig
from penstock.config.settings import LogFormat
from penstock.host.log_lines import LineFormatter, LossyStream, PassedOn, PrintedText
from penstock.host.posix import ending
from penstock.job.paths import JobPaths

FILE_BYTES = 10 << 20
"""A log is cut at this size: the part before goes to `<log>.1`, which is replaced then."""
KEPT_LOGS = 20
_CHECK_SECONDS = 1.0
_ENDED = "penstock: exit status "
"""The beginning of the last line, which the shell around a container writes."""
_SIGNALLED = 128
"""A shell reports 128 plus the number of the signal."""
_TAIL_BYTES = 8 << 10
_LAST_LINES = 4
_LINE_CHARACTERS = 300


def log_directory(config: JobConfig, paths: JobPaths, uid: str) -> Path:
    """The folder of a job's logs on each host. Jobs of two roots may have the same name, but never the same uid."""
    return logs_folder(config) / (f"{paths.root}-{uid}" if uid else paths.root)


def logs_folder(config: JobConfig) -> Path:
    """The folder on each host with the logs of all jobs."""
    return Path(config.job.logged_store_base_dir) / "logs"


def log_path(directory: str, name: str, incarnation: str) -> Path:
    return Path(directory) / f"container-{name}-{incarnation}.log"


def page_path(log: Path) -> Path:
    """The container's page of positions; see `penstock.host.position_page`."""
    return log.with_suffix(".page")


# In the process that starts a container.


def wrapped(command: str, log: Path) -> str:
    """A shell script that runs the command and logs its exit status, which nobody else would learn: the Spark worker
    that starts a container does not live as long."""
    quoted = "'" + str(log).replace("'", "'\\''") + "'"
    # Its own words about that ("Killed") go nowhere. The command replaces a second shell, because some shells have a
    # command's standard error while they wait for the command.
    return f"""exec 3>&2 2>/dev/null; trap "" INT TERM; (exec {command} 2>&3 3>&-)
        status=$?; echo "{_ENDED}$status" >>{quoted}; exit $status"""


def logs_in(directory: Path) -> dict[Path, str]:
    """The logs in a folder, and the name of the container of each, by name."""
    return {
        path: path.stem.removeprefix("container-").rpartition("-")[0]
        for path in sorted(directory.glob("container-*.log"))
    }


def open_log(path: Path) -> BinaryIO:
    """A new log, for the job's user only. It is not deleted as long as the file is open somewhere: here, and in
    processes that inherit it."""
    log: BinaryIO = os.fdopen(_append(path), "ab")
    return log


def _append(path: Path) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with suppress(OSError):  # a file system without locks: its logs may be deleted early
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def prune(directory: Path, keep: int = KEPT_LOGS) -> None:
    """Delete the oldest logs of containers that have ended, except for the newest `keep`."""
    ended = [path for path in directory.glob("container-*.log") if not _is_held(path)]
    with suppress(OSError):
        for path in sorted(ended, key=lambda p: p.stat().st_mtime, reverse=True)[keep:]:
            path.unlink(missing_ok=True)
            path.with_suffix(".log.1").unlink(missing_ok=True)
            page_path(path).unlink(missing_ok=True)


def _is_held(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
    except OSError:
        return True


# In the container.


def log_to(path: Path) -> TextIO:
    """Redirect the descriptors of standard output and error to the log, and Python's streams with them. Returns a
    stream into the log."""
    log = _Log(path)
    raw: Any = _Stream(log)
    stream = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):  # the last two are Python's for "the real ones"
        setattr(sys, name, stream)
    threading.Thread(target=log.watch, name="log", daemon=True).start()
    return stream


class _Log:
    """The file behind the descriptors 1 and 2. It is locked as long as the process lives."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._open()

    def _open(self) -> None:
        descriptor = _append(self._path)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        os.close(descriptor)

    def cut(self) -> None:
        """Begin a new file if this one is large enough."""
        if os.fstat(1).st_size < FILE_BYTES:
            return
        with self._lock:
            if os.fstat(1).st_size >= FILE_BYTES:
                with suppress(OSError):  # an earlier try has moved it, and could not begin the new one
                    self._path.replace(self._path.with_suffix(".log.1"))
                with suppress(OSError):  # the folder is gone, or has no room: the open file goes on
                    self._open()

    def watch(self) -> None:
        """Cut the log even if libraries write past Python."""
        while True:
            time.sleep(_CHECK_SECONDS)
            self.cut()


class _Stream(LossyStream):
    """Python's output stream, which checks the size after each piece."""

    def __init__(self, log: _Log) -> None:
        super().__init__(2, FILE_BYTES)
        self._log = log

    def written(self) -> None:
        self._log.cut()


# For callers that ask what became of a container.


def exit_status(log: Path, wait_s: float) -> int | None:
    """The exit status of the container's process, a signal as a negative number; None if it is not known in time."""
    deadline = time.monotonic() + wait_s
    while True:
        for line in reversed(_tail(log)):
            if line.startswith(_ENDED) and line[len(_ENDED) :].isdigit():
                status = int(line[len(_ENDED) :])
                return status if status <= _SIGNALLED else _SIGNALLED - status
        if time.monotonic() > deadline or not log.exists():
            return None
        time.sleep(0.02)


def last_words(log: Path) -> list[str]:
    return [line[:_LINE_CHARACTERS] for line in _tail(log) if not line.startswith(_ENDED)][-_LAST_LINES:]


def _tail(log: Path) -> list[str]:
    return [line for line in _last_bytes(log).decode(errors="replace").splitlines() if line.strip()]


def _last_bytes(log: Path) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read()
    except OSError:
        return b""


def epitaph(pid: int, log: Path) -> Iterator[str]:
    status = exit_status(log, 0.0)
    yield f"process {pid} {'ended' if status is None else ending(status)}"
    if words := last_words(log):
        yield f"its last words: {' | '.join(words)}"


def setup_logging(stream: TextIO, form: LogFormat, job: str) -> PassedOn:
    """Log to the stream, each line with the work that it belongs to, and what the application prints as well. Returns
    the lines for the driver."""
    raw: Any = stream.buffer
    handler, passed_on = logging.StreamHandler(stream), PassedOn(lambda: raw.dropped)
    formatter = LineFormatter(form, job)
    handler.setFormatter(formatter)
    raw.note = lambda text: formatter.format(
        logging.makeLogRecord({"name": __name__, "levelname": "ERROR", "msg": text})
    )
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    for each in (handler, passed_on):
        root.addHandler(each)
    levels = (logging.INFO, logging.WARNING)
    sys.stdout, sys.stderr = (PrintedText(level, stream.buffer, (handler, passed_on)) for level in levels)
    return passed_on


_MODULE = "penstock.container"


@dataclass(frozen=True, slots=True)
class ContainerProcess:
    """A container on this host, and its process id."""

    container: str
    pid: int


def containers_here(log_directory: str) -> list[ContainerProcess]:
    """The containers that run on this host and log into the directory, which is the job's alone; by name."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        match process.info["cmdline"]:
            case [_, "-m", module, name, incarnation, _] if module == _MODULE:
                alive = process.info["status"] != psutil.STATUS_ZOMBIE
                if alive and log_path(log_directory, name, incarnation).exists():
                    found.append(ContainerProcess(name, process.pid))
    return sorted(found, key=lambda each: (each.container, each.pid))


_ROOM_BYTES = 32 << 10
KEPT_WORDS = 20
"""Files of drivers that did not end by themselves."""


class WordsOnHost:
    """The file of one driver, named by the token of its lease."""

    def __init__(self, folder: Path, driver: str) -> None:
        """Nothing is read or written yet. `folder`: the folder of all jobs' logs."""
        self._folder = folder
        self._path = folder / f"driver-{driver}.words"

    def reserve(self) -> None:
        """Take the room, and delete old files. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        others = sorted(self._folder.glob("driver-*.words"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in others[KEPT_WORDS:]:
            path.unlink(missing_ok=True)
        self._path.write_bytes(b" " * _ROOM_BYTES)

    def write(self, words: bytes) -> None:
        """Raises OSError if there is no room."""
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.write(words.ljust(_ROOM_BYTES))
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> bytes | None:
        """The words; None if there are none on this host."""
        with suppress(OSError):
            return self._path.read_bytes().strip() or None
        return None

    def release(self) -> None:
        """Give the room back, unless there are words in it."""
        with suppress(OSError):
            if self.read() is None:
                self._path.unlink(missing_ok=True)
