"""Addresses of containers, and the settings that start one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import msgspec

from penstock.base.documents import Count
from penstock.config.settings import LogFormat

ProcessId: TypeAlias = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]


@dataclass(frozen=True, slots=True)
class ContainerAddress:
    """The endpoints and process of a container. `incarnation` is random: a restarted process is another incarnation."""

    container: str
    incarnation: str
    machine: str
    """Equal on the same machine only: decides between the socket and the port."""
    pid: ProcessId
    executor_pid: ProcessId
    """Process id of the executor's JVM. Several containers of one executor have the same machine and executor_pid."""
    socket_uri: str
    tcp_uri: str
    log_path: str
    copies: tuple[Count, ...]
    """The tasks that had copies on this host when the container started."""
    executor_id: str
    certificate: str | None = field(default=None, repr=False)
    """The TLS identity of this port; None: the port does not speak TLS."""
    callers: str | None = field(default=None, repr=False)
    """The certificate that callers of this port must present."""

    def uri_from(self, machine: str) -> str:
        return self.socket_uri if machine == self.machine else self.tcp_uri


@dataclass(frozen=True, slots=True)
class Lane:
    """A container and its tasks: what one process serves in a batch, however many tasks the job has."""

    address: ContainerAddress
    tasks: tuple[int, ...]


def lane_of_tasks(lanes: Sequence[Lane]) -> list[int]:
    """The number of the lane of each task."""
    return [lane for _, lane in sorted((task, number) for number, lane in enumerate(lanes) for task in lane.tasks)]


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """The settings that start a container. Sent to its standard input, so that no process list shows the secret."""

    run_id: str
    secret: str = field(repr=False)
    host: str | None
    """The address that its port listens on. None: the one by which Spark knows the executor."""
    log_directory: str
    copies_directory: str | None = None
    """The folder for copies of the job's stores on each host; None: no copies are kept."""
    reached_at: str | None = None
    """The address by which others reach the port, if it differs from `host`."""
    executor_id: str = "driver"
    job: str = ""
    log_format: LogFormat = "text"
    tls: bool = False
    """True if the port speaks TLS. The socket does not: it is on the same host, in a private folder."""
    callers: str | None = field(default=None, repr=False)
    """The certificate that callers of a TLS port must present."""


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    """A container that did not start."""

    executor_id: str
    reason: str
