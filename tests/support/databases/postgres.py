"""A PostgreSQL for tests: the one of this machine, or else binaries from Maven Central."""

from __future__ import annotations

import contextlib
import lzma
import os
import platform
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from penstock.errors import NotFoundError
from penstock.testing.kafka_jars import cache_folder, locked
from penstock.testing.kafka_server import GuardedProcess

VERSION = "16.4.0"
PASSWORD = "p@ss/word:1"
_SYSTEMS = {"x86_64": "amd64", "aarch64": "arm64v8"}
_FETCH_S = 300.0
_START_S = 120.0
_NOBODY = 65534
"""PostgreSQL refuses to run as root."""
_AS_NOBODY = (
    f"import os, sys; os.setgroups([]); os.setgid({_NOBODY}); os.setuid({_NOBODY}); os.execv(sys.argv[1], sys.argv[1:])"
)


@dataclass
class Postgres:
    """A server on a port of this machine, for the caller alone."""

    folder: Path
    programs: Path
    port: int
    process: GuardedProcess | None = None

    @property
    def url(self) -> str:
        """SQLAlchemy's, without the password."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "deadlock_timeout": "20ms",
        }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        command = _command([str(self.programs / "postgres"), "-D", str(self.folder / "data"), *settings])
        end = time.monotonic() + _START_S
        while True:
            if self.process is None or self.process.status is not None:  # processes of a killed one may still be there
                self.process = GuardedProcess(command, self.folder, self.folder / "server.log")
            try:
                self.connect().close()
            except psycopg.OperationalError:
                if time.monotonic() > end:
                    raise RuntimeError((self.folder / "server.log").read_text()) from None
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        """End the server as a crash does. Its port refuses connections until `start`."""
        if self.process is not None:
            self.process.kill()
            self.process = None

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", password=PASSWORD, dbname="postgres", autocommit=True
        )


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """A new server. Skips the test where there is none to start."""
    # In /tmp, because another user may not enter the folders of tests.
    with tempfile.TemporaryDirectory(prefix="penstock-postgres-", dir="/tmp") as temporary:
        folder = Path(temporary)
        if os.getuid() == 0:
            os.chown(folder, _NOBODY, _NOBODY)
        folder.chmod(0o755)
        try:
            programs = _programs(folder)
        except NotFoundError as error:
            pytest.skip(f"no PostgreSQL: {error}")
        password = folder / "password"
        password.write_text(PASSWORD)
        options = ["-D", str(folder / "data"), "-U", "postgres", "-A", "scram-sha-256", "--pwfile", str(password), "-N"]
        made = subprocess.run(
            _command([str(programs / "initdb"), *options, "-E", "UTF8", "--locale=C"]),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            pytest.skip(f"no PostgreSQL: {made.stderr.strip()[-300:]}")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = Postgres(folder, programs, port)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def _command(command: Sequence[str]) -> list[str]:
    return [sys.executable, "-c", _AS_NOBODY, *command] if os.getuid() == 0 else [*command]


def _programs(folder: Path) -> Path:
    """The folder of `postgres` and `initdb`. Raises NotFoundError."""
    if found := shutil.which("initdb"):
        own = Path(found).resolve().parent
        if (own / "postgres").exists():
            return own
    jar = _fetched()
    with zipfile.ZipFile(jar) as archive:
        packed = next(name for name in archive.namelist() if name.endswith(".txz"))
        with archive.open(packed) as file, tarfile.open(fileobj=lzma.open(file)) as binaries:
            binaries.extractall(folder / "programs", filter="tar")
    return folder / "programs" / "bin"


def _fetched() -> Path:
    """The jar with the binaries, in the cache. Raises NotFoundError."""
    name = f"embedded-postgres-binaries-linux-{_SYSTEMS.get(platform.machine(), platform.machine())}"
    jar = cache_folder() / f"{name}-{VERSION}.jar"
    if not jar.exists():
        with locked(jar, _FETCH_S + 60):
            if not jar.exists():
                _fetch(f"io.zonky.test.postgres:{name}:{VERSION}", jar)
    return jar


def _fetch(artifact: str, jar: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NotFoundError("there is no `initdb`, and no `mvn` to fetch PostgreSQL with")
    with tempfile.TemporaryDirectory(prefix=f"{jar.name}.new-", dir=jar.parent) as temporary:
        copy = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={temporary}"]
        try:
            done = subprocess.run(copy, cwd=temporary, capture_output=True, text=True, timeout=_FETCH_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise NotFoundError(f"`mvn` did not fetch {artifact} within {_FETCH_S:.0f} s") from error
        if done.returncode or not (Path(temporary) / jar.name).exists():
            raise NotFoundError(f"`mvn` could not fetch {artifact}: {(done.stdout or done.stderr).strip()[-300:]}")
        (Path(temporary) / jar.name).rename(jar)
