"""A container's port with TLS: only who has the run's key gets in, and nothing crosses the network in clear."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.flight as flight
import pytest

from penstock.container.auth import call_options
from penstock.container.calls import CLOSE, START_RUN
from penstock.container.client import ContainerClient
from penstock.container.protocol import Identity, Nothing, StartRun
from penstock.container.tls import TlsIdentity, connect, new_identity
from penstock.errors import ContainerLostError, PenstockError
from penstock.runtime.batch import Batch
from tests.support.containers import SECRET, ContainerProcess

IDENTITY = new_identity()


@pytest.fixture
def container(tmp_path: Path) -> Iterator[ContainerProcess]:
    container = ContainerProcess(tmp_path, tls=IDENTITY)
    yield container
    container.kill()


def by_port(container: ContainerProcess, tls: TlsIdentity | None, uri: str | None = None) -> ContainerClient:
    """A client on another host."""
    uri = uri or container.address.tcp_uri
    return ContainerClient(replace(container.address, machine="another", tcp_uri=uri), SECRET, tls)


def start_run(client: ContainerClient, timeout_s: float = 5) -> None:
    """A call that the container refuses, because it is in no epoch yet."""
    client.ask(START_RUN, 1, StartRun(Batch(1, 1, 0)), timeout_s)


def is_served(client: ContainerClient) -> bool:
    """Whether the container itself answers."""
    with pytest.raises(PenstockError) as caught:
        start_run(client, 20)
    return "epoch" in str(caught.value)


def test_a_client_with_the_key_is_served_on_the_port_and_on_the_socket(container: ContainerProcess) -> None:
    assert container.address.tcp_uri.startswith("grpc+tls://127.0.0.1:")
    assert is_served(by_port(container, IDENTITY))
    assert is_served(container.client)


def test_no_one_else_is_served(container: ContainerProcess) -> None:
    plain = container.address.tcp_uri.replace("grpc+tls", "grpc")
    for client in (by_port(container, new_identity()), by_port(container, None, plain)):
        with pytest.raises(ContainerLostError):
            start_run(client)
    uri = container.address.tcp_uri
    nameless = flight.connect(uri, tls_root_certs=IDENTITY.certificate, override_hostname="penstock")
    trusting = flight.connect(uri, disable_server_verification=True)
    for stranger in (nameless, trusting):
        with pytest.raises(flight.FlightError):
            list(stranger.do_action(flight.Action("close", b"{}"), call_options(SECRET, 5)))
    assert is_served(by_port(container, IDENTITY))


def test_a_client_does_not_talk_to_another_server(tmp_path: Path) -> None:
    other = ContainerProcess(tmp_path, tls=new_identity())
    try:
        with pytest.raises(ContainerLostError):
            start_run(by_port(other, IDENTITY))
    finally:
        other.kill()


@pytest.mark.parametrize("tls", [IDENTITY, None], ids=["tls", "clear"])
def test_what_an_eavesdropper_reads(tmp_path: Path, tls: TlsIdentity | None) -> None:
    container = ContainerProcess(tmp_path, tls=tls)
    try:
        with eavesdropping(container.address.tcp_uri) as (uri, heard):
            client = connect(uri, tls)
            body = CLOSE.encode(Identity("a-word-of-the-job", 1), Nothing())
            with pytest.raises(flight.FlightError):
                list(client.do_action(flight.Action("close", body), call_options(SECRET, 20)))
            client.close()
        assert heard
        assert (b"a-word-of-the-job" in b"".join(heard)) == (tls is None)
    finally:
        container.kill()


@contextmanager
def eavesdropping(uri: str) -> Iterator[tuple[str, list[bytes]]]:
    """A port that passes everything on to another one, and what was sent there."""
    target = urlsplit(uri)
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            server = socket.create_connection((target.hostname, target.port or 0))
            answers = threading.Thread(target=pass_on, args=(server, client, []))
            answers.start()
            pass_on(client, server, heard)
            answers.join()
            client.close()
            server.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"{target.scheme}://127.0.0.1:{listener.getsockname()[1]}", heard
        thread.join(20)


def pass_on(source: socket.socket, to: socket.socket, heard: list[bytes]) -> None:
    """Until one side ends."""
    try:
        while data := source.recv(65536):
            heard.append(data)
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)
    except OSError:
        pass
