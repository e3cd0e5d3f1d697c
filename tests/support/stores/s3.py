"""A real S3 server for tests, behind a line that a test can make slow, faulty, or cut."""

from __future__ import annotations

import http.client
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.objects import open as open_module
from tests.support.processes.hosts import Host
from tests.support.streams.line import Line

BUCKET = "penstock"


@dataclass(frozen=True)
class S3:
    """A running server. Clients with `environment` speak to it over the line."""

    port: int
    line: Line

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment in which a process finds the server."""
        return environment(self.line.url)

    def fresh_url(self) -> str:
        """A place below the bucket that nobody has used."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex}"

    @contextmanager
    def knowing_nobody(self) -> Iterator[None]:
        """Meanwhile the server asks for credentials, and has never heard of any."""
        self._ask("POST", "/moto-api/reset-auth", b"0")
        try:
            yield
        finally:
            self._ask("POST", "/moto-api/reset-auth", b"inf")

    def _ask(self, method: str, path: str, body: bytes = b"") -> None:
        """A request of the test's own, past the line."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body)
            reply = connection.getresponse()
            text = reply.read()
            assert reply.status == 200, text
        finally:
            connection.close()


def environment(url: str) -> dict[str, str]:
    """The environment in which a process finds the server at this URL."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "NO_PROXY": str(urlsplit(url).hostname),
    }


@contextmanager
def s3_server() -> Iterator[S3]:
    """A server with the bucket `BUCKET` and a line to it; both end with the block, and with this process."""
    with _serving("127.0.0.1") as port, Line(port) as line:
        yield S3(port, line)


@contextmanager
def s3_on(host: Host) -> Iterator[dict[str, str]]:
    """A server on a host of a test. Gives what processes on all hosts need to find it."""
    with _serving(host.address, host.prefix) as port:
        yield environment(f"http://{host.address}:{port}")


@contextmanager
def _serving(address: str, prefix: Sequence[str] = ()) -> Iterator[int]:
    process = subprocess.Popen(
        [*prefix, sys.executable, str(Path(__file__).with_name("s3_server.py")), address, BUCKET],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def give_up_soon(monkeypatch: pytest.MonkeyPatch, within_s: float) -> None:
    """Stores of this process try again for so long only."""
    monkeypatch.setattr(open_module, "RETRY_SECONDS", within_s)
    monkeypatch.setattr(open_module, "_AGAIN", replace(open_module._AGAIN, within_s=within_s))
