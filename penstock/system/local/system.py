"""The local system by its configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from penstock.errors import ConfigError
from penstock.system.base import System, WriterIdentity, check_options
from penstock.system.local.admin import LocalAdmin
from penstock.system.local.files import LocalFiles
from penstock.system.local.reader import LocalReader
from penstock.system.local.writer import LocalWriter


@dataclass(frozen=True, slots=True)
class LocalSystem(System):
    """Streams in a folder of this host (or of a file system with working POSIX locks; NFS is not one).

    `root` is made absolute, so that every process means the same folder; `~` is expanded. `busy_timeout_ms` is the time
    that a step waits for another process that appends to the same partition.

    Raises:
        ConfigError: the name is empty or has a dot, the root is empty, or the timeout is negative.
    """

    name: str
    root: str
    busy_timeout_ms: int = 30_000

    dense_offsets: ClassVar[bool] = True
    fences: ClassVar[bool] = True
    compacts_on_request: ClassVar[bool] = True
    keeps_owners: ClassVar[bool] = True
    readers_seek: ClassVar[bool] = True
    carries_headers: ClassVar[bool] = True
    retains: ClassVar[bool] = True
    ends_streams: ClassVar[bool] = True
    reports_appended: ClassVar[bool] = True
    keeps_progress: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.name or "." in self.name:
            raise ConfigError(f"`{self.name}` cannot be a system's name: it must not be empty or have a dot")
        if not self.root:
            raise ConfigError(f"the local system `{self.name}` needs a root folder")
        if self.busy_timeout_ms < 0:
            raise ConfigError(f"the local system `{self.name}`: busy_timeout_ms is {self.busy_timeout_ms}")
        object.__setattr__(self, "root", os.path.abspath(os.path.expanduser(self.root)))

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> LocalSystem:
        check_options(name, options, ["path"])
        return cls(name, options.get("path", ""))

    def admin(self) -> LocalAdmin:
        """The admin keeps the partitions open that it has looked at."""
        return LocalAdmin(self._files())

    def reader(self) -> LocalReader:
        return LocalReader(self._files())

    def writer(self, identity: WriterIdentity | None) -> LocalWriter:
        return LocalWriter(self._files(), identity)

    def _files(self) -> LocalFiles:
        return LocalFiles(self.name, self.root, self.busy_timeout_ms)
