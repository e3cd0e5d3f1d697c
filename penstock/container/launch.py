"""Starting containers, from a Spark task on their executor's host, and the register of those that were started.

The register of a run on one executor is a small file, where everyone finds it who starts containers. It is in Spark's
scratch folder of the executor, so it does not outlive that. While the executor lives, the run removes it: each
container does, when the driver closes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson
import psutil

from penstock.base.documents import decode, decoding
from penstock.base.files import PRIVATE_FILE, open_lock
from penstock.errors import CorruptError, PenstockError, PenstockTimeoutError, RetryableError
from penstock.host.logs import exit_status, last_words, log_path, open_log, prune, wrapped
from penstock.host.posix import ExecutorProcess, await_input, ending, own_executor
from penstock.wire.containers import ContainerAddress, ContainerSpec, LaunchFailure

_LARGEST = 16 << 20


class Register:
    """The file, and a lock beside it. Neither is made before it is used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = path.with_suffix(".lock")

    @classmethod
    def of(cls, run_id: str, executor_pid: int) -> Register:
        base = Path(os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0])
        return cls(base / f"penstock-{run_id}-{executor_pid}.json")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other processes while the block runs."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(open_lock(self._lock), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self) -> list[ContainerAddress]:
        """The containers that were started. Raises CorruptError."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            data = file.read(_LARGEST + 1)
        what = f"the list of this executor's containers, {self.path}, is damaged"
        with decoding(what):
            if len(data) > _LARGEST:
                raise ValueError(f"it has more than {_LARGEST} bytes")
            return decode(list[ContainerAddress], data, what)

    def write(self, containers: Sequence[ContainerAddress]) -> None:
        temporary = self.path.with_suffix(".tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(temporary, flags, PRIVATE_FILE), "wb") as file:
            file.write(orjson.dumps([asdict(address) for address in containers]))
        temporary.rename(self.path)

    def remove(self) -> None:
        """Remove the register at the end of the run. Idempotent, and any of its containers may do it.

        A Spark task that was cancelled may still be starting containers. It writes the file again, which then stays
        until the executor ends.
        """
        self.path.unlink(missing_ok=True)
        self._lock.unlink(missing_ok=True)


_ALLOCATOR = {
    # Give what a batch needed back after it: few arenas for gRPC's many threads, large buffers mapped and unmapped.
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(256 << 10),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 20),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


def ensure_containers(
    spec: ContainerSpec, count: int, timeout_s: float, condemned: frozenset[str], addresses: Mapping[str, str]
) -> list[ContainerAddress | LaunchFailure]:
    """Make sure that this executor has `count` live containers of the run. Returns their addresses, and the failures of
    those that did not start.

    Several tasks of one executor may call it at once: one starts the containers, the others wait for it. The condemned
    incarnations count as lost, so they are killed if they still run. `addresses` are the executors' hosts as the driver
    resolves them, by executor id: a host's own name may resolve to a loopback address on that host.
    """
    executor = own_executor()
    spec = _located(spec, executor, addresses)
    register = Register.of(spec.run_id, executor.pid)
    with register.locked():
        try:
            known = register.read()
        except CorruptError as error:  # which containers run is unknown: more beside them would be too many
            return [LaunchFailure(executor.id, str(error))]
        for address in known:
            if address.incarnation in condemned:
                kill(address)
        alive = [a for a in known if a.incarnation not in condemned and _process(a) is not None]
        started = len(known)
        processes = [_spawn(spec, _name(executor, started + n), executor.pid) for n in range(count - len(alive))]
        deadline = time.monotonic() + timeout_s
        failures: list[LaunchFailure] = []
        for process in processes:
            try:
                alive.append(_await_address(process, deadline))
            except PenstockError as error:
                failures.append(LaunchFailure(executor.id, str(error)))
        # Dead ones stay listed, so that names are not used twice.
        register.write([a for a in known if a not in alive] + alive)
    return [*alive, *failures]


def _located(spec: ContainerSpec, executor: ExecutorProcess, addresses: Mapping[str, str]) -> ContainerSpec:
    known = addresses.get(executor.id) or executor.host
    if spec.host is None:
        listen = executor.bind_address or known or os.environ.get("SPARK_LOCAL_IP") or socket.gethostname()
        spec = replace(spec, host=listen, reached_at=known or listen)
    return replace(spec, executor_id=executor.id)


def _name(executor: ExecutorProcess, number: int) -> str:
    """Unique in the run. On different hosts, executors may have the same process id."""
    return f"{executor.pid}-{number}" if executor.host is None else f"{executor.id}-{executor.pid}-{number}"


def kill(address: ContainerAddress) -> None:
    """Kill a container, if it is still there. Another process that has its pid by now is left alone."""
    process = _process(address)
    if process is not None:
        with contextlib.suppress(psutil.Error):  # psutil compares the times they began, and refuses another process
            process.kill()


def _process(address: ContainerAddress) -> psutil.Process | None:
    """The process of exactly this incarnation; None if it has ended."""
    try:
        process = psutil.Process(address.pid)
        command = process.cmdline()
        own = "penstock.container" in command and address.incarnation in command
        return process if own and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


@dataclass(frozen=True, slots=True)
class _StartedProcess:
    """A started container: its shell, which writes the exit status to the log."""

    shell: subprocess.Popen[bytes]
    log: Path


def _spawn(spec: ContainerSpec, name: str, parent: int) -> _StartedProcess:
    """A child in the executor's process group, so that it ends with the executor's Python daemon as well."""
    environment = dict(os.environ)
    environment = {**_ALLOCATOR, **environment}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    incarnation = secrets.token_hex(8)
    log = log_path(spec.log_directory, name, incarnation)
    log.parent.mkdir(parents=True, exist_ok=True)
    prune(log.parent)
    command = shlex.join([sys.executable, "-m", "penstock.container", name, incarnation, str(parent)])
    with open_log(log) as errors:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            ["/bin/sh", "-c", wrapped(command, log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            close_fds=True,
        )
    if process.stdin is None:
        raise RetryableError("the container's standard input could not be opened")
    with contextlib.suppress(BrokenPipeError):  # it has ended already, and waiting for its address says how
        process.stdin.write(orjson.dumps(asdict(spec)))
        process.stdin.close()
    return _StartedProcess(process, log)


def _await_address(started: _StartedProcess, deadline: float) -> ContainerAddress:
    process = started.shell
    if process.stdout is None:
        raise RetryableError("the container's standard output could not be opened")
    with process.stdout:
        ready = await_input(process.stdout.fileno(), max(0.0, deadline - time.monotonic()))
        line = process.stdout.readline() if ready else b""
    if line:
        what = f"the container process {process.pid} wrote {line[:200]!r} where its address was expected"
        return decode(ContainerAddress, line, what)
    where = f"the container process {process.pid} on {socket.gethostname()}"
    if not ready:
        _kill(process)
        raise PenstockTimeoutError(
            f"{where} did not start within job.container.start.timeout.ms{_last_words(started.log)}"
        )
    process.wait()
    status = exit_status(started.log, 0.0)
    how = "ended" if status is None else ending(status)
    raise RetryableError(f"{where} {how} while it started{_last_words(started.log)}")


def _kill(shell: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(shell.pid).children():
            child.kill()
    shell.wait()


def _last_words(log: Path) -> str:
    words = last_words(log)
    return f". Its last words: {' | '.join(words)}. Its log: {log}" if words else "; it wrote nothing"
