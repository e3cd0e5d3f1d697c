"""A real Kafka broker for tests. A test that asks for one is skipped where none can be had."""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import fcntl
import functools
import logging
import pickle
import socket
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.errors import NotFoundError
from penstock.testing.kafka_broker import KafkaBroker, require_kafka
from penstock.testing.kafka_cluster import KafkaCluster
from tests.support.processes.containers import wait_until

TIMEOUT_S = 60.0
_RETRY_AFTER_S = 300.0
"""All processes of a run fail together to fetch the server."""
QUIET = logging.Logger("tests.kafka", logging.CRITICAL + 1)
"""For clients (`logger=QUIET`) of brokers that come and go: they would write each lost connection to standard error."""


@functools.cache
def _missing() -> str:
    """Why this machine has no Kafka; empty if it has."""
    try:
        require_kafka(retry_after_s=_RETRY_AFTER_S)
    except NotFoundError as error:
        return str(error)
    return ""


def skip_without_kafka() -> None:
    """Skip a test where no broker can be had. A broker that does not start fails it."""
    if _missing():
        pytest.skip(f"every test that needs a Kafka broker was left out: {_missing()}")


@contextlib.contextmanager
def shared_broker() -> Iterator[KafkaBroker]:
    """The broker of this run, for tests that leave it running: with listeners of every kind.

    The first process that asks for it starts it, and stops it once no other process uses it any more.
    """
    skip_without_kafka()
    folder = Path(tempfile.gettempdir())
    known = folder / "kafka-broker"
    with (folder / "kafka-broker-users").open("w") as users, contextlib.ExitStack() as stack:
        with _locked(folder / "kafka-broker-lock"):
            fcntl.flock(users, fcntl.LOCK_SH)
            broker: KafkaBroker | None = pickle.loads(known.read_bytes()) if known.exists() else None
            if broker is None or not _answers(broker):  # the process that had it has died
                broker = stack.enter_context(KafkaBroker(security=("PLAINTEXT", "SSL", "SASL_SSL")))
                known.write_bytes(pickle.dumps(_for_others(broker)))
                stack.callback(_await_others, users, known)
        yield broker


def _answers(broker: KafkaBroker) -> bool:
    host, _, port = broker.client_options()["bootstrap.servers"].rpartition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except OSError:
        return False
    return True


def _for_others(broker: KafkaBroker) -> KafkaBroker:
    """The same broker for another process, which can make clients of it and nothing else."""
    other, place = copy.copy(broker), broker._located
    other._place, other._discard = replace(place, held=[], process=None), None
    return other


def _await_others(users: TextIO, known: Path) -> None:
    with _locked(known.with_name("kafka-broker-lock")):
        known.unlink()
    faulthandler.cancel_dump_traceback_later()  # a wait for the tests of others, each of which has its own time limit
    fcntl.flock(users, fcntl.LOCK_EX)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def new_name(name: str = "topic") -> str:
    return f"{name}-{uuid.uuid4().hex[:12]}"


def new_topic(
    broker: KafkaBroker | KafkaCluster,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
    name: str = "topic",
) -> str:
    topic = new_name(name)
    admin = AdminClient(broker.client_options(), logger=QUIET)
    admin.create_topics([NewTopic(topic, partitions, -1, config=dict(config or {}))])[topic].result(TIMEOUT_S)
    wait_until(lambda: _is_known(admin, topic), f"topic `{topic}`")
    return topic


def _is_known(admin: AdminClient, topic: str) -> bool:
    """A broker answers that a topic was created before it knows the topic itself."""
    found = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
    return found.error is None and all(each.leader >= 0 for each in found.partitions.values())
