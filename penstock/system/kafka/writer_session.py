"""The part of a Kafka writer that stays from transaction to transaction.

It has the partitions that the writer may append to, and the timestamps that their topics take.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import OffsetSpec

from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK
from penstock.errors import ConfigError, PenstockError, PenstockTimeoutError, RetryableError
from penstock.system.base import Progress, RawRecord, WriterIdentity, check_may_mark
from penstock.system.kafka import fences, job_log
from penstock.system.kafka.cluster import Cluster, check_partition, check_system
from penstock.system.kafka.errors import ClientErrors
from penstock.system.kafka.job_topic import job_topic, new_transactional_id, producer_key, progress_record
from penstock.system.kafka.options import KafkaOptions
from penstock.system.kafka.topic_settings import TimestampLimits, timestamp_limits

logger = logging.getLogger(__name__)
_KNOWN_S = 60.0
"""A topic is assumed to keep its settings for so long, unless the brokers refuse a timestamp."""


class WriterTopics:
    """The topics that a writer has seen. Appending to one that does not exist would create it on some clusters."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._partitions: dict[str, int] = {}
        self._cluster: Cluster | None = None
        self._limits: dict[str, tuple[TimestampLimits, float]] = {}
        self._refused: dict[str, TimestampLimits] = {}
        """Limits that allowed a timestamp which the brokers refused."""
        self._replacing: set[str] = set()
        """Topics with unreadable settings, whose brokers replaced a timestamp."""
        self._unknown: set[str] = set()
        """Topics with unreadable settings that were logged."""

    def check(self, ssp: SystemStreamPartition) -> None:
        """Look at the topic once.

        Raises:
            NotFoundError: there is no such topic or partition.
            ConfigError: the partition is of another system, or its topic's name is not allowed.
        """
        if 0 <= ssp.partition < self._partitions.get(ssp.stream, 0) and ssp.system == self._options.system:
            return
        check_system(self._options, ssp)
        self._partitions[ssp.stream] = self._opened().partition_count(ssp.stream)
        check_partition(ssp, self._partitions[ssp.stream])

    def timestamps(self, stream: str) -> TimestampLimits:
        """The timestamps that the topic takes now. Raises NotFoundError if there is no such topic."""
        limits, read_s = self._limits.get(stream, (TimestampLimits(), 0.0))
        if not read_s or time.monotonic() - read_s > _KNOWN_S:
            limits = self._read_limits(stream)
            self._limits[stream] = limits, time.monotonic()
        if limits != self._refused.get(stream) or limits.needed:
            return limits
        return replace(limits, trusted=False)

    def refused_timestamp(self, stream: str, limits: TimestampLimits) -> None:
        """Note that the brokers refused a timestamp that these limits allow: the topic has others now, or the clocks
        differ."""
        self._limits.pop(stream, None)
        if limits == self._refused.get(stream):
            return
        self._refused[stream] = limits
        logger.warning(
            "the brokers refused a timestamp for `%s.%s` that is within the limits last read of the topic; they are "
            "read again. If they have not changed, messages are sent without timestamps, and Penstock's readers find "
            "them in a header. Compare the clocks of this machine and of the brokers",
            self._options.system,
            stream,
        )

    def replaced_timestamp(self, stream: str) -> None:
        """Note that the brokers replaced a timestamp: the topic has `LogAppendTime` by now."""
        self._limits.pop(stream, None)
        self._replacing.add(stream)

    def upcoming(self, ssp: SystemStreamPartition) -> int:
        """The end of the partition, once it has no open transaction. Messages that older epochs have committed, which
        brokers may show a little later, are before it. Raises RetryableError if a transaction stays open."""
        end = 0

        def is_settled() -> bool:
            nonlocal end
            (written,) = self._opened().offsets(ssp.stream, [ssp.partition], [OffsetSpec.latest()], committed=False)
            (stable,) = self._opened().offsets(ssp.stream, [ssp.partition], [OffsetSpec.latest()])
            end = stable[ssp.partition]
            return end >= written[ssp.partition]

        self._opened().wait_until(f"the transactions of others in `{ssp}` are over", is_settled)
        return end

    def forget(self) -> None:
        self._partitions.clear()

    def _read_limits(self, stream: str) -> TimestampLimits:
        try:
            found = timestamp_limits(self._opened().settings(stream))
        except ConfigError as error:
            if stream not in self._unknown:
                self._unknown.add(stream)
                logger.warning(
                    "times ahead of the clock are sent to `%s.%s` in a header only, because the limits of its "
                    "timestamps are not known: %s",
                    self._options.system,
                    stream,
                    error,
                )
            return TimestampLimits(replaced=stream in self._replacing)
        self._replacing.discard(stream)
        return found

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _opened(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options)
        return self._cluster


_CLOSE_SECONDS = 2.0
"""A writer that is closed tries to delete its registration for so long."""
_MOST_REFUSED = 5
"""A writer replaces so many producers one after the other, without a commit in between."""


