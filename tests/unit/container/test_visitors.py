"""Silent connections on a port whose server accepts them all itself, as gRPC does."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

import pytest

from penstock.container.gate import Visitors, peer_of
from tests.support.processes.containers import wait_until
from tests.support.tools.fixtures import fixture_of

listener = fixture_of(lambda: socket.create_server(("127.0.0.1", 0)))


def name_of(caller: socket.socket) -> str:
    """As gRPC writes it."""
    host, port = caller.getsockname()
    return f"ipv4:{host}:{port}"


def has_ended(caller: socket.socket) -> bool:
    caller.setblocking(False)
    try:
        return caller.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.attack
def test_few_strangers_stay_and_whoever_is_admitted(listener: socket.socket) -> None:
    visitors = Visitors(most=3, seconds=60)
    with ExitStack() as undo:
        undo.callback(visitors.close)
        port = listener.getsockname()[1]
        callers = []
        for _ in range(10):
            callers.append(undo.enter_context(socket.create_connection(("127.0.0.1", port), 5)))
            undo.enter_context(listener.accept()[0])
        visitors.admit(name_of(callers[0]))
        visitors.watch(port)
        wait_until(lambda: sum(map(has_ended, callers)) == 6, "the end of all but three strangers")
        assert not has_ended(callers[0])
        late = undo.enter_context(socket.create_connection(("127.0.0.1", port), 5))
        undo.enter_context(listener.accept()[0])
        wait_until(lambda: sum(map(has_ended, callers)) == 7, "the end of one more")
        assert not has_ended(late)
        assert not has_ended(callers[0])


@pytest.mark.attack
def test_a_stranger_has_little_time_and_whoever_is_admitted_has_any(listener: socket.socket) -> None:
    visitors = Visitors(most=3, seconds=0.5)
    with ExitStack() as undo:
        undo.callback(visitors.close)
        port = listener.getsockname()[1]
        visitors.watch(port)
        stranger, known = (undo.enter_context(socket.create_connection(("127.0.0.1", port), 5)) for _ in range(2))
        for _ in range(2):
            undo.enter_context(listener.accept()[0])
        began = time.monotonic()
        visitors.admit(name_of(known))
        wait_until(lambda: has_ended(stranger), "the end of the stranger")
        assert time.monotonic() - began >= 0.4
        assert not has_ended(known)


@pytest.mark.attack
def test_other_sockets_of_the_process_are_left_alone(listener: socket.socket) -> None:
    visitors = Visitors(most=0, seconds=0.1)
    with ExitStack() as undo:
        undo.callback(visitors.close)
        other = undo.enter_context(socket.create_server(("127.0.0.1", 0)))
        mine = undo.enter_context(socket.create_connection(other.getsockname(), 5))
        undo.enter_context(other.accept()[0])
        one, two = socket.socketpair()
        undo.enter_context(one)
        undo.enter_context(two)
        stranger = undo.enter_context(socket.create_connection(listener.getsockname(), 5))
        undo.enter_context(listener.accept()[0])
        visitors.watch(listener.getsockname()[1])
        wait_until(lambda: has_ended(stranger), "the end of the stranger")
        assert not has_ended(mine)
        assert not has_ended(one)
        undo.enter_context(socket.create_connection(listener.getsockname(), 5))  # it still listens
        undo.enter_context(listener.accept()[0])


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("ipv4:127.0.0.1:40112", ("127.0.0.1", 40112)),
        ("ipv6:[::1]:40112", ("::1", 40112)),
        ("ipv6:%5B::1%5D:40112", ("::1", 40112)),
        ("ipv6:%5B::ffff:10.0.0.7%5D:1", ("10.0.0.7", 1)),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", ("fe80::1", 1)),
    ],
)
def test_the_peer_in_its_name(name: str, peer: tuple[str, int]) -> None:
    assert peer_of(name) == peer
