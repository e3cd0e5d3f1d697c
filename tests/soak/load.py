"""The load of the soak, a process of its own: `python -m tests.soak.load SERVERS SEED RATE JOURNAL`.

It writes events in transactions, some of which it aborts: bursts and pauses, few keys of which some are frequent, sizes
from a few bytes to some kilobytes. The seed decides all of that, and the rate, in events a second, how much there is of
it. The journal gets a line for each transaction, with its fate and its events, once the brokers have said what became
of it. Lines of standard input are orders: `pause`, `run`, `end`. Each is answered once it is done.
"""

from __future__ import annotations

import json
import queue
import random
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO
from zlib import crc32

from confluent_kafka import KafkaError, KafkaException, Producer

from tests.soak.job import FIRST_MS, INPUT, PARTITIONS, STEP_MS
from tests.support.streams.kafka import QUIET

KEYS = 60
_ABORTED = 0.15
_TIMEOUT_S = 60.0
_PATIENCE_S = 500.0


@dataclass
class Fates:
    """The journal, as far as it was read: what the load says of each event."""

    path: Path
    fates: dict[int, str] = field(default_factory=dict)
    written_s: dict[int, float] = field(default_factory=dict)
    _read: int = 0

    def catch_up(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                transaction = json.loads(line)
                for event in transaction["events"]:
                    self.fates[event] = transaction["fate"]
                    self.written_s[event] = transaction["at_s"]


def partition_of(key: str) -> int:
    """The partition that all events of a key are in, so that they have an order."""
    return crc32(key.encode()) % PARTITIONS


class Load:
    """Writes events. One thread uses it."""

    def __init__(self, servers: str, seed: int, rate: float, journal: TextIO) -> None:
        self._options = {
            "bootstrap.servers": servers,
            "transactional.id": "soak-load",
            "transaction.timeout.ms": 300_000,
            "linger.ms": 2,
        }
        self._chance = random.Random(seed)
        self._rate = rate
        self._journal = journal
        self._next = 0
        self._keys = [f"k{n}" for n in range(KEYS)]
        self._weights = [1 / (n + 1) for n in range(KEYS)]
        self._producer = self._connected()

    def pause_s(self) -> float:
        """The time to the next transaction: short in a burst, now and then a second or two."""
        if self._chance.random() < 0.02:
            return self._chance.uniform(0.5, 2.0)
        return self._chance.expovariate(10.0)

    def transaction(self) -> None:
        """Write one, and its line in the journal."""
        chance = self._chance
        size = chance.choice((1, 1, 1, 2, 2, 3, 5, 100 if chance.random() < 0.1 else 8))
        size = max(1, round(size * self._rate / 30))
        self._write(chance.choices(self._keys, self._weights, k=size), abort=chance.random() < _ABORTED)

    def mark(self) -> None:
        """Write an event to each partition, so that event time goes on everywhere."""
        found: dict[int, str] = {}
        for key in self._keys:
            found.setdefault(partition_of(key), key)
        self._write(list(found.values()), abort=False)

    def _write(self, keys: list[str], *, abort: bool) -> None:
        events = []
        at_s = time.time()
        fate = "unknown"
        asked = False
        try:
            self._producer.begin_transaction()
            for key in keys:
                events.append(self._next)
                self._producer.produce(INPUT, self._value(key), key, partition_of(key))
            self._producer.flush(_TIMEOUT_S)
            asked = True
            if abort:
                fate = "aborted"
                self._producer.abort_transaction(_PATIENCE_S)
            else:
                self._commit()
                fate = "committed"
        except (KafkaException, BufferError) as error:
            print(f"load: {error}", file=sys.stderr, flush=True)
            if not asked or abort:
                fate = "aborted"  # what is open ends with the next producer
            self._producer = self._connected()
        self._journal.write(json.dumps({"fate": fate, "at_s": at_s, "events": events}) + "\n")
        self._journal.flush()

    def _commit(self) -> None:
        """Ask until there is an answer."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self._producer.commit_transaction(_TIMEOUT_S)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return

    def _value(self, key: str) -> bytes:
        chance, number = self._chance, self._next
        self._next += 1
        padding = "x" * (chance.randrange(4000) if chance.random() < 0.05 else chance.randrange(100))
        event = {"id": number, "k": key, "n": chance.randrange(1000), "t": FIRST_MS + number * STEP_MS, "pad": padding}
        return json.dumps(event).encode()

    def _connected(self) -> Producer:
        """A new producer; what an earlier one has left open is aborted, unless its commit was decided."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            producer = Producer(self._options, logger=QUIET)
            try:
                producer.init_transactions(_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() == KafkaError._FENCED or time.monotonic() > deadline:
                    raise
            else:
                return producer


def main(servers: str, seed: str, rate: str, journal: str) -> None:
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            orders.put(line.strip())
        orders.put("end")

    threading.Thread(target=listen, daemon=True).start()
    with Path(journal).open("a", encoding="utf-8") as file:
        load: Any = Load(servers, int(seed), float(rate), file)
        running, wait_s = False, 0.0
        while True:
            try:
                order = orders.get(timeout=wait_s) if running else orders.get()
            except queue.Empty:
                load.transaction()
                wait_s = load.pause_s()
                continue
            if order == "pause" or (order == "end" and running):
                load.mark()
            running = order == "run"
            print(order, flush=True)
            if order == "end":
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