class WriterSession:
    """The producer of a writer, its right to write, and its last marks.

    A producer whose outcome is not known, or that the broker has refused, is replaced by the next transaction, which
    first ends the old one's. One that may have asked twice for the end of a transaction is replaced as well.
    """

    def __init__(self, options: KafkaOptions, identity: WriterIdentity | None) -> None:
        self.options = options
        self.identity = identity
        self.places = WriterTopics(options)
        self.reported = ClientErrors()
        self._topic = None if identity is None else job_topic(identity.name)
        self._id = ""
        self._producer: Producer | None = None
        self._lost: list[str] = []
        """Transactional ids of producers that were given up, and may have an open transaction."""
        self._ended: list[str] = []
        """Transactional ids of producers that were given up, and have none."""
        self._refused = 0
        """The number of producers refused one after the other, without a commit in between."""
        self.is_committing = False
        """True if a commit was requested, and the brokers' answer is not known."""
        self._has_taken_over = False
        self._log: job_log.JobLog | None = None
        self._marks: dict[tuple[str, int], Progress] | None = None
        self._exact: set[SystemStreamPartition] = set()
        """Partitions to which others append at the same time: the offset of every message is reported."""

    def producer(self) -> Producer:
        """The producer, made if there is none. Raises FencedError if a larger epoch has taken over."""
        if self._producer is None:
            self._end_lost()
            if self.identity is None:
                self._id = new_transactional_id(job_topic("nobody"))
                self._producer = fences.initialised(self.options, self._id, None, self.reported)
            else:
                self._id, self._producer, state = fences.register(
                    self.options, self.identity, self.reported, self._ended
                )
                epoch = self.identity.epoch
                self._has_taken_over = epoch in state.fences and not state.older_producers(epoch)
            self._ended.clear()
        return self._producer

    def close(self) -> None:
        """Give up the producer."""
        made, self._producer = self._producer, None
        if made is not None:
            job_log.discard(made)
        del made
        if self._log is not None:
            self._log.close()
            self._log = None
        self.places.close()
        done = [*self._ended, *([self._id] if self._id and not self.is_committing else [])]
        if done and self._topic is not None:
            with suppress(PenstockError, KafkaException):  # a newer epoch deletes them as well
                gone = [(producer_key(each), None) for each in done]
                job_log.put(self.options, self._topic, gone, within_s=_CLOSE_SECONDS)
        self._id = ""
        self._ended.clear()

    def take_over(self) -> None:
        if self.identity is not None and not self._has_taken_over:
            fences.fence(self.options, self.identity)
            self._has_taken_over = True

    def check_fence(self) -> None:
        if self.identity is not None:
            fences.check(self.options, self.identity)

    def check_mark(self, ssp: SystemStreamPartition, mark: Progress) -> None:
        """Raise IncompatibleError unless the mark is larger than the last one."""
        check_may_mark(self.identity)
        if self._marks is None:
            self.producer()
            self.take_over()
            self.read_marks()
        self.check_known([ssp])
        mark.check_follows((self._marks or {}).get((ssp.stream, ssp.partition)), ssp)

    def mark_record(self, ssp: SystemStreamPartition, mark: Progress) -> tuple[SystemStreamPartition, RawRecord]:
        """The topic of marks, as a partition, and the record that keeps this one."""
        topic, (key, value) = self._topic or "", progress_record(ssp, mark)
        signed = self.options.signer.own_headers(topic, key, value)
        return SystemStreamPartition(ssp.system, topic, 0), (SYSTEM_CLOCK.now_ms(), key, value, signed)

    def committed(self, marks: Mapping[SystemStreamPartition, Progress]) -> None:
        self._refused = 0
        if self._marks is not None:
            self._marks.update({(ssp.stream, ssp.partition): mark for ssp, mark in marks.items()})

    def refused(self, what: str, reason: str) -> PenstockError:
        self._refused += 1
        text = (
            f"{what}: the brokers have ended the transaction, which took longer than "
            f"`systems.{self.options.system}.producer.transaction.timeout.ms`, or have forgotten the producer "
            f"({reason})"
        )
        if self._refused < _MOST_REFUSED:
            return RetryableError(text)
        return PenstockTimeoutError(f"{text}. This happened {self._refused} times in a row: raise the timeout")

    def lose_producer(self, *, has_ended: bool = False) -> None:
        """Give up the producer: it may have an open transaction, or may have lost the right to write.

        Args:
            has_ended: its last transaction has certainly ended, and its next one would be in danger: a request of the
                last one may still be under way.
        """
        if not has_ended:
            self._marks = None
        made, self._producer = self._producer, None
        if made is not None:
            (self._ended if has_ended else self._lost).append(self._id)
            self._id = ""
            self.is_committing = False
            job_log.discard(made)

    def reports_every_offset(self, ssp: SystemStreamPartition) -> bool:
        """True if the offset of every message is reported, not only that of the first and the last one."""
        return ssp in self._exact

    def report_every_offset(self, ssps: Iterable[SystemStreamPartition]) -> None:
        """Report the offset of every message of these partitions from now on."""
        self._exact.update(ssps)

    def _end_lost(self) -> None:
        """End the transactions of lost producers. Raises FencedError if a larger epoch has taken over."""
        if not self._lost:
            return
        if self.identity is None:
            for each in self._lost:
                job_log.discard(fences.initialised(self.options, each, None, self.reported))
        else:
            fences.check(self.options, self.identity)
            fences.retire(self.options, job_topic(self.identity.name), self._lost)
        self._lost.clear()

    def check_known(self, ssps: Iterable[SystemStreamPartition]) -> None:
        if self._log is not None:
            self._log.state.check_known([(ssp.stream, ssp.partition) for ssp in ssps], self.options.system)

    def read_marks(self) -> dict[tuple[str, int], Progress]:
        identity = check_may_mark(self.identity)
        self._marks = None
        if self._log is None:
            self._log = fences.opened(self.options, identity.name, committed=True)
        try:
            state = self._log.catch_up()
        except BaseException:
            self._log.close()
            self._log = None
            raise
        state.check_fence(identity, self.options.system)
        self._marks = dict(state.progress)
        return self._marks
