"""Sends what no client of Python sends: a header whose name is any bytes. By the client's C library."""

from __future__ import annotations

import ctypes
from pathlib import Path

import confluent_kafka
import pytest

from penstock.testing.kafka_broker import KafkaBroker
from tests.support.streams.kafka import TIMEOUT_S

BAD_NAME = b"\xff\xfe"
_END, _TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _HEADERS, _COPY = 0, 1, 3, 4, 5, 7, 10, 2


def send_bad_header(broker: KafkaBroker, topic: str, partition: int, key: bytes, value: bytes | None) -> None:
    """Append a message with good headers around one whose name is not UTF-8, and wait until it is there."""
    c = _library()
    problem = ctypes.create_string_buffer(512)
    conf, headers = ctypes.c_void_p(c.rd_kafka_conf_new()), ctypes.c_void_p(c.rd_kafka_headers_new(3))
    for option, text in broker.client_options().items():
        assert c.rd_kafka_conf_set(conf, option.encode(), str(text).encode(), problem, 512) == 0, problem.value
    producer = ctypes.c_void_p(c.rd_kafka_new(0, conf, problem, 512))
    assert producer, problem.value
    try:
        for name in (b"before", BAD_NAME, b"after"):
            c.rd_kafka_header_add(headers, name, ctypes.c_ssize_t(len(name)), b"1", ctypes.c_ssize_t(1))
        parts = (_VALUE, value, ctypes.c_size_t(len(value or b"")), _KEY, key, ctypes.c_size_t(len(key)))
        place = (_TOPIC, topic.encode(), _PARTITION, ctypes.c_int32(partition))
        assert c.rd_kafka_producev(producer, *place, *parts, _FLAGS, _COPY, _HEADERS, headers, _END) == 0
        assert c.rd_kafka_flush(producer, int(TIMEOUT_S * 1000)) == 0
    finally:
        c.rd_kafka_destroy(producer)


def _library() -> ctypes.CDLL:
    packages = Path(confluent_kafka.__file__).parent
    for folder in (packages.with_name("confluent_kafka.libs"), packages / ".dylibs"):
        for found in folder.glob("librdkafka*"):
            library = ctypes.CDLL(str(found))
            for function in ("rd_kafka_conf_new", "rd_kafka_headers_new", "rd_kafka_new"):
                getattr(library, function).restype = ctypes.c_void_p
            return library
    pytest.skip("the client of Kafka is installed without its own C library")
