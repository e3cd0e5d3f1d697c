"""Addresses of containers, and the settings that start one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import msgspec

from penstock.documents import Count

ProcessId: TypeAlias = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]


@dataclass(frozen=True, slots=True)
class ContainerAddress:
    """Where a container listens and which process it is. `incarnation` is random: a restarted process is another."""

    container: str
    incarnation: str
    machine: str
    """Equal on the same machine only: decides between the socket and the port."""
    pid: ProcessId
    executor_pid: ProcessId
    """The executor's JVM. Several containers of one executor have the same machine and executor_pid."""
    socket_uri: str
    tcp_uri: str
    log_path: str
    copies: tuple[Count, ...]
    """The tasks of which there were copies on its host when it started."""
    executor_id: str
    """Spark's name of its executor."""
    certificate: str | None = field(default=None, repr=False)
    """What its port proves who it is with; None: it does not speak TLS."""
    callers: str | None = field(default=None, repr=False)
    """The certificate that callers of that port must have."""

    def uri_from(self, machine: str) -> str:
        """How to reach it from `machine`."""
        return self.socket_uri if machine == self.machine else self.tcp_uri


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """How to start a container. Goes to its standard input, so that no process list shows the secret."""

    run_id: str
    secret: str = field(repr=False)
    host: str | None
    """The address its port listens on. None: the one by which Spark knows the executor."""
    log_directory: str
    copies_directory: str | None = None
    """Where copies of the job's stores lie on each host, if they are kept."""
    reached_at: str | None = None
    """The address by which others reach that port, if it is not `host`."""
    executor_id: str = "driver"
    tls: bool = False
    """Whether its port speaks TLS. Its socket does not: it is on the same host, in a private folder."""
    callers: str | None = field(default=None, repr=False)
    """The certificate that callers of a port with TLS must have."""


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    """A container that did not start, and why."""

    executor_id: str
    reason: str
