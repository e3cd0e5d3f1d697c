"""Spark's ports on the driver's machine, as another user of it reaches them."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.tools.places import ROOT
from tests.support.tools.strangers import PYTHON, as_stranger

pytestmark = [pytest.mark.spark, pytest.mark.attack]

PROGRAM = """
import logging, sys
import psutil
from penstock.spark.session.session import create_context
logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
given = dict(pair.split("=") for pair in sys.argv[1:])
context = create_context("guarded", {"spark.master": "local[1]", **given})
kept = context.broadcast(b"a secret of the run")
large = context.parallelize([1], 1).map(lambda _: kept.value * 100_000).collect()
assert large == [b"a secret of the run" * 100_000], "Spark fetches a large result from its own port"
context.parallelize([1], 1).foreach(lambda _: None)  # and accumulators have come back
me, jvm = psutil.Process(), psutil.Process(context._gateway.proc.pid)
found = [(p, each) for p in [me, *me.children(recursive=True)] for each in p.net_connections("tcp")]
listening = {(p.pid, each.laddr) for p, each in found if each.status == "LISTEN"}
assert {pid for pid, _ in listening} == {jvm.pid}, "no port of this program and of Spark's workers"
assert {where.ip.removeprefix("::ffff:") for _, where in listening} == {"127.0.0.1"}
calls, gateway = int(context._conf.get("spark.driver.port")), context._gateway.gateway_parameters.port
(blocks,) = {where.port for _, where in listening} - {calls, gateway}
print(blocks, calls, gateway, flush=True)
sys.stdin.readline()
context.stop()
"""
STRANGER = """
import socket, sys
framed = sys.argv[3] == "framed"
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20) as peer:
    peer.sendall(bytes.fromhex(sys.argv[2]))
    peer.settimeout(20)
    found = b""
    while not framed or len(found) < 8 or len(found) < int.from_bytes(found[:8], "big"):
        try:
            more = peer.recv(65536)
        except ConnectionResetError:
            break
        if not more:
            break
        found += more
sys.stdout.buffer.write(found)
"""
ANSWERED, FAILED = 4, 5
"""Kinds of messages of Spark: the answer to a call, and its error."""


@contextmanager
def driver(**keys: str) -> Iterator[tuple[int, int, int]]:
    """A driver that stays; the ports of its block manager, of its calls, and of the gateway to its JVM."""
    command = [sys.executable, "-c", PROGRAM, *(f"{key.replace('_', '.')}={value}" for key, value in keys.items())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        blocks, calls, gateway = process.stdout.readline().split()
        yield int(blocks), int(calls), int(gateway)
        process.communicate("\n", 60)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def ask(port: int, body: bytes) -> tuple[int, bytes]:
    """The kind and the content of Spark's answer to a call of a stranger: another user, where this one may be it."""
    call = struct.pack(">qBqi", 8 + 1 + 8 + 4 + len(body), 3, 7, len(body)) + body
    answer = send(port, call, "framed")
    return (answer[8], answer[9:]) if answer else (FAILED, b"cut off")


def send(port: int, data: bytes, how: str) -> bytes:
    """The answer to a stranger who sends this: one message of Spark's if it is `framed`, or else all until the end."""
    command = [PYTHON, "-c", STRANGER, str(port), data.hex(), how]
    done = as_stranger(*command) if os.getuid() == 0 else subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def text(value: str) -> bytes:
    return struct.pack(">i", len(value)) + value.encode()


def open_blocks(*names: str) -> bytes:
    """A call that opens blocks, as Spark's own executors send it."""
    return b"\0" + text("app") + text("driver") + struct.pack(">i", len(names)) + b"".join(map(text, names))


def test_a_stranger_gets_no_block_and_no_call_of_spark() -> None:
    with driver() as (blocks, calls, gateway):
        for port in (blocks, calls):
            kind, content = ask(port, open_blocks("broadcast_0_piece0"))
            assert kind == FAILED
            assert b"Sasl" in content or content == b"cut off", "refused before it is looked at"
        heard = send(gateway, b"r\nu\njava.lang.System\nrj\ne\n", "until the end")
        assert not heard or heard.startswith(b"!x"), "the gateway asks for its token first"


def test_the_same_call_opens_a_block_where_spark_asks_nobody() -> None:
    with driver(spark_authenticate="false") as (blocks, calls, _):
        assert ask(blocks, open_blocks("broadcast_0_piece0"))[0] == ANSWERED
        kind, content = ask(calls, open_blocks("broadcast_0_piece0"))
        assert kind == FAILED
        assert b"Sasl" not in content
        assert content != b"cut off"
