"""Reads offset ranges of topics."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import RetryableError
from penstock.system.base import CHUNK_BYTES, OffsetRange, PartitionOffsets, RawMessage, SystemReader
from penstock.system.kafka.client import open_consumer
from penstock.system.kafka.cluster import Cluster, check_partition, check_system, no_stream
from penstock.system.kafka.errors import ClientErrors, explain, is_not_found
from penstock.system.kafka.options import KafkaOptions
from penstock.system.ranges import check_call, check_inside, missing, take_chunk

_POLL_S = 0.5
"""How long one wait for a message is. A signal is seen between two of them."""
_POLL_AT_END_S = 0.05
"""The same, where the end of the partition was met before the end of the range."""
_KNOWN_S = 1.0
"""For so long a topic is taken to have the partitions that it had. A wrong one is an error of the fetch as well."""
_FETCH_AGAIN_S = 5.0
"""After so long without anything, the partition is assigned again."""


class KafkaReader(SystemReader):
    """Reads what is committed in offset ranges of topics. Used by one thread at a time; made by `KafkaSystem.reader`.

    It keeps one consumer, which fetches ahead while there is more to read. A range that continues the last one is
    served from what was fetched. At the end of a partition it stops to fetch, so that an idle reader costs nothing.

    A range has been read once a message at or behind its end came, or the client met the end of the partition there:
    offsets may be those of aborted messages, of messages that were compacted, or of the markers of transactions.
    Headers are not given.
    """

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._reported = ClientErrors()
        self._consumer: Consumer | None = None
        self._cluster: Cluster | None = None
        self._counts: dict[str, tuple[int, float]] = {}
        """The partitions of topics, and when they were counted: with hundreds of them, the count takes longer than what
        is read of one."""
        self._ssp: SystemStreamPartition | None = None
        self._assigned = False
        self._next = 0
        """What is below it was given to the caller."""
        self._known = 0
        """Every message below it was given, or is in the buffer."""
        self._buffer: list[RawMessage] = []
        self._size = 0
        """The bytes of the buffer's keys and values, at least."""
        self._at_end = False
        """Whether `_known` is where the partition ended when it was last looked at."""

    def read(
        self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[list[RawMessage]]:
        """Every message of the range that is there and committed.

        Raises:
            NotFoundError: there is no such topic or partition, messages of the range were deleted before they were
                read, or the range ends behind what is committed.
            ConfigError: the range ends before it starts, or a bound is not positive; or the brokers refuse.
            RetryableError: nothing came within `consumer.default.api.timeout.ms`.
        """
        check_call(offsets, chunk_messages, chunk_bytes)
        return self._chunks(offsets, chunk_messages, chunk_bytes)

    def close(self) -> None:
        """Close the connections."""
        consumer, self._consumer = self._consumer, None
        cluster, self._cluster = self._cluster, None
        self._ssp, self._assigned, self._buffer = None, False, []
        if consumer is not None:
            consumer.close()
        if cluster is not None:
            cluster.close()

    def _chunks(self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int) -> Iterator[list[RawMessage]]:
        check_system(self._options, offsets.ssp)
        start = offsets.start
        while start < offsets.end:
            self._move(replace(offsets, start=start))
            chunk = self._take(replace(offsets, start=start), chunk_messages, chunk_bytes)
            if not chunk:
                self._next = offsets.end
                break
            start = self._next = chunk[-1][0] + 1
            if start == offsets.end:
                self._rest()
            yield chunk
        else:
            return
        self._rest()

    def _move(self, offsets: OffsetRange) -> None:
        """Be where the range begins: there already, further on in what was fetched, or by fetching from there."""
        if self._ssp == offsets.ssp and self._next <= offsets.start <= self._known:
            if self._next < offsets.start:
                del self._buffer[: bisect_left(self._buffer, (offsets.start,))]
                self._next = offsets.start
            return
        if self._ssp != offsets.ssp and not self._is_known(offsets.ssp):
            self._check(offsets.ssp)
        if offsets.start < 0:
            raise missing(offsets, offsets.start, "offsets are not negative")
        self._ssp, self._next, self._known = offsets.ssp, offsets.start, offsets.start
        self._buffer, self._size, self._at_end = [], 0, False
        self._assign()

    def _is_known(self, ssp: SystemStreamPartition) -> bool:
        """Whether the partition was there a moment ago."""
        count, counted_s = self._counts.get(ssp.stream, (0, 0.0))
        return 0 <= ssp.partition < count and time.monotonic() - counted_s < _KNOWN_S

    def _check(self, ssp: SystemStreamPartition) -> None:
        """Raises NotFoundError if there is no such partition."""
        self._counts.pop(ssp.stream, None)
        try:
            found = self._client().list_topics(ssp.stream, self._options.timeout_s).topics[ssp.stream]
        except KafkaException as error:
            raise explain(error, _doing(ssp), self._options, self._reported) from error
        if found.error is not None and is_not_found(found.error):
            raise no_stream(self._options, ssp.stream)
        if found.error is not None and not isinstance(
            refused := explain(found.error, _doing(ssp), self._options), RetryableError
        ):
            raise refused
        if found.error is None:
            self._counts[ssp.stream] = len(found.partitions), time.monotonic()
            check_partition(ssp, len(found.partitions))

    def _client(self) -> Consumer:
        if self._consumer is None:
            self._consumer = open_consumer(self._options, self._reported)
        return self._consumer

    def _assign(self) -> None:
        assert self._ssp is not None  # noqa: S101
        self._client().assign([TopicPartition(self._ssp.stream, self._ssp.partition, self._known)])
        self._assigned = True

    def _rest(self) -> None:
        """Behind a range: at the end of the partition, stop to fetch. The brokers would be asked again and again."""
        if not self._assigned or self._buffer or self._ssp is None:
            return
        if not self._at_end:
            at = TopicPartition(self._ssp.stream, self._ssp.partition)
            watermarks = self._client().get_watermark_offsets(at, cached=True)
            if watermarks is None or watermarks[1] > self._known:
                return
        self._client().unassign()
        self._assigned = False

    def _take(self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int) -> list[RawMessage]:
        """The next messages of the range; none if it has been read."""
        while not self._buffer:
            if self._known >= offsets.end:
                return []
            self._fill(offsets, min(chunk_messages, offsets.end - self._known))
        buffer = self._buffer
        if len(buffer) <= chunk_messages and buffer[-1][0] < offsets.end and self._size < chunk_bytes:
            self._buffer, self._size = [], 0
            return buffer
        inside = bisect_left(buffer, (offsets.end,))
        chunk = take_chunk(islice(buffer, inside), chunk_bytes, chunk_messages)
        del buffer[: len(chunk)]
        return chunk

    def _fill(self, offsets: OffsetRange, most: int) -> None:
        """Wait until the client has messages or the end of the partition, and take what it has, at most so many."""
        if not self._assigned:
            self._assign()
        consumer = self._client()
        fetching = began = time.monotonic()
        while True:
            wait_s = _POLL_AT_END_S if self._at_end else _POLL_S
            try:
                messages = consumer.consume(most, 0)
                if not messages and (messages := consumer.consume(1, wait_s)) and most > 1:
                    messages += consumer.consume(most - 1, 0)
            except KafkaException as error:
                raise explain(error, _doing(offsets.ssp), self._options, self._reported) from error
            if messages:
                self._accept(messages, offsets)
                if self._buffer or self._known >= offsets.end:
                    return
                continue
            now = time.monotonic()
            left_s = self._options.timeout_s - (now - began)
            if left_s <= 0:
                raise self._late(offsets)
            check_inside(replace(offsets, start=self._known), self._ends(offsets.ssp, left_s))
            if now - fetching > _FETCH_AGAIN_S:
                self._assign()
                fetching = now

    def _accept(self, messages: list[Message], offsets: OffsetRange) -> None:
        """Put messages into the buffer; the others say where the end of the partition is, or what failed."""
        if any(map(_ERROR, messages)):
            for message in messages:
                if (error := message.error()) is not None:
                    self._accept_error(error, message.offset(), offsets)
            messages = [message for message in messages if message.error() is None]
            if not messages:
                return
        # Without a line of Python for each message: this is where the time goes.
        keys, values = list(map(_KEY, messages)), list(map(_VALUE, messages))
        times = [time for _, time in map(_TIMESTAMP, messages)]
        self._buffer = list(zip(map(_OFFSET, messages), times, keys, values, strict=True))
        self._size = sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values)))
        last = self._buffer[-1][0] + 1
        if last > self._known:
            self._known, self._at_end = last, False

    def _accept_error(self, error: KafkaError, offset: int | None, offsets: OffsetRange) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            if offset is not None and offset >= self._known:
                self._known, self._at_end = offset, True
            return
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            ends = self._ends(offsets.ssp, self._options.timeout_s)
            check_inside(replace(offsets, start=self._known), ends)
            self._assign()  # it is there after all
            return
        if is_not_found(error):
            self._check(offsets.ssp)  # says what is missing, if it is still missing
            self._assign()
            return
        failed = explain(error, _doing(offsets.ssp), self._options, self._reported)
        if not isinstance(failed, RetryableError):  # the client tries again what may pass
            raise failed

    def _ends(self, ssp: SystemStreamPartition, within_s: float) -> PartitionOffsets:
        """Where the partition begins, and what is committed ends."""
        if self._cluster is None:
            limit = replace(self._options, timeout_ms=max(1000, int(within_s * 1000)))
            self._cluster = Cluster(limit)
        oldest, stable = self._cluster.offsets(
            ssp.stream, [ssp.partition], [OffsetSpec.earliest(), OffsetSpec.latest()]
        )
        return PartitionOffsets(oldest[ssp.partition], stable[ssp.partition])

    def _late(self, offsets: OffsetRange) -> RetryableError:
        last = self._reported.last
        why = "" if last is None else f"; the client reported: {last.str()}"
        return RetryableError(
            f"{_doing(offsets.ssp)}: nothing came from the brokers at {self._options.servers} within "
            f"{self._options.timeout_s:g} s at offset {self._known} of the range [{offsets.start}, {offsets.end}){why}"
        )


_ERROR, _TIMESTAMP, _KEY, _VALUE = Message.error, Message.timestamp, Message.key, Message.value
_OFFSET = cast("Callable[[Message], int]", Message.offset)
"""None only for what is no message."""


def _doing(ssp: SystemStreamPartition) -> str:
    return f"partition {ssp.partition} of `{ssp.system_stream}` could not be read"
