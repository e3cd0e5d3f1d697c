"""Hosts on one machine: each has its own network, host name and hosts file, and all are on one switch.

A host's name resolves to 127.0.1.1 on the host itself, as on every Debian, and to its address on the others. The
namespaces belong to processes that end with this one, whatever happens to it, and they end with the processes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import psutil

from tests.support.jobs.home import kill

_NETWORK = "10.99.7"
_TOOLS = ("ip", "unshare", "nsenter", "setpriv", "mount", "hostname")
_HOLD = """
hostname {name} && mount --bind {hosts} /etc/hosts && ip link set lo up && echo ready && exec cat
"""
# Every process ends with the one that started it, even if that is killed.
_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")


@cache
def why_no_hosts() -> str | None:
    """Why hosts cannot be made here; None if they can."""
    if sys.platform != "linux":
        return "network namespaces exist on Linux only"
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)}"
    links = "ip link add name br0 type bridge && ip link add ve0 type veth peer name ve1"
    command = ["unshare", "--net", "--uts", "--mount", "sh", "-c", f"{links} && hostname x && mount -t tmpfs x /mnt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"namespaces cannot be made: {done.stderr.strip()}"


@dataclass
class Host:
    """One host: a name, an address, and the process that keeps its namespaces."""

    name: str
    address: str
    holder: subprocess.Popen[str]
    switch: subprocess.Popen[str]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def prefix(self) -> tuple[str, ...]:
        """The command that runs another one on this host; the process keeps its id."""
        return (*_WITH_PARENT, "nsenter", "-t", str(self.holder.pid), "--net", "--uts", "--mount")

    def start(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a process on this host, its output appended to a file."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*self.prefix, *command],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.started.append(process)
        return process

    def cut(self) -> None:
        """Take the link down: nothing reaches this host or leaves it, and nobody hears about it."""
        self._switch("ip", "link", "set", self._port, "down")

    def join(self) -> None:
        """Take the link up again."""
        self._switch("ip", "link", "set", self._port, "up")

    def throttle(self, rate: str, latency_ms: int) -> None:
        """Delay packets to this host, and lose those that would have to wait longer than `latency_ms`."""
        self._switch(
            "tc", "qdisc", "add", "dev", self._port, "root", "tbf",
            "rate", rate, "burst", "16kb", "latency", f"{latency_ms}ms",
        )  # fmt: skip

    def replace_file(self, file: Path, by: Path) -> None:
        """On this host alone, a file has the content of another one."""
        _run(*self.prefix, "mount", "--bind", str(by), str(file))

    def kill(self) -> None:
        """The host loses its power: every process on it ends at once."""
        self.cut()
        for process in self.processes():
            kill(process)

    def processes(self) -> list[psutil.Process]:
        """Every process on this host but the one that keeps it."""
        mine = Path(f"/proc/{self.holder.pid}/ns/net").readlink()
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != self.holder.pid and Path(f"/proc/{process.pid}/ns/net").readlink() == mine:
                    found.append(process)
            except OSError:
                continue
        return found

    @property
    def _port(self) -> str:
        return f"to-{self.name}"

    def _switch(self, *command: str) -> None:
        _run("nsenter", "-t", str(self.switch.pid), "--net", *command)


@contextmanager
def hosts(*names: str) -> Iterator[list[Host]]:
    """Hosts of these names on one switch. In the end every process on them is killed."""
    with tempfile.TemporaryDirectory() as folder:
        addresses = {name: f"{_NETWORK}.{number}" for number, name in enumerate(names, 1)}
        made: list[Host] = []
        switch = _hold("switch", {}, Path(folder))
        try:
            _run("nsenter", "-t", str(switch.pid), "--net", "ip", "link", "add", "name", "bridge", "type", "bridge")
            _run("nsenter", "-t", str(switch.pid), "--net", "ip", "link", "set", "bridge", "up")
            for name, address in addresses.items():
                host = Host(name, address, _hold(name, addresses, Path(folder)), switch)
                made.append(host)
                _connect(host)
            yield made
        finally:
            for host in made:
                for process in host.processes():
                    kill(process)
                for started in host.started:
                    started.kill()
                    started.wait(30)
                _end(host.holder)
            _end(switch)


def _connect(host: Host) -> None:
    """A cable between the host and the switch."""
    port = f"to-{host.name}"
    host._switch("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(host.holder.pid))
    host._switch("ip", "link", "set", port, "master", "bridge", "up")
    inside = ("nsenter", "-t", str(host.holder.pid), "--net")
    _run(*inside, "ip", "address", "add", f"{host.address}/24", "dev", "eth0")
    _run(*inside, "ip", "link", "set", "eth0", "up")


def _hold(name: str, addresses: Mapping[str, str], folder: Path) -> subprocess.Popen[str]:
    """A process with namespaces of its own. It ends when its standard input does, so with this process."""
    lines = ["127.0.0.1 localhost", f"127.0.1.1 {name}"]
    lines += [f"{address} {other}" for other, address in addresses.items() if other != name]
    file = folder / f"hosts-{name}"
    file.write_text("\n".join(lines) + "\n", encoding="ascii")
    process = subprocess.Popen(
        [*_WITH_PARENT, "unshare", "--net", "--uts", "--mount", "sh", "-c", _HOLD.format(name=name, hosts=file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    answer = process.stdout.readline()
    assert answer == "ready\n", f"host {name} was not made: {answer}"
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(30)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
