"""Messages at a steady rate into a topic, and what comes out of another: how long each took, and that none is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import orjson
from confluent_kafka import OFFSET_END, TopicPartition

from benchmarks.harness import UsageSampler, percentile
from benchmarks.kafka.load import new_producer, new_reader, produce

_KEYS = 10_000
_PAUSE_S = 0.005
Sighting = tuple[int, float, float]
"""The number of a message, when it was produced, and when it was read: epoch seconds."""


class Flow:
    """A topic, and another one in which a job that runs already sends on what comes in the first."""

    def __init__(self, brokers: str, topic: str, output: str, partitions: int) -> None:
        self._topic = topic
        self._producer = new_producer(brokers, **{"linger.ms": 2})
        self._reader = new_reader(brokers)
        self._reader.assign([TopicPartition(output, n, OFFSET_END) for n in range(partitions)])
        self._reader.consume(1, 0.5)
        self._sent = 0
        self._partitions = partitions
        self._begun: set[int] = set()

    def begin(self) -> None:
        """Send a message to each partition."""
        for partition in range(self._partitions):
            self._producer.produce(self._topic, orjson.dumps({"n": -1 - partition, "at": 0.0}), b"begin", partition)
        self._producer.flush(10)

    def has_begun(self) -> bool:
        """True once all of them have come."""
        self._begun |= {number for number, _, _ in self.read()}
        return len(self._begun) == self._partitions

    def read(self, timeout_s: float = 0.005) -> list[Sighting]:
        """The messages that have come. The client waits for the whole time unless 5,000 come before."""
        messages = self._reader.consume(5000, timeout_s)
        now = time.time()
        found = [orjson.loads(each.value() or b"{}") for each in messages if each.error() is None]
        return [(each["n"], each["at"], now) for each in found]

    def run(self, rate: int, warm_up_s: float, seconds: float, late_s: float, session: int) -> dict[str, Any]:
        """Send so many messages a second, and read until all have come.

        Args:
            rate: messages per second.
            warm_up_s: how long what is produced does not count.
            seconds: how long it counts after that.
            late_s: how long to wait for the last ones.
            session: of the job's processes.
        """
        stop = threading.Event()
        thread = threading.Thread(target=self._produce, args=(rate, stop))
        sampler = UsageSampler(session)
        began = time.time()
        start, end = began + warm_up_s, began + warm_up_s + seconds
        found: list[Sighting] = []
        thread.start()
        try:
            while time.time() < end:
                found += self.read()
            stop.set()
            thread.join()
            while len(found) < self._sent and time.time() < end + late_s:
                found += self.read()
            found += self.read(1.0)  # what came twice
        finally:
            stop.set()
            thread.join()
            usage = sampler.close()
        waits = sorted((seen - at) * 1000 for _, at, seen in found if start <= at < end)
        spent = sum(usage.cpu_between(start, end).values())
        return {
            "messages": len(waits),
            "rate": round(len(waits) / seconds),
            "p50_ms": round(percentile(waits, 0.5)) if waits else None,
            "p99_ms": round(percentile(waits, 0.99)) if waits else None,
            "cores": round(spent / seconds, 2),
            "peak_bytes": sum(usage.peak.values()),
            "verified": check(self._sent, [number for number, _, _ in found]),
            "seconds": round(time.time() - began, 2),
            "others_cpu_seconds": round(usage.others_cpu_seconds, 2),
        }

    def close(self) -> None:
        """Read no more."""
        self._reader.close()

    def _produce(self, rate: int, stop: threading.Event) -> None:
        began = time.monotonic()
        while not stop.wait(_PAUSE_S):
            due = int((time.monotonic() - began) * rate)
            for number in range(self._sent, due):
                value = orjson.dumps({"n": number, "at": time.time()})
                produce(self._producer, self._topic, value, f"key-{number % _KEYS}")
            self._sent = max(self._sent, due)
            self._producer.poll(0)
        self._producer.flush(30)


def check(sent: int, numbers: Sequence[int]) -> dict[str, Any]:
    """True if each message has come, and the number of those that came more than once."""
    own = [number for number in numbers if number >= 0]
    lost = sent - len(set(own))
    return {"equal": not lost, "sent": sent, "lost": lost, "repeated": len(own) - len(set(own))}
