"""The logs of a job's containers on this host: what tasks print and log."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from penstock.admin.jobs import FoundJob
from penstock.errors import NotFoundError
from penstock.host.logs import log_directory, logs_in
from penstock.job.identity import uid_here

_TIME = re.compile(r'(?:\{"time":")?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)')
_TAIL_BYTES = 1 << 20
_READ_BYTES = 1 << 20
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a container's log. `time` is that of the line, or of the last line before it that has one, in UTC;
    empty if there is none."""

    container: str
    time: str
    text: str


def container_logs(job: FoundJob, lines: int = 200, *, follow: bool = False) -> Iterator[LogLine]:
    """The last lines of all containers' logs on this host, by time.

    Logs of containers that have ended are included, as long as the host keeps them.

    Args:
        job: the job.
        lines: how many, of all logs together; each log has its last megabyte.
        follow: continue with the lines that are written, without an end.

    Raises:
        NotFoundError: no container of the job has run on this host.

    Example:
        >>> with admin.open_job("flights") as job:  # doctest: +SKIP
        ...     [line.text for line in admin.container_logs(job, 1)]
        ['N14228 is new here']
    """
    folder = log_directory(job.config, job.paths, uid_here(job.objects, job.paths, job.config.job.root))
    logs = _Logs(folder)
    found = logs.last()
    if not logs.known and not follow:
        raise NotFoundError(
            f"no container of job `{job.paths.root}` has logged to `{folder}` on this host. Each container logs on the "
            "host that it runs on"
        )
    return _lines(logs, found[-lines:] if lines else [], follow=follow)


def _lines(logs: _Logs, found: list[LogLine], *, follow: bool) -> Iterator[LogLine]:
    yield from found
    while follow:
        time.sleep(_POLL_S)
        yield from logs.new()


class _Log:
    """One log, and how far it was read."""

    def __init__(self, path: Path, container: str) -> None:
        self._path = path
        self._container = container
        self._inode = 0
        self._position = 0
        self._time = ""

    def last(self) -> list[LogLine]:
        """The lines at the end."""
        with self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._inode, self._position = os.fstat(file.fileno()).st_ino, max(0, size - _TAIL_BYTES)
        lines = self.new()
        return lines[1:] if size > _TAIL_BYTES else lines  # the first one is not whole

    def new(self) -> list[LogLine]:
        """The whole lines that were written since. If the log was cut, they begin in the part before the cut."""
        found: list[LogLine] = []
        with self._path.open("rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._inode:
                found += self._rest()
                self._inode, self._position = inode, 0
            return found + self._read(file)

    def _rest(self) -> list[LogLine]:
        with suppress(FileNotFoundError), self._path.with_suffix(".log.1").open("rb") as file:
            if os.fstat(file.fileno()).st_ino == self._inode:
                return self._read(file)
        return []

    def _read(self, file: BinaryIO) -> list[LogLine]:
        file.seek(self._position)
        lines = []
        while (data := file.read(_READ_BYTES)) and (end := _whole_lines(data)):
            self._position += end
            file.seek(self._position)
            for line in data[:end].decode(errors="replace").splitlines():
                if (written := _TIME.match(line)) is not None:
                    self._time = written[1]
                lines.append(LogLine(self._container, self._time, line))
        return lines


def _whole_lines(data: bytes) -> int:
    """The length of the whole lines in the data. A line longer than one read is cut."""
    return data.rfind(b"\n") + 1 or (len(data) if len(data) == _READ_BYTES else 0)


class _Logs:
    """All logs in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.known: dict[Path, _Log] = {}

    def last(self) -> list[LogLine]:
        return self._sorted(first=True)

    def new(self) -> list[LogLine]:
        return self._sorted(first=False)

    def _sorted(self, *, first: bool) -> list[LogLine]:
        found: list[LogLine] = []
        paths = logs_in(self._folder)
        self.known = {path: log for path, log in self.known.items() if path in paths}
        for path, container in paths.items():
            log = self.known.setdefault(path, _Log(path, container))
            try:
                found += log.last() if first else log.new()
            except FileNotFoundError:
                continue  # it was deleted meanwhile
        return sorted(found, key=lambda line: line.time)
