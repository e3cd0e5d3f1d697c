"""A container's port with TLS: only callers of the run get in, and nothing crosses the network in clear."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from penstock.batch.batch import Batch
from penstock.container.gate import STRANGERS
from penstock.errors import ContainerLostError, PenstockError
from penstock.wire.client import ContainerClient
from penstock.wire.protocol import CLOSE, START_RUN, Identity, NoArguments, StartRun, carried_error
from penstock.wire.security import TlsIdentity, call_options, connect, new_identity
from tests.support.apps.container_app import oracle
from tests.support.processes.containers import SECRET, ContainerProcess, Job, stored, wait_until
from tests.support.processes.silent_caller import SilentCaller

CALLER = new_identity("client")


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerProcess]:
    container = ContainerProcess(tmp_path_factory.mktemp("container"), tls=CALLER)
    yield container
    container.kill()


@pytest.fixture
def renewed(tmp_path: Path) -> Iterator[ContainerProcess]:
    """One whose port gets other certificates."""
    container = ContainerProcess(tmp_path, tls=CALLER)
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
    with pytest.raises(PenstockError) as caught:
        start_run(client, 20)
    return "epoch" in str(caught.value)


def test_a_caller_of_the_run_is_served_on_the_port_and_on_the_socket(container: ContainerProcess) -> None:
    assert container.address.tcp_uri.startswith("grpc+tls://127.0.0.1:")
    assert is_served(by_port(container, CALLER))
    assert is_served(container.client)


@pytest.mark.attack
def test_no_one_else_is_served(container: ContainerProcess) -> None:
    plain = container.address.tcp_uri.replace("grpc+tls", "grpc")
    for client in (by_port(container, new_identity("client")), by_port(container, None, plain)):
        with pytest.raises(ContainerLostError):
            start_run(client)
    uri = container.address.tcp_uri
    nameless = flight.connect(uri, tls_root_certs=container.address.certificate, override_hostname="penstock")
    trusting = flight.connect(uri, disable_server_verification=True)
    options = call_options(SECRET, container.address.incarnation, 5)
    for stranger in (nameless, trusting):
        with pytest.raises(flight.FlightError):
            list(stranger.do_action(flight.Action("close", b"{}"), options))
    assert is_served(by_port(container, CALLER))


@pytest.mark.attack
def test_a_caller_talks_to_no_other_server(tmp_path: Path, container: ContainerProcess) -> None:
    """Not to one that has the callers' own key, nor to another container of the run."""
    heard: list[str] = []
    stranger = Stranger(CALLER, heard)
    port = f"grpc+tls://127.0.0.1:{stranger.port}"
    other = ContainerProcess(tmp_path, tls=CALLER)
    try:
        for uri in (port, other.address.tcp_uri):
            with pytest.raises(ContainerLostError, match="failed to connect"):
                start_run(by_port(container, CALLER, uri))
        assert not heard
    finally:
        stranger.shutdown()
        other.kill()


class Stranger(flight.FlightServerBase):  # type: ignore[misc]
    """Has the key of a worker, and would like to be a container."""

    def __init__(self, tls: TlsIdentity, heard: list[str]) -> None:
        super().__init__("grpc+tls://127.0.0.1:0", tls_certificates=[(tls.certificate, tls.key)])
        self._heard = heard

    def do_action(self, context: object, action: flight.Action) -> None:
        self._heard.append(action.type)


