"""A schema registry that others wrote: Apicurio, in memory, with the API of Confluent's."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import NotFoundError
from penstock.testing.kafka_jars import cache_folder, find_java, locked

VERSION = "2.6.13.Final"
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
_FETCH_S = 300.0
_START_S = 180.0


@contextlib.contextmanager
def apicurio() -> Iterator[str]:
    """The address of a registry for the caller alone. Skips the test where it cannot be fetched or started."""
    try:
        folder, java = _fetched(), find_java()
    except NotFoundError as error:
        pytest.skip(f"no schema registry: {error}")
    runner = next(folder.glob("*-runner.jar"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}", "-Dquarkus.log.level=WARN"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [str(java), "-Xmx256m", "-XX:TieredStopAtLevel=1", *options, "-jar", str(runner)],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
        try:
            address = f"http://127.0.0.1:{port}/apis/ccompat/v7"
            _await_answer(f"{address}/subjects", process)
            yield address
        finally:
            process.kill()
            process.wait()


def _await_answer(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the registry does not answer at {url}; its process: {process.poll()}") from None
            time.sleep(0.1)


def _fetched() -> Path:
    """The folder of the unpacked archive. Raises NotFoundError."""
    folder = cache_folder() / f"apicurio-{VERSION}"
    if not folder.exists():
        with locked(folder, _FETCH_S + 60):
            if not folder.exists():
                _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NotFoundError("there is no `mvn` to fetch Apicurio with")
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.new-", dir=folder.parent) as temporary:
        place = Path(temporary)
        copy = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={place}"]
        try:
            done = subprocess.run(copy, cwd=place, capture_output=True, text=True, timeout=_FETCH_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise NotFoundError(f"`mvn` did not fetch {_ARTIFACT} within {_FETCH_S:.0f} s") from error
        archives = list(place.glob("*.tar.gz"))
        if done.returncode or not archives:
            raise NotFoundError(f"`mvn` could not fetch {_ARTIFACT}: {(done.stdout or done.stderr).strip()[-300:]}")
        with tarfile.open(archives[0]) as archive:
            archive.extractall(place / "app", filter="data")
        (place / "app").rename(folder)
