"""A real S3 server for tests, behind a line that a test can make slow, faulty, or cut."""

from __future__ import annotations

import http.client
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from penstock.metadata import remote_client, remote_store
from tests.support.line import Line
from tests.support.places import ROOT

BUCKET = "penstock"


@dataclass(frozen=True)
class S3:
    """A running server. Clients with `environment` speak to it over the line."""

    port: int
    line: Line

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs to find the server."""
        return {
            "AWS_ENDPOINT_URL": self.line.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
        }

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

    def create_bucket(self, name: str) -> None:
        """Make a bucket."""
        self._ask("PUT", f"/{name}")

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


@contextmanager
def s3_server() -> Iterator[S3]:
    """A server with the bucket `BUCKET` and a line to it; both end with the block, and with this process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.s3_server"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with Line(port) as line:
                s3 = S3(port, line)
                s3.create_bucket(BUCKET)
                yield s3
        finally:
            process.kill()


def give_up_soon(monkeypatch: pytest.MonkeyPatch, within_s: float) -> None:
    """Stores of this process try again for so long only."""
    monkeypatch.setattr(remote_client, "RETRY_SECONDS", within_s)
    monkeypatch.setattr(remote_store, "_AGAIN", replace(remote_store._AGAIN, within_s=within_s))
