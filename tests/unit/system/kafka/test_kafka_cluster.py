"""A cluster whose brokers do not answer."""

from __future__ import annotations

import socket
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.errors import RetryableError, SystemAwayError
from penstock.system.kafka import client
from penstock.system.kafka import cluster as kafka_cluster
from penstock.system.kafka.cluster import Cluster
from penstock.system.kafka.options import parse_options


def test_a_call_whose_client_another_thread_replaces_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both threads wait for brokers that do not answer; the one that gives up first takes a new client."""
    monkeypatch.setattr(kafka_cluster, "_FIRST_TRY_S", 30.0)
    asked = threading.Event()
    made = list[Any]()

    def open_admin(*given: Any) -> Any:
        made.append(1)
        return client.open_admin(*given)

    monkeypatch.setattr(kafka_cluster, "open_admin", open_admin)
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as pool:
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        options = parse_options("k", {"consumer.bootstrap.servers": servers, "consumer.default.api.timeout.ms": "2000"})
        cluster = Cluster(options)
        topic = cluster._topic

        def ask(*given: Any) -> Any:
            futures = topic(*given)
            asked.set()
            return futures

        monkeypatch.setattr(cluster, "_topic", ask)
        waiting = pool.submit(cluster.partition_count, "x")
        assert asked.wait(10)
        cluster._replace(1)
        with pytest.raises(RetryableError):
            waiting.result()
        cluster.close()
    assert len(made) > 1


def test_errors_keep_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka aborts a process that frees a client in a callback of the client, as Python's garbage collector does
    with a client that the frames of an error keep."""
    monkeypatch.setattr(kafka_cluster, "_FIRST_TRY_S", 0.05)
    monkeypatch.setattr(kafka_cluster, "_SPARE_S", 0.01)
    clients = list[weakref.ref[Any]]()

    def open_admin(*given: Any) -> Any:
        made = client.open_admin(*given)
        clients.append(weakref.ref(made))
        return made

    monkeypatch.setattr(kafka_cluster, "open_admin", open_admin)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        options = parse_options("k", {"consumer.bootstrap.servers": servers, "consumer.default.api.timeout.ms": "300"})
        cluster = Cluster(options)
        with pytest.raises(SystemAwayError) as caught:
            cluster.partition_count("x")
        cluster.close()
    assert len(clients) > 1
    assert [each() for each in clients] == [None] * len(clients), caught.traceback
