"""Sends flights at a steady rate while the job runs, and measures when a reader sees their totals."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import orjson
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from rich.console import Console

from examples.flights.data import flights
from examples.flights.verify import conclude
from examples.kafka.topics import ANSWER_S, QUIET, Options

WARM_UP_S = 4.0
_AT_ONCE = 1000


class Latencies:
    """Flights that were sent, and the totals of their aircraft that came back."""

    def __init__(self, options: Options, partitions: int, before: Counter[str]) -> None:
        """`before`: aircraft → its flights so far."""
        self._producer = Producer({**options, "partitioner": "murmur2_random", "linger.ms": 0}, logger=QUIET)
        reader = {"group.id": "demo", "enable.auto.commit": False, "isolation.level": "read_committed"}
        self._consumer = Consumer({**options, **reader}, logger=QUIET)
        self._consumer.assign([TopicPartition("aircraft-totals", n, OFFSET_END) for n in range(partitions)])
        self._consumer.consume(1, 1.0)  # it is at the end before the first flight is sent
        self._flights: Iterator[dict[str, Any]] = (each for each in cycle(flights()) if each["tailnum"] is not None)
        self._numbers = before.copy()
        self._waiting: dict[tuple[str, int], float] = {}
        self.since = 0.0
        """Flights that were sent before do not count."""
        self.seconds: list[float] = []
        self.unexpected: list[tuple[str, int]] = []

    def waiting(self) -> int:
        """The number of flights whose totals have not come."""
        return len(self._waiting)

    def send(self) -> None:
        """Send the next flight."""
        flight = next(self._flights)
        aircraft = flight["tailnum"]
        self._numbers[aircraft] += 1
        self._waiting[aircraft, self._numbers[aircraft]] = time.monotonic()
        self._producer.produce("flights", orjson.dumps(flight), aircraft)
        self._producer.poll(0)

    def read(self, timeout_s: float = 0.002) -> None:
        """Take note of the totals that have come. The client waits for the whole time unless very many come."""
        messages = self._consumer.consume(_AT_ONCE, timeout_s)
        now = time.monotonic()
        for message in messages:
            if message.error() is None:
                key = (message.key() or b"").decode(), orjson.loads(message.value() or b"null")["flights"]
                sent = self._waiting.pop(key, None)
                if sent is None:
                    self.unexpected.append(key)
                elif sent >= self.since:
                    self.seconds.append(now - sent)

    def flow(self, rate: int, seconds: float) -> None:
        """Send so many flights a second, for so long."""
        began = time.monotonic()
        sent = 0
        while (now := time.monotonic()) < began + seconds:
            for _ in range(int((now - began) * rate) - sent):
                self.send()
                sent += 1
            self.read()

    def await_all(self, job: subprocess.Popen[bytes]) -> None:
        """Read until every total has come, the job has ended, or it takes too long."""
        deadline = time.monotonic() + ANSWER_S
        while self._waiting and time.monotonic() < deadline and job.poll() is None:
            self.read()

    def close(self) -> None:
        """Send and read no more."""
        self._producer.flush(ANSWER_S)
        self._consumer.close()


def measure(latencies: Latencies, job: subprocess.Popen[bytes], rate: int, seconds: float) -> None:
    """Print the latency of flights. Exit status 1 unless each came exactly once."""
    latencies.send()
    latencies.await_all(job)
    if latencies.waiting():
        sys.exit("the job did not start: no total came")
    latencies.flow(rate, WARM_UP_S)
    latencies.since = time.monotonic()
    latencies.flow(rate, seconds)
    latencies.await_all(job)
    latencies.read(1.0)  # totals that came twice
    wrong = [f"output aircraft-totals {key}: {number} is one too many" for key, number in latencies.unexpected]
    if latencies.waiting():
        wrong.append(f"the totals of {latencies.waiting()} flights did not come")
    waits = sorted(latencies.seconds) or [0.0]
    conclude(
        Console(),
        wrong,
        f"{len(latencies.seconds):,} flights at {rate:,} a second; from sending one to a reader of its total: "
        f"{statistics.median(waits) * 1000:,.0f} ms (median), {waits[len(waits) * 99 // 100] * 1000:,.0f} ms (99 %)",
    )
