"""Starting containers, from a Spark task on their executor's host."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import psutil

from penstock.container.machine import executor_pid
from penstock.container.protocol import ContainerAddress, ContainerSpec
from penstock.errors import PenstockTimeoutError, RetryableError

_ALLOCATOR = {
    # Give what a batch needed back after it: few arenas for gRPC's many threads, large buffers mapped and unmapped.
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(256 << 10),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 20),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


def ensure_containers(
    spec: ContainerSpec, count: int, timeout_s: float, condemned: frozenset[str]
) -> list[ContainerAddress]:
    """Make sure that this executor has `count` live containers of the run, and say where they are.

    Several tasks of one executor may call it at once: one starts them, the others wait for it. The condemned
    incarnations count as lost, so they are killed if they still stand there.
    """
    parent = executor_pid()
    base = Path(os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0])
    base.mkdir(parents=True, exist_ok=True)
    register = base / f"penstock-{spec.run_id}-{parent}.json"
    with register.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = _read(register) if register.exists() else []
        for address in known:
            if address.incarnation in condemned and _is_alive(address):
                psutil.Process(address.pid).kill()
        alive = [a for a in known if a.incarnation not in condemned and _is_alive(a)]
        started = len(known)
        processes = [_spawn(spec, f"{parent}-{started + n}", parent) for n in range(count - len(alive))]
        deadline = time.monotonic() + timeout_s
        alive += [_await_address(process, deadline) for process in processes]
        temporary = register.with_suffix(".tmp")
        # Dead ones stay listed, so that names are not used twice.
        everyone = [a for a in known if a not in alive] + alive
        temporary.write_bytes(orjson.dumps([asdict(address) for address in everyone]))
        temporary.rename(register)
    return alive


def _read(register: Path) -> list[ContainerAddress]:
    return [_address(fields) for fields in orjson.loads(register.read_bytes())]


def _address(fields: dict[str, Any]) -> ContainerAddress:
    return ContainerAddress(**{**fields, "copies": tuple(fields["copies"])})


def _is_alive(address: ContainerAddress) -> bool:
    """Whether the process is there; that it is a container, and which incarnation, each call to it checks."""
    try:
        process = psutil.Process(address.pid)
        return process.status() != psutil.STATUS_ZOMBIE and "penstock.container" in process.cmdline()
    except psutil.Error:
        return False


def _spawn(spec: ContainerSpec, name: str, parent: int) -> subprocess.Popen[bytes]:
    """A child in the executor's process group, so that it ends with the executor's Python daemon as well."""
    environment = dict(os.environ)
    environment = {**_ALLOCATOR, **environment}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", "penstock.container", name, str(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None,
        env=environment,
        close_fds=True,
    )
    if process.stdin is None:
        raise RetryableError("the container's standard input could not be opened")
    process.stdin.write(orjson.dumps(asdict(spec)))
    process.stdin.close()
    return process


def _await_address(process: subprocess.Popen[bytes], deadline: float) -> ContainerAddress:
    if process.stdout is None:
        raise RetryableError("the container's standard output could not be opened")
    ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
    line = process.stdout.readline() if ready else b""
    process.stdout.close()
    if not line:
        process.kill()
        raise PenstockTimeoutError(
            f"container process {process.pid} did not come up (exit status {process.wait()}): see the executor's "
            "standard error; job.container.start.timeout.ms sets how long it may take"
        )
    return _address(orjson.loads(line))
