"""Looks at topics and makes them, and knows the times at which open transactions began to write."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import replace

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from penstock.api.retention import LEAST_RETENTION_BYTES, StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK
from penstock.base.wording import counted
from penstock.errors import ConfigError, IncompatibleError, NotFoundError, PenstockError
from penstock.system import base
from penstock.system.kafka import fences, topic_settings
from penstock.system.kafka.client import open_consumer
from penstock.system.kafka.cluster import Cluster, check_partition, check_system
from penstock.system.kafka.errors import ClientErrors, alter_command
from penstock.system.kafka.fences import TOPIC as OWNERS
from penstock.system.kafka.fences import Owners
from penstock.system.kafka.job_topic import job_topic
from penstock.system.kafka.options import KafkaOptions, weaknesses
from penstock.system.kafka.reader import KafkaReader

_WITHIN_S = 2.0
"""Nothing waits longer for a timestamp, which is only shown to people."""
_POLL_S = 0.1


def first_timestamps(options: KafkaOptions, stream: str, offsets: Mapping[int, int]) -> dict[int, int]:
    """The timestamp of the first message at or behind an offset, committed or not, in epoch milliseconds, by partition.
    Partitions that did not answer in time are left out."""
    decided = {"isolation.level": "read_uncommitted", "enable.partition.eof": False}
    consumer = open_consumer(options, ClientErrors(), decided)
    found: dict[int, int] = {}
    try:
        consumer.assign([TopicPartition(stream, partition, offset) for partition, offset in offsets.items()])
        until = time.monotonic() + _WITHIN_S
        while found.keys() != offsets.keys() and time.monotonic() < until:
            message = consumer.poll(_POLL_S)
            if message is None or message.error() is not None:
                continue
            partition, (kind, timestamp) = message.partition(), message.timestamp()
            if partition is not None and partition not in found and kind != TIMESTAMP_NOT_AVAILABLE:
                found[partition] = timestamp
                consumer.pause([TopicPartition(stream, partition)])
    except KafkaException:
        return found
    finally:
        consumer.close()
    return found


logger = logging.getLogger(__name__)
_said: set[tuple[str, str]] = set()
_REPLICAS = "replication.factor"
_LOOK_MESSAGES = 1000
_KNOWN_S = 1.0
"""The time for which a topic is assumed to keep its number of partitions."""


class KafkaAdmin(base.SystemAdmin):
    """Looks at topics and makes them. Thread-safe; made by `KafkaSystem.admin`.

    Every call may raise RetryableError (the brokers did not answer in time) and ConfigError (they refuse).
    """

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        for each in weaknesses(options):
            if (options.system, each) not in _said:
                _said.add((options.system, each))
                logger.warning("the system `%s`: %s", options.system, each)
        self._cluster = Cluster(options)
        self._owners = Owners(options)
        self._counts: dict[str, tuple[int, float]] = {}
        """The number of partitions of topics, and when the brokers said it."""

    def show_positions(self, group: str, positions: Mapping[SystemStreamPartition, int]) -> None:
        """Commits the offsets for a consumer group."""
        self._cluster.commit(group, positions)

    def partition_count(self, stream: str) -> int:
        """Asks the brokers each time."""
        return self._cluster.partition_count(stream)

    def offsets(self, stream: str) -> dict[int, base.PartitionOffsets]:
        """`upcoming` is the end of the committed messages: no message of an open transaction is before it. If some were
        compacted or aborted, a reader finds fewer messages than offsets."""
        count = self._recent_count(stream)
        oldest, stable = self._cluster.offsets(stream, range(count), [OffsetSpec.earliest(), OffsetSpec.latest()])
        return {n: base.PartitionOffsets(min(oldest[n], stable[n]), stable[n]) for n in range(count)}

    def _recent_count(self, stream: str) -> int:
        """The number of partitions, as of the last moment: to ask for it takes as long as to ask for the offsets. If a
        partition is gone, so are its offsets."""
        count, asked_s = self._counts.get(stream, (0, 0.0))
        if not count or time.monotonic() - asked_s > _KNOWN_S:
            count = self._cluster.partition_count(stream)
            self._counts[stream] = count, time.monotonic()
        return count

    def open_transactions(self, stream: str) -> dict[int, base.OpenTransaction]:
        """Partitions where more was written than is committed. Aborted and committed messages may be behind an open
        transaction's first one, too."""
        found = self._waiting(stream)
        since = first_timestamps(self._options, stream, {n: each.offset for n, each in found.items()}) if found else {}
        return {n: replace(each, since_ms=since.get(n, 0)) for n, each in found.items()}

    def _waiting(self, stream: str) -> dict[int, base.OpenTransaction]:
        count = self._cluster.partition_count(stream)
        (stable,) = self._cluster.offsets(stream, range(count), [OffsetSpec.latest()])
        (written,) = self._cluster.offsets(stream, range(count), [OffsetSpec.latest()], committed=False)
        waiting = [n for n in range(count) if written[n] > stable[n]]
        return {n: base.OpenTransaction(stable[n], written[n] - stable[n], since_ms=0) for n in waiting}

    def stream_identity(self, stream: str) -> str | None:
        return self._topic_id(stream)

    def create_stream(self, stream: str, partitions: int, retention: StreamRetention | None = None) -> bool:
        """Create a topic with the settings `systems.<name>.default.stream.*`.

        If this raises RetryableError, the topic may have been created; calling it again finds it.
        """
        base.check_stream_name(stream)
        if partitions < 1:
            raise ConfigError(f"a stream has at least one partition; {partitions} were asked for")
        settings = {**_limits(StreamRetention()), **self._options.topics}
        if retention is not None:
            settings |= _limits(retention)
        replicas = settings.pop(_REPLICAS, "-1")
        if not (replicas.isascii() and replicas.removeprefix("-").isdigit()):
            raise ConfigError(
                f"`systems.{self._options.system}.default.stream.{_REPLICAS}` = `{replicas}`: expected a whole number"
            )
        if self._make(stream, partitions, settings, int(replicas)):
            return True
        if retention is not None and (has := self.retention(stream)) != retention:
            raise IncompatibleError(
                f"the stream `{self._name(stream)}` exists and keeps its messages: {has}; asked for: {retention}. "
                f"Change it with `penstock stream retain {self._name(stream)}`, or ask for what it has"
            )
        return False

    def create_compacted(self, stream: str, partitions: int, settings: Mapping[str, str]) -> bool:
        """Create a topic with these settings; `replication.factor` is that of `systems.<name>.default.stream.*` if they
        do not have it. An older topic is accepted if its policy is `compact`, and it keeps records at least as long.

        If this raises RetryableError, the topic may have been created; calling it again finds it.
        """
        base.check_stream_name(stream)
        wanted = {"cleanup.policy": "compact", **settings}
        replicas = wanted.pop(_REPLICAS, self._options.topics.get(_REPLICAS, "-1"))
        if self._make(stream, partitions, wanted, int(replicas)):
            return True
        found = self._cluster.settings(stream)
        if refused := topic_settings.refused(wanted, found):
            raise ConfigError(f"the topic of `{self._name(stream)}` {refused}")
        for difference in topic_settings.differences(wanted, found):
            logger.warning("the topic of `%s` has %s", self._name(stream), difference)
        return False

    def compaction(self, stream: str) -> base.Compaction:
        """By `min.compaction.lag.ms`, the timestamps of the topic's messages and this machine's clock. The clocks of
        the brokers may be behind or ahead by a tenth of the lag, at most 5 minutes."""
        count = self._cluster.partition_count(stream)
        found = self._cluster.settings(stream)
        lag_ms = int(found.get(topic_settings.LAG, "0"))
        since = max(0, SYSTEM_CLOCK.now_ms() - lag_ms + topic_settings.margin_ms(lag_ms))
        young, stable = self._cluster.offsets(
            stream, range(count), [OffsetSpec.for_timestamp(since), OffsetSpec.latest()]
        )
        untouched = {n: stable[n] if young[n] < 0 else min(young[n], stable[n]) for n in range(count)}
        return base.Compaction(untouched, lag_ms, int(found.get(topic_settings.DELETES, "0")))

    def deletions_kept_ms(self, stream: str) -> int | None:
        """The `delete.retention.ms` of a compacted topic. A user without the right to read the topic's settings gets
        Kafka's default."""
        self._cluster.partition_count(stream)
        try:
            found = self._cluster.settings(stream)
        except ConfigError as error:
            logger.warning("`%s` is taken for a compacted topic: %s", self._name(stream), error)
            return topic_settings.KEPT_MS
        if "compact" not in found.get(topic_settings.POLICY, ""):
            return None
        return int(found.get(topic_settings.DELETES, topic_settings.KEPT_MS))

    def streams(self) -> list[str]:
        """Without the topics of Kafka and Penstock themselves, whose names begin with two underscores."""
        return [name for name in self._cluster.topics() if not name.startswith("__")]

    def delete_stream(self, stream: str) -> None:
        """Waits until the brokers no longer know the topic."""
        identity = self._topic_id(stream)
        self._counts.pop(stream, None)
        self._cluster.delete(stream)

        def is_gone() -> bool:
            try:
                return self._topic_id(stream) != identity
            except NotFoundError:
                return True

        self._cluster.wait_until(f"the topic of `{self._name(stream)}` was deleted", is_gone)
        try:
            self._owners.forget(identity)
        except PenstockError as error:
            logger.warning("the owner of the deleted `%s` is still in `%s`: %s", self._name(stream), OWNERS, error)

    def own(self, stream: str, owner: str) -> str:
        """The owner is recorded in `own_topics.owners`, for this topic, not for another one of its name."""
        return self._owners.own(stream, self._topic_id(stream), owner)

    def owner(self, stream: str) -> str | None:
        return self._owners.read().owner(self._topic_id(stream))

    def owners(self) -> dict[str, str]:
        found = {}
        known = self._owners.read()
        for stream in known.streams():
            with suppress(NotFoundError):
                if (owner := known.owner(self._topic_id(stream))) is not None:
                    found[stream] = owner
        return found

    def retention(self, stream: str) -> StreamRetention:
        """The topic's `retention.ms` and `retention.bytes`. A topic that is only compacted keeps its messages.

        A `retention.bytes` below 1 MB is given as 1 MB.
        """
        self._cluster.partition_count(stream)
        settings = self._cluster.settings(stream)
        if "delete" not in settings.get("cleanup.policy", "delete"):
            return StreamRetention()
        age, size = (int(settings.get(key, "-1")) for key in ("retention.ms", "retention.bytes"))
        return StreamRetention(None if age < 0 else max(age, 1), None if size < 0 else max(size, LEAST_RETENTION_BYTES))

    def record_limits(self, stream: str) -> base.RecordLimits:
        """By the topic's `max.message.bytes` and `cleanup.policy`, and the client's largest message. A user without the
        right to read the topic's settings gets the client's limits only."""
        self._cluster.partition_count(stream)
        try:
            settings = self._cluster.settings(stream)
        except ConfigError as error:
            logger.warning("messages that `%s` will refuse are noticed late: %s", self._name(stream), error)
            settings = {}
        return topic_settings.record_limits(settings, self._options.producer)

    def set_retention(self, stream: str, retention: StreamRetention) -> int:
        """Change the topic's `retention.ms` and `retention.bytes`. The brokers delete old messages in their own time,
        a segment of the log at once (`segment.ms`, `segment.bytes`): 0 is returned.

        Raises:
            ConfigError: the topic is only compacted, so that limits would do nothing.
        """
        self._cluster.partition_count(stream)
        policy = self._cluster.settings(stream).get("cleanup.policy", "delete")
        if retention.is_limited and "delete" not in policy:
            raise ConfigError(
                f"the topic of `{self._name(stream)}` has `cleanup.policy={policy}`: no limit deletes its messages. "
                "First let the brokers delete in it: `"
                f"{alter_command(self._options.servers, stream, 'cleanup.policy=delete')}`"
            )
        self._cluster.set(stream, _limits(retention))
        self._cluster.wait_until(
            f"the retention of `{self._name(stream)}` was changed",
            lambda: "delete" not in policy or self.retention(stream) == retention,
        )
        return 0

    def fence(self, stream: str, writer: base.WriterIdentity) -> None:
        """Applies to all topics of the cluster (`own_topics.fences`)."""
        self._cluster.partition_count(stream)
        fences.fence(self._options, writer)

    def keeps_progress_of(self, name: str) -> bool:
        """True if the topic of the writer's name exists."""
        return fences.has_job_topic(self._options, name)

    def progress_of(
        self, name: str, ssps: Iterable[SystemStreamPartition]
    ) -> Mapping[SystemStreamPartition, base.Progress]:
        if not self.keeps_progress_of(name):
            return {}
        with closing(fences.opened(self._options, name, committed=True)) as log:
            marks = log.catch_up().progress
        return {ssp: marks[place] for ssp in ssps if (place := (ssp.stream, ssp.partition)) in marks}

    def progress_place(self, name: str) -> str:
        return f"the topic `{job_topic(name)}` (1 partition, `cleanup.policy=compact`) at {self._options.servers}"

    def offset_at_time(self, ssp: SystemStreamPartition, timestamp_ms: int) -> int:
        """The brokers may name an earlier offset, because markers of transactions have the time they were written at.
        Therefore the messages from there on are looked at."""
        check_system(self._options, ssp)
        check_partition(ssp, self._cluster.partition_count(ssp.stream))
        specs = [OffsetSpec.for_timestamp(max(timestamp_ms, 0)), OffsetSpec.latest()]
        found, stable = self._cluster.offsets(ssp.stream, [ssp.partition], specs)
        offset, end = found[ssp.partition], stable[ssp.partition]
        if not 0 <= offset < end:
            return end
        reader = KafkaReader(self._options)
        try:
            chunks = reader.read(base.OffsetRange(ssp, offset, end), _LOOK_MESSAGES)
            return next((each[0] for chunk in chunks for each in chunk if each[1] >= timestamp_ms), end)
        finally:
            reader.close()

    def close(self) -> None:
        self._owners.close()
        self._cluster.close()

    def _topic_id(self, stream: str) -> str:
        return str(self._cluster.describe(stream).topic_id)

    def _make(self, stream: str, partitions: int, settings: Mapping[str, str], replicas: int) -> bool:
        """Create the topic; False if it existed with so many partitions. Then no right to create it is needed."""
        made = not self._is_there(stream) and self._cluster.create(stream, partitions, settings, replicas)
        self._cluster.wait_until(
            f"the topic of `{self._name(stream)}` was created", lambda: self._is_ready(stream, partitions)
        )
        if not made and (found := self.partition_count(stream)) != partitions:
            raise IncompatibleError(
                f"the stream `{self._name(stream)}` exists with {counted(found, 'partition')}; {partitions} were asked "
                "for"
            )
        if made:
            logger.info(
                "created the topic of `%s`: %s, %s each, %s",
                self._name(stream),
                counted(partitions, "partition"),
                counted(min(len(each.replicas) for each in self._cluster.describe(stream).partitions), "replica"),
                ", ".join(f"{key}={value}" for key, value in sorted(settings.items())),
            )
        return made

    def _is_there(self, stream: str) -> bool:
        try:
            return self.partition_count(stream) > 0
        except NotFoundError:
            return False

    def _is_ready(self, stream: str, partitions: int) -> bool:
        """True if the topic is known, and each partition has a leader, or if the count differs, which waiting cannot
        change."""
        try:
            found = self._cluster.describe(stream).partitions
        except NotFoundError:
            return False
        return len(found) != partitions or all(each.leader is not None for each in found)

    def _name(self, stream: str) -> str:
        return f"{self._options.system}.{stream}"


def _limits(retention: StreamRetention) -> dict[str, str]:
    age, size = (-1 if each is None else each for each in (retention.max_age_ms, retention.max_bytes))
    return {"retention.ms": str(age), "retention.bytes": str(size)}
