"""A job with side inputs, what was published to it, and what its outputs may say."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import OffsetRange, WriterIdentity
from penstock.system.local import LocalSystem
from penstock.system.partitioner import partition_of
from tests.support.apps.sided_app import JOINED, NAMES
from tests.support.jobs.home import Home

KEYS = 30


class SidedHome(Home):
    """The streams of the job. The value of an update is its number within the stream, and what to do."""

    def __init__(self, folder: Path, *, partitions: int = 2, **config: object) -> None:
        super().__init__(folder, partitions=partitions, **config)
        self.config |= {
            "job.name": "sided",
            "job.intermediate.stream.partitions": partitions,
            "job.lease.ms": 1500,
            "job.retry.max": 30,
        }
        self.counted: dict[str, list[dict[str, Any] | None]] = {}
        """By key, everything that the table `counted` ever had, in order; it had nothing before."""
        self.newest: dict[str, list[dict[str, Any] | None]] = {}
        self.asked = 0
        self._seq = 0
        self.create_names()

    def create_names(self) -> None:
        """Make the side stream, which is empty."""
        self.system.admin().create_stream(NAMES, self.partitions)
        self.counted = {f"k{n}": [None] for n in range(KEYS)}
        self.newest = {f"k{n}": [None] for n in range(KEYS)}

    def update(self, count: int, *, seed: int = 0, system: LocalSystem | None = None) -> None:
        """Append updates of random keys; some are deletes."""
        chance = random.Random(f"{seed} {self._seq}")
        rows: dict[int, list[tuple[int, bytes, bytes | None]]] = {}
        for _ in range(count):
            key = f"k{chance.randrange(KEYS)}"
            self._seq += 1
            value = None if chance.random() < 0.05 else {"seq": self._seq, "do": "put"}
            rows.setdefault(partition_of(key.encode(), self.partitions), []).append(
                (1_700_000_000_000, key.encode(), None if value is None else orjson.dumps(value))
            )
            before = self.counted[key][-1] or {"n": 0}
            self.counted[key].append(None if value is None else {"n": before["n"] + 1, "seq": self._seq})
            self.newest[key].append(value)
        writer = (system or self.system).writer(None)
        for partition, own in rows.items():
            writer.append(SystemStreamPartition("local", NAMES, partition), own)
        writer.close()

    def update_raw(self, key: str, value: bytes) -> int:
        """Append one message as it is; returns its offset."""
        writer = self.system.writer(None)
        partition = partition_of(key.encode(), self.partitions)
        offset = writer.append(SystemStreamPartition("local", NAMES, partition), [(0, key.encode(), value)])
        writer.close()
        return offset

    def ask(self, rounds: int = 1) -> None:
        """Append an event for each key."""
        for _ in range(rounds):
            events = [{"id": self.asked + n, "key": f"k{n}", "source": "", "seq": 0} for n in range(KEYS)]
            for partition in range(self.partitions):
                self.append_raw(partition, [orjson.dumps(event) for event in events[partition :: self.partitions]])
            self.asked += KEYS

    @contextmanager
    def flowing(self, *, updates: int = 40, pause_s: float = 0.02) -> Iterator[None]:
        """Updates and events come all the time, from a separate thread."""
        stop = threading.Event()

        def flow() -> None:
            while not stop.wait(pause_s):
                self.update(updates)
                self.ask()

        thread = threading.Thread(target=flow, name="flow")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    @property
    def outputs(self) -> int:
        return self.length(JOINED)

    def answered(self) -> bool:
        return len({value["id"] for _, _, _, value in self.messages(JOINED)}) == self.asked

    def verify_joined(self) -> None:
        """Each event has an output; each output shows values that the tables had, none ever goes back in time, and the
        last one of each key shows the replay of the whole stream.

        The last events must have been published behind the last updates, and read by a run that began after those.
        """
        seen: dict[tuple[str, str], int] = {}
        for _, offset, key, value in self.messages(JOINED):
            for table, history in (("counted", self.counted[key]), ("newest", self.newest[key])):
                place = seen.get((table, key), 0)
                found = value[table]
                later = next((n for n in range(place, len(history)) if history[n] == found), None)
                assert later is not None, (
                    f"{table} {key} at {offset}: {found} is not in {history[max(0, place - 2) :][:8]}"
                )
                seen[table, key] = later
        self.verify_last("counted", "newest")

    def verify_last(self, *tables: str) -> None:
        """Each event has an output, and the last one of each key shows the last entry of the key."""
        assert self.answered()
        last = {key: value for _, _, key, value in self.messages(JOINED)}
        for table in tables:
            expected = {key: history[-1] for key, history in getattr(self, table).items()}
            assert {key: value[table] for key, value in last.items()} == expected

    def compact(self) -> None:
        """Keep only the last update of each key, and of those that were deleted nothing."""
        admin = self.system.admin()
        for partition, ends in admin.offsets(NAMES).items():
            ssp = SystemStreamPartition("local", NAMES, partition)
            admin.compact(OffsetRange(ssp, ends.oldest, ends.upcoming), WriterIdentity("test", 1))
        admin.close()


def pause(chance: random.Random, most_s: float) -> None:
    """Let the job come into some part of what it does."""
    time.sleep(chance.uniform(0.0, most_s))
