"""Reads offset ranges of topics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import RetryableError, SystemAwayError
from penstock.system.base import CHUNK_BYTES, OffsetRange, PartitionOffsets, RawMessage, SystemReader
from penstock.system.kafka.client import FetchedPartition, Fetcher
from penstock.system.kafka.cluster import Cluster, check_partition, check_system, no_stream
from penstock.system.kafka.errors import ClientErrors, explain, is_away, is_not_found, is_of_group, topic
from penstock.system.kafka.options import KafkaOptions
from penstock.system.ranges import check_call, check_inside, missing

_POLL_S = 0.5
"""The longest single wait for a message. A signal is seen between two of them."""
_POLL_AT_END_S = 0.05
"""The same, if the end of the partition was met before the end of the range."""
_KNOWN_S = 1.0
"""A topic is assumed to keep its partitions for so long. If that is wrong, the fetch fails as well."""
_FETCH_AGAIN_S = 5.0
"""After so long without any message, the partition is assigned again."""
_CONSUMERS = 8
"""The number of consumers that fetch the partitions of a reader. Each has a queue and some threads: with one for all
partitions, many messages fetched for others may be in front of those that are read."""
_SHARED_MESSAGES = 500
"""The least number of messages taken at once if they may be those of several partitions."""
_MUCH = 8
"""A partition is fetched on behind a range if more than this part of the range is left: else it saves less than it
costs to ask for each message as it comes."""


class KafkaReader(SystemReader):
    """Reads committed messages in offset ranges of topics. Used by one thread at a time; made by `KafkaSystem.reader`.

    It keeps a few consumers for all partitions, which fetch ahead while there is more to read. A range that continues
    the last one of its partition is served from the fetched messages. Once all known ranges have been read, it stops
    fetching, so that an idle reader costs nothing.

    A range has been read once a message at or behind its end came, or the client met the end of the partition there:
    offsets may be those of aborted messages, of messages that were compacted, or of the markers of transactions.
    Headers are not given.
    """

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._reported = ClientErrors()
        self._fetchers = [Fetcher(options, self._reported) for _ in range(_CONSUMERS)]
        self._expected: dict[SystemStreamPartition, OffsetRange] = {}
        """The ranges named by `expect` since the last look."""
        self._cluster: Cluster | None = None
        self._counts: dict[str, tuple[int, float]] = {}
        """The partition counts of topics, and when they were read: with hundreds of partitions, the count takes longer
        than reading one."""

    def read(
        self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[list[RawMessage]]:
        """Every existing and committed message of the range.

        Raises:
            NotFoundError: there is no such topic or partition, messages of the range were deleted before they were
                read, or the range ends behind the committed messages.
            ConfigError: the range ends before it starts, or a bound is not positive; or the brokers refuse.
            RetryableError: nothing came within `consumer.default.api.timeout.ms`.
        """
        check_call(offsets, chunk_messages, chunk_bytes)
        return self._chunks(offsets, chunk_messages, chunk_bytes)

    def expect(self, ranges: Sequence[OffsetRange]) -> None:
        """Fetch all of these when the first of them is read, and forget other partitions then."""
        self._expected = {offsets.ssp: offsets for offsets in ranges}

    def close(self) -> None:
        for fetcher in self._fetchers:
            fetcher.close()
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def _chunks(self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int) -> Iterator[list[RawMessage]]:
        check_system(self._options, offsets.ssp)
        self._look_ahead()
        start = offsets.start
        while start < offsets.end:
            rest = replace(offsets, start=start)
            fetcher = self._fetcher(offsets.ssp)
            place = self._move(fetcher, rest)
            chunk = self._take(fetcher, place, rest, chunk_messages, chunk_bytes)
            start = place.next = chunk[-1][0] + 1 if chunk else offsets.end
            if start == offsets.end and fetcher.behind(place, start) <= len(offsets) // _MUCH:
                fetcher.rest(place)
            if chunk:
                yield chunk

    def _look_ahead(self) -> None:
        """Fetch all expected ranges at once: one partition after the other, each would wait for the brokers."""
        expected, self._expected = self._expected, {}
        if not expected:
            return
        for fetcher in self._fetchers:
            fetcher.keep(expected)
        wanted: dict[Fetcher, list[FetchedPartition]] = {}
        for ssp, offsets in expected.items():
            fetcher = self._fetcher(ssp)
            if ssp not in fetcher.places:
                fetcher = min(self._fetchers, key=lambda each: len(each.places))
            place = fetcher.places.setdefault(ssp, FetchedPartition(ssp, offsets.start))
            if not place.move(offsets.start):
                fetcher.unassign([place])
                place.restart(offsets.start)
            if place.known < offsets.end and not place.waits and not fetcher.fetches(place):
                wanted.setdefault(fetcher, []).append(place)
        for fetcher, places in wanted.items():
            fetcher.assign(places)

    def _fetcher(self, ssp: SystemStreamPartition) -> Fetcher:
        """The fetcher that has the partition; the first one, if none has it."""
        return next((each for each in self._fetchers if ssp in each.places), self._fetchers[0])

    def _move(self, fetcher: Fetcher, offsets: OffsetRange) -> FetchedPartition:
        """Move to the beginning of the range: it may be the present offset, or a fetched one, or is fetched now."""
        place = fetcher.places.get(offsets.ssp)
        if place is not None and place.move(offsets.start):
            return place
        if place is None and not self._is_known(offsets.ssp):
            self._check(offsets.ssp)
        if offsets.start < 0:
            raise missing(offsets, offsets.start, "offsets are not negative")
        if place is None:
            place = fetcher.places[offsets.ssp] = FetchedPartition(offsets.ssp, offsets.start)
        place.restart(offsets.start)
        fetcher.assign([place])
        return place

    def _is_known(self, ssp: SystemStreamPartition) -> bool:
        count, counted_s = self._counts.get(ssp.stream, (0, 0.0))
        return 0 <= ssp.partition < count and time.monotonic() - counted_s < _KNOWN_S

    def _check(self, ssp: SystemStreamPartition) -> None:
        """Raises NotFoundError if there is no such partition."""
        self._counts.pop(ssp.stream, None)
        try:
            found = self._fetcher(ssp).client.list_topics(ssp.stream, self._options.timeout_s).topics[ssp.stream]
        except KafkaException as error:
            raise explain(error, _doing(ssp), self._options, self._reported, topic("Read", ssp.stream)) from error
        if found.error is not None and is_not_found(found.error):
            raise no_stream(self._options, ssp.stream)
        if found.error is not None and not isinstance(
            refused := explain(found.error, _doing(ssp), self._options, None, topic("Read", ssp.stream)), RetryableError
        ):
            raise refused
        if found.error is None:
            self._counts[ssp.stream] = len(found.partitions), time.monotonic()
            check_partition(ssp, len(found.partitions))

    def _take(
        self, fetcher: Fetcher, place: FetchedPartition, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int
    ) -> list[RawMessage]:
        while not place.waits:
            if place.known >= offsets.end:
                return []
            self._fill(fetcher, place, offsets, chunk_messages)
        return place.take(offsets.end, chunk_messages, chunk_bytes)

    def _fill(self, fetcher: Fetcher, place: FetchedPartition, offsets: OffsetRange, chunk_messages: int) -> None:
        """Wait until the client has messages or the end of the partition, and take them."""
        if not fetcher.fetches(place):
            fetcher.assign([place])
        fetcher.want(place)
        fetching = looked = began = time.monotonic()
        while True:
            self._poll(fetcher, place, offsets, chunk_messages)
            if place.waits or place.known >= offsets.end:
                return
            now = time.monotonic()
            if now - looked < (_POLL_AT_END_S if place.at_end else _POLL_S) / 2:
                continue  # messages of other partitions came
            looked = now
            left_s = self._options.timeout_s - (now - began)
            if left_s <= 0:
                raise self._late(place, offsets)
            check_inside(replace(offsets, start=place.known), self._ends(offsets.ssp, left_s))
            if now - fetching > _FETCH_AGAIN_S:
                fetcher.assign([place])
                fetching = now

    def _poll(self, fetcher: Fetcher, place: FetchedPartition, offsets: OffsetRange, chunk_messages: int) -> None:
        most = min(chunk_messages, offsets.end - place.known)
        if fetcher.others:
            most = max(chunk_messages, _SHARED_MESSAGES)
        try:
            errors = fetcher.poll(place, most, _POLL_AT_END_S if place.at_end else _POLL_S)
        except KafkaException as error:
            raise explain(
                error, _doing(offsets.ssp), self._options, self._reported, topic("Read", offsets.ssp.stream)
            ) from error
        for failed in errors:
            if self._is_over(failed, offsets, place.known):
                fetcher.assign([place])

    def _is_over(self, error: KafkaError, offsets: OffsetRange, known: int) -> bool:
        """True if the partition has to be assigned again after an error. Raises errors that end the reading."""
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            check_inside(replace(offsets, start=known), self._ends(offsets.ssp, self._options.timeout_s))
            return True  # it is there after all
        if is_of_group(error):
            return False
        if is_not_found(error):
            self._check(offsets.ssp)  # says what is missing, if it is still missing
            return True
        failed = explain(error, _doing(offsets.ssp), self._options, self._reported, topic("Read", offsets.ssp.stream))
        if not isinstance(failed, RetryableError):  # the client tries again what may pass
            raise failed
        return False

    def _ends(self, ssp: SystemStreamPartition, within_s: float) -> PartitionOffsets:
        """The beginning of the partition, and the end of its committed messages."""
        if self._cluster is None:
            limit = replace(self._options, timeout_ms=max(1000, int(within_s * 1000)))
            self._cluster = Cluster(limit)
        oldest, stable = self._cluster.offsets(
            ssp.stream, [ssp.partition], [OffsetSpec.earliest(), OffsetSpec.latest()]
        )
        return PartitionOffsets(oldest[ssp.partition], stable[ssp.partition])

    def _late(self, place: FetchedPartition, offsets: OffsetRange) -> RetryableError:
        last = self._reported.last
        why = "" if last is None else f"; the client reported: {last.str()}"
        kind = SystemAwayError if is_away(last) else RetryableError
        return kind(
            f"{_doing(offsets.ssp)}: nothing came from the brokers at {self._options.servers} within "
            f"{self._options.timeout_s:g} s at offset {place.known} of the range [{offsets.start}, {offsets.end}){why}"
        )


def _doing(ssp: SystemStreamPartition) -> str:
    return f"partition {ssp.partition} of `{ssp.system_stream}` could not be read"
