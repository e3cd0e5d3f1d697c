"""Streams of a real broker: the system, and producers that make what readers must cope with."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import OffsetRange, RawMessage, SystemAdmin, SystemReader
from penstock.system.kafka.system import KafkaSystem
from penstock.testing.kafka_broker import KafkaBroker, Security
from tests.support.processes.containers import wait_until
from tests.support.streams.kafka import QUIET

TIMEOUT_S = 30.0


def kafka_system(broker: KafkaBroker, security: Security | None = None, **more: str) -> KafkaSystem:
    """The system `kafka` on a broker; `more` are options with `__` for dots, and an empty one takes an option away."""
    prefix = "systems.kafka."
    config = broker.system_config("kafka", security)
    options = {key.removeprefix(prefix): value for key, value in config.items() if not key.endswith(".samza.factory")}
    options |= {key.replace("__", "."): value for key, value in more.items()}
    return KafkaSystem.configured("kafka", {key: value for key, value in options.items() if value})


class Feed:
    """Writes into a partition as a user's program does, in transactions and without."""

    def __init__(self, broker: KafkaBroker, admin: SystemAdmin, ssp: SystemStreamPartition, **options: Any) -> None:
        self._admin = admin
        self._ssp = ssp
        common = {**broker.client_options(), "linger.ms": 0, "message.max.bytes": 50_000_000, **options}
        self._plain = Producer(common, logger=QUIET)
        self._transactional = Producer({**common, "transactional.id": uuid.uuid4().hex}, logger=QUIET)
        self._transactional.init_transactions(TIMEOUT_S)

    @property
    def upcoming(self) -> int:
        """The end of what is committed."""
        return self._admin.offsets(self._ssp.stream)[self._ssp.partition].upcoming

    def append(self, records: Iterable[tuple[int, bytes | None, bytes | None]], **more: Any) -> list[int]:
        """Append plainly; returns the offsets."""
        return self._send(self._plain, records, **more)

    def transaction(
        self, records: Iterable[tuple[int, bytes | None, bytes | None]], *, abort: bool = False
    ) -> list[int]:
        """Append in a transaction, and wait until its marker is there; returns the offsets."""
        before = self.upcoming
        offsets = self.begin(records)
        self.end(abort=abort)
        wait_until(lambda: self.upcoming > max([before, *offsets]), "the marker of the transaction")
        return offsets

    def begin(self, records: Iterable[tuple[int, bytes | None, bytes | None]]) -> list[int]:
        self._transactional.begin_transaction()
        return self._send(self._transactional, records)

    def end(self, *, abort: bool = False) -> None:
        if abort:
            self._transactional.abort_transaction(TIMEOUT_S)
        else:
            self._transactional.commit_transaction(TIMEOUT_S)

    def _send(
        self, producer: Producer, records: Iterable[tuple[int, bytes | None, bytes | None]], **more: Any
    ) -> list[int]:
        offsets: list[int] = []

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            offsets.append(message.offset())

        for timestamp, key, value in records:
            producer.produce(
                self._ssp.stream,
                value,
                key,
                self._ssp.partition,
                timestamp=timestamp,
                on_delivery=delivered,
                **more,
            )
        assert producer.flush(TIMEOUT_S) == 0
        return offsets


def read_range(
    reader: SystemReader, ssp: SystemStreamPartition, start: int, end: int, most: int = 1000
) -> list[RawMessage]:
    """Every message of the range."""
    return [message for chunk in reader.read(OffsetRange(ssp, start, end), most) for message in chunk]
