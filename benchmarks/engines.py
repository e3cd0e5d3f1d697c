"""Other engines to compare with: each in a separate environment, which is kept for the next run, and its scripts."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import console
from penstock.testing.kafka_jars import cache_folder

PEERS = Path(__file__).parent / "peers"
"""The scripts."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Another engine: what is installed, and the script that runs its side."""

    requirement: str
    """Names for pip, separated by spaces."""
    path: Path
    """The script."""
    connector: tuple[str, str, str] | None = None
    """The group, name and version of a jar that it needs, with all that this one depends on."""
    threads: bool = False
    """True if one process uses all cores."""
    prepares: bool = False
    """True if the script first has to make the files of a cluster."""

    @property
    def folder(self) -> Path:
        """Its environment."""
        name = "".join(c if c.isalnum() or c in ".-" else "-" for c in self.requirement)
        return cache_folder() / "benchmarks" / name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def jars(self) -> list[str]:
        return sorted(str(path) for path in (self.folder / "jars").glob("*.jar"))


def installed(sides: Sequence[str], engines: Mapping[str, Engine]) -> list[str]:
    """The sides whose engines are installed, or can be. The others are left out, each with a line that says why."""
    found = []
    for side in sides:
        left_out = install(engines[side]) if side in engines else None
        if left_out is None:
            found.append(side)
        else:
            console.print(f"{side} is left out: {left_out}")
    return found


def install(engine: Engine) -> str | None:
    """Install an engine, unless it is there. Returns why it is left out, if it cannot be installed."""
    if engine.python.exists():
        return None
    making = engine.folder.with_suffix(f".{os.getpid()}")
    making.parent.mkdir(parents=True, exist_ok=True)
    pip = [str(making / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    commands = [[sys.executable, "-m", "venv", str(making)], [*pip, *engine.requirement.split()]]
    try:
        if engine.connector is not None:
            commands.append(_fetch_jars(making, *engine.connector))
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            if done.returncode != 0:
                lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
                return next((line for line in lines if "ERROR" in line), f"it cannot be installed: {lines[-1:]}")
        making.rename(engine.folder)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return None


def _fetch_jars(folder: Path, group: str, name: str, version: str) -> list[str]:
    """The command that fetches a jar and what it depends on into `jars`."""
    maven = shutil.which("mvn")
    if maven is None:
        raise OSError("its connector needs `mvn`")
    folder.mkdir(exist_ok=True)
    pom = folder / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>penstock</groupId><artifactId>connector</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies><dependency><groupId>{group}</groupId>"
        f"<artifactId>{name}</artifactId><version>{version}</version></dependency></dependencies></project>",
        encoding="utf-8",
    )
    options = ["-DincludeScope=runtime", f"-DoutputDirectory={folder / 'jars'}"]
    return [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", *options]


def start_script(engine: Engine, given: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    """A process of an engine, with its parameters as JSON. It prints where this process does."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(engine.python), str(engine.path), json.dumps(given)]
    return subprocess.Popen(command, stdout=sys.stdout.fileno(), stderr=sys.stderr.fileno(), env=environment)


def start_scripts(engine: Engine, given: Mapping[str, Any], count: int) -> list[subprocess.Popen[bytes]]:
    """The processes of an engine, which know each other's addresses. `start` is how often they were started before."""
    given = {**given, "addresses": [f"127.0.0.1:{_free_port()}" for _ in range(count)], "prepare": False}
    if engine.prepares and given["start"] == 0:
        start_script(engine, {**given, "process": 0, "prepare": True}).wait()
    return [start_script(engine, {**given, "process": number}) for number in range(count)]


def counted(work: Path, start: int = 0) -> int:
    """The number of messages that all processes have counted, by the last line that each has appended to its file."""
    found = 0
    for path in work.glob(f"counted-*-{start}"):
        lines = path.read_text().split("\n")
        found += int(lines[-2].split()[1]) if len(lines) > 1 else 0
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