def test_certificates_live_for_days_and_sign_nothing(container: ContainerProcess) -> None:
    of_server = x509.load_pem_x509_certificate((container.address.certificate or "").encode())
    of_callers = x509.load_pem_x509_certificate(CALLER.certificate.encode())
    for each, usage in ((of_server, ExtendedKeyUsageOID.SERVER_AUTH), (of_callers, ExtendedKeyUsageOID.CLIENT_AUTH)):
        assert each.not_valid_after_utc - each.not_valid_before_utc < timedelta(days=8)
        assert not each.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert list(each.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [usage]
    assert of_server.public_key() != of_callers.public_key()


@pytest.mark.slow
def test_a_renewed_port_has_other_certificates_and_the_heartbeats_go_over_to_it(renewed: ContainerProcess) -> None:
    client, before = by_port(renewed, CALLER), renewed.address
    losses: list[str | None] = []
    client.listen(lambda lost: losses.append(lost.lost))
    wait_until(lambda: client.last_beat, "a beat")
    after = new_identity("client")
    client.renew(after)
    assert client.address.certificate != before.certificate
    assert client.address.callers == after.certificate
    assert is_served(client)
    old = urlsplit(before.tcp_uri)
    wait_until(lambda: is_closed(old.hostname, old.port), "the end of the old port")
    at = client.last_beat_at
    wait_until(lambda: client.last_beat_at > at, "a beat over the new port")
    for uri, tls in ((before.tcp_uri, CALLER), (client.address.tcp_uri, CALLER), (before.tcp_uri, after)):
        with pytest.raises(ContainerLostError):
            start_run(by_port(renewed, tls, uri))
    # On its own host the driver goes on over the socket, and knows the port of others.
    renewed.client.renew(CALLER)
    assert is_served(renewed.client)
    assert is_served(ContainerClient(replace(renewed.client.address, machine="another"), SECRET, CALLER))
    assert losses == []


@pytest.mark.attack
@pytest.mark.parametrize("tls", [CALLER, pytest.param(None, marks=pytest.mark.slow)], ids=["tls", "clear"])
def test_what_strangers_send_does_not_fill_the_memory(tmp_path: Path, tls: TlsIdentity | None) -> None:
    """The first message of a call reaches gRPC before the call's headers reach Flight."""
    container = ContainerProcess(tmp_path, tls=tls)
    address = container.address
    try:
        before = peak_bytes(address.pid)
        stranger = flight.connect(address.tcp_uri, **({} if tls is None else {"disable_server_verification": True}))
        with pytest.raises((flight.FlightError, pa.ArrowException)):
            list(stranger.do_action(flight.Action("open", bytes(64 << 20)), flight.FlightCallOptions(timeout=5)))
        stranger.close()
        uri = urlsplit(address.tcp_uri)
        with socket.create_connection((uri.hostname or "", uri.port or 0), 5) as raw, suppress(OSError):
            raw.sendall(bytes(64 << 20))
        assert is_served(by_port(container, tls))
        assert peak_bytes(address.pid) - before < 24 << 20
    finally:
        container.kill()


@pytest.mark.attack
@pytest.mark.parametrize("tls", [CALLER, pytest.param(None, marks=pytest.mark.slow)], ids=["tls", "clear"])
def test_silent_connections_take_little_and_keep_no_caller_out(tmp_path: Path, tls: TlsIdentity | None) -> None:
    """However many a stranger opens, and whenever one is ended. Callers that were there before stay."""
    container = ContainerProcess(tmp_path, tls=tls)
    uri = urlsplit(container.address.tcp_uri)
    process = psutil.Process(container.address.pid)
    listening = by_port(container, tls)
    losses: list[str | None] = []
    with ExitStack() as undo:
        undo.callback(container.kill)
        stranger = undo.enter_context(SilentCaller(uri.hostname or "", uri.port or 0))
        listening.listen(lambda lost: losses.append(lost.lost))
        wait_until(lambda: listening.last_beat, "a beat")
        files, threads = process.num_fds(), process.num_threads()
        stranger.open(1_500)
        assert is_served(by_port(container, tls))
        wait_until(lambda: process.num_fds() - files < 4 * STRANGERS, "few open files", 10)
        assert process.num_threads() - threads < 3 * STRANGERS
        for _ in range(4):
            stranger.open(50)
            assert is_served(by_port(container, tls))
        at = listening.last_beat_at
        wait_until(lambda: listening.last_beat_at > at, "a beat on a connection of before")
        assert losses == []


@pytest.mark.attack
def test_strangers_keep_no_caller_out_of_a_port_in_clear_and_callers_send_what_they_like(tmp_path: Path) -> None:
    container = ContainerProcess(tmp_path)
    uri = urlsplit(container.address.tcp_uri)
    with ExitStack() as undo:
        undo.callback(container.kill)
        container.address = replace(container.address, machine="another")
        container.client = by_port(container, None)
        for _ in range(200):
            undo.enter_context(socket.create_connection((uri.hostname or "", uri.port or 0), 5))
        job = Job(tmp_path, [container], tasks=1)
        job.open()
        sent = [{"key": str(n), "n": 1, "ballast": "x" * 10_000} for n in range(200)]
        job.run_batch(1, sent)
        assert stored(job, job.commit()) == oracle(sent)


def peak_bytes(pid: int) -> int:
    """The most memory that a process had so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))) << 10


def is_closed(host: str | None, port: int | None) -> bool:
    try:
        socket.create_connection((host or "", port or 0), 5).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        return False  # it closes just now
    return False


@pytest.mark.attack
@pytest.mark.parametrize("tls", [CALLER, None], ids=["tls", "clear"])
def test_what_an_eavesdropper_reads(tmp_path: Path, tls: TlsIdentity | None) -> None:
    container = ContainerProcess(tmp_path, tls=tls)
    try:
        with eavesdropping(container.address.tcp_uri) as (uri, heard):
            client = connect(uri, container.address.certificate, tls)
            options = call_options(SECRET, container.address.incarnation, 20)
            body = CLOSE.encode(Identity("a-word-of-the-job", 1), NoArguments())
            (answer,) = client.do_action(flight.Action("close", body), options)
            assert carried_error(answer.body.to_pybytes()), "there is no such epoch"
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
