"""A local stream with retention beside a plain list that knows when each message was appended."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import OffsetRange, RawMessage
from penstock.system.local import LocalAdmin, LocalReader, LocalWriter
from penstock.system.local.files import LocalFiles
from penstock.system.local.partition import live_bytes
from tests.support.tools.profiles import examples

HERE = SystemStreamPartition("local", "flights", 0)
MINUTE = 60_000
HOUR = 60 * MINUTE
MB = 1 << 20
LARGEST = 300_000

_WAITS = st.one_of(st.integers(-2 * HOUR, 5 * HOUR), st.sampled_from([1000, MINUTE // 2, MINUTE, MINUTE + 1, -1000]))
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4), st.sampled_from([0, 10, 5000, 100_000, LARGEST])),
        st.tuples(st.just("wait"), _WAITS, st.just(0)),
        st.tuples(st.just("keep"), st.sampled_from([0, MINUTE, HOUR, 10 * HOUR]), st.sampled_from([0, MB, 2 * MB])),
    ),
    max_size=25,
)


@dataclass
class Model:
    """Every message, and the latest time that the clock had shown when it was appended."""

    now: int = 1_700_000_000_000
    latest: int = 0
    retention: StreamRetention = field(default_factory=StreamRetention)
    messages: list[RawMessage] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    oldest: int = 0

    def append(self, count: int, size: int) -> list[tuple[int, bytes, bytes]]:
        self.latest = max(self.latest, self.now)
        rows = [(7 * len(self.messages) % 11, b"%d" % i, bytes(size)) for i in range(count)]
        for row in rows:
            self.messages.append((len(self.messages), *row))
            self.times.append(self.latest)
        return rows

    def check_gone(self, oldest: int, live: int) -> None:
        """Assert that all records trimmed in this step were too old or too many."""
        for offset in range(self.oldest, oldest):
            age = self.now - self.times[offset]
            too_old = self.retention.max_age_ms is not None and age > self.retention.max_age_ms
            if not too_old:
                assert self.retention.max_bytes is not None
                assert live > self.retention.max_bytes - 2 * LARGEST
        assert oldest >= self.oldest
        self.oldest = oldest

    def check_left(self, first: int, live: int) -> None:
        """Assert that the rest from `first` on is not too much, and not too old by more than marks tell."""
        late = max(MINUTE, (self.latest - self.times[0]) // 1000) if self.times else 0
        for offset in range(self.oldest, first):
            if self.retention.max_age_ms is not None:
                assert self.now - self.times[offset] <= self.retention.max_age_ms + late
        if self.retention.max_bytes is not None and self.oldest < first:
            assert live <= self.retention.max_bytes


@examples(0.6)
@given(steps=_STEPS)
def test_what_goes_and_what_stays(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]) -> None:
    model = Model()
    files = LocalFiles("local", str(tmp_path_factory.mktemp("s")), 30_000)
    admin, reader = LocalAdmin(files, lambda: model.now), LocalReader(files)
    writer = LocalWriter(files, None, lambda: model.now)
    admin.create_stream("flights", 1)
    for step, a, b in steps:
        first = len(model.messages)
        if step == "append":
            assert writer.append(HERE, model.append(a, b)) == first
        elif step == "wait":
            model.now += a
            continue
        else:
            model.retention = StreamRetention(a or None, b or None)
            before = admin.offsets("flights")[0]
            deleted = admin.set_retention("flights", model.retention)
            assert admin.offsets("flights")[0].oldest == before.oldest + deleted
            model.latest = max(model.latest, model.now)
        found = admin.offsets("flights")[0]
        live = _live(files)
        assert found.upcoming == len(model.messages)
        model.check_gone(found.oldest, live)
        if step == "append":
            model.check_left(first, live)
        chunks = reader.read(OffsetRange(HERE, found.oldest, found.upcoming), 10)
        assert [message for chunk in chunks for message in chunk] == model.messages[found.oldest :]
        for timestamp in (0, 5, 10, 11):
            left = (message[0] for message in model.messages[found.oldest :] if message[1] >= timestamp)
            assert admin.offset_at_time(HERE, timestamp) == next(left, found.upcoming)
    for each in (admin, reader, writer):
        each.close()


def _live(files: LocalFiles) -> int:
    connection = sqlite3.connect(files.partition_path(HERE))
    try:
        return live_bytes(connection)
    finally:
        connection.close()
