"""Finds the containers of a job that run on this host, among its processes."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from penstock.host.logs import log_path

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
