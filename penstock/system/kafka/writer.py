"""Appends to streams of Kafka, in transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer

from penstock import errors
from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK, check_interrupt
from penstock.base.wording import listed
from penstock.system.base import (
    Appended,
    Progress,
    RawRecord,
    SystemWriter,
    WriterIdentity,
    WriterTransaction,
    check_may_mark,
)
from penstock.system.kafka import job_log
from penstock.system.kafka.client import LOG, malformed, resent_after_s, sent_parts
from penstock.system.kafka.errors import Right, alter_command, explain, is_fenced, topic
from penstock.system.kafka.job_topic import SentHeaders
from penstock.system.kafka.options import KafkaOptions
from penstock.system.kafka.topic_settings import ANY_MS, TimestampLimits, header_of
from penstock.system.kafka.writer_session import WriterSession


class KafkaWriter(SystemWriter):
    """Appends to streams of Kafka. Used by one thread; made by `KafkaSystem.writer`.

    It keeps a producer from transaction to transaction.
    """

    def __init__(self, options: KafkaOptions, identity: WriterIdentity | None) -> None:
        self.session = WriterSession(options, identity)

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> int:
        """Append all records or none. Returns the first one's offset.

        Raises:
            FencedError: a larger epoch of this writer's name was seen.
            NotFoundError: there is no such stream or partition.
            ConfigError: a record has values of other types, or is larger than the topic or the client takes.
            RetryableError: the cluster does not answer, or refuses for now.
            PenstockTimeoutError: the transactions take longer than `producer.transaction.timeout.ms`.
        """
        with self.begin() as transaction:
            transaction.append(ssp, records)
        appended = transaction.appended()
        return appended[ssp][0][0] if ssp in appended else self.session.places.upcoming(ssp)

    def begin(self) -> WriterTransaction:
        """Its commit is one step for all partitions."""
        return KafkaTransaction(self.session)

    def progress(self, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, Progress]:
        """The last marks of this writer's name, once no older epoch can add one, and no transaction of this epoch has
        an unknown outcome.

        Raises:
            FencedError: a larger epoch of this writer's name was seen.
            RetryableError: the cluster does not answer, or a transaction of another process stays open.
            ConfigError: the writer has no name.
            IncompatibleError: a foreign record may have replaced the mark of a partition.
        """
        check_may_mark(self.session.identity)
        asked = list(ssps)
        for ssp in asked:
            self.session.places.check(ssp)
        self.session.producer()
        self.session.take_over()
        marks = self.session.read_marks()
        self.session.check_known(asked)
        return {ssp: marks[place] for ssp in asked if (place := (ssp.stream, ssp.partition)) in marks}

    def close(self) -> None:
        """Give up the producer. Uncommitted records never become visible."""
        self.session.close()


_ALL = TimestampLimits(after_ms=ANY_MS)
_COMMIT = "the transaction could not be committed"
_ABORT_SECONDS = 10.0
_ENDED = (KafkaError._FATAL, KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError.INVALID_TXN_STATE)
"""Errors that say that the brokers have ended the transaction, or know nothing of it."""


@dataclass(slots=True)
class _SentRecords:
    """The messages of one call, and the offsets that they got."""

    every: bool
    """The offset of each message is reported, not only that of the first and the last one."""
    limits: TimestampLimits
    messages: int = 0
    offsets: list[int] = field(default_factory=list)
    failed: bool = False
    replaced: bool = False
    """True if the brokers replaced a timestamp that is not in the header."""

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        self.failed = self.failed or error is not None
        if not self.limits.replaced and message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME:
            self.replaced = True
        self.offsets.append(-1 if offset is None else offset)

    def ranges(self) -> list[tuple[int, int]] | None:
        """The ranges of offsets. None if the reports do not tell, because others appended in between."""
        expected = self.messages if self.every else min(self.messages, 2)
        if len(self.offsets) != expected or min(self.offsets) < 0:
            return None
        if self.every:
            return _merged((offset, offset + 1) for offset in sorted(self.offsets))
        first, end = min(self.offsets), max(self.offsets) + 1
        return [(first, end)] if end - first == self.messages else None


class KafkaTransaction(WriterTransaction):
    """Sends records as they come. Readers see them with the commit."""

    def __init__(self, session: WriterSession) -> None:
        self._session = session
        self._system = session.options.system
        self._producer: Producer | None = None
        self._runs: dict[SystemStreamPartition, list[_SentRecords]] = {}
        self._marks: dict[SystemStreamPartition, Progress] = {}
        self._has_failed = False
        """True if a message was not delivered. The client may then number later messages other than the brokers
        expect."""
        self._appended: Appended = {}

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> None:
        """Send the records. Records that the brokers do not have yet are in memory, within the client's limits.

        Raises:
            NotFoundError, ConfigError, FencedError, RetryableError, PenstockTimeoutError: as for `KafkaWriter.append`.
        """
        self._session.places.check(ssp)
        runs = self._runs.setdefault(ssp, [])
        following = iter(records)
        held = next(following, None)
        if held is None:
            return
        limits = self._session.places.timestamps(ssp.stream)
        first, last = limits.taken(SYSTEM_CLOCK.now_ms())
        run = _SentRecords(self._session.reports_every_offset(ssp), limits)
        runs.append(run)
        produce = self._begun().produce
        name, partition, sent = ssp.stream, ssp.partition, 0
        report: _Report | None = run.delivered
        for record in following:  # the loop of every message; one is held back, because the last one is reported
            try:
                if len(held) == 3:
                    timestamp, key, value = held
                    headers: SentHeaders | None = None
                else:
                    timestamp, key, value, given = held
                    headers = [*given]
                if (key is not None and type(key) is not bytes) or (value is not None and type(value) is not bytes):
                    raise TypeError
                if timestamp and first <= timestamp <= last:
                    produce(name, value, key, partition, report, None, timestamp, headers)
                else:
                    self._send(ssp, held, report, limits)
            except (BufferError, KafkaException, TypeError, ValueError, OverflowError):
                self._send(ssp, held, report, limits)
            sent += 1
            report = run.delivered if run.every else None
            held = record
        self._send(ssp, held, run.delivered, limits)
        run.messages = sent + 1

    def mark(self, ssp: SystemStreamPartition, progress: Progress) -> None:
        """Keep the mark for the commit, which writes it to the topic of this writer's name."""
        check_may_mark(self._session.identity)
        self._session.places.check(ssp)
        if ssp in self._marks:
            progress.check_follows(self._marks[ssp], ssp)
        else:
            self._session.check_mark(ssp, progress)
        self._marks[ssp] = progress

    def commit(self) -> None:
        """Commit everything in one transaction.

        After an error other than FencedError the outcome may be unknown, because the brokers did not answer. The next
        use of the writer first ends the open transaction, and `KafkaWriter.progress` knows the outcome.
        """
        if self._producer is None and not self._marks:
            if self._runs:
                self._session.producer()
                self._session.take_over()
                self._session.check_fence()
            return
        producer = self._begun()
        self._session.take_over()
        for ssp, mark in self._marks.items():
            self._send(*self._session.mark_record(ssp, mark), None, _ALL)
        try:
            self._flush(producer)
            self._appended = self._ranges()
            self._commit(producer)
        except KafkaException as error:
            raise self._failure(error, _COMMIT) from error
        self._producer = None
        self._session.committed(self._marks)

    def abort(self) -> None:
        """If the brokers do not answer, the next use of the writer aborts. The producer begins no other transaction:
        the client may have asked twice, and a late request would end that one."""
        producer, self._producer = self._producer, None
        self._runs.clear()
        self._marks.clear()
        self._session.places.forget()  # a topic may have been deleted
        if producer is None:
            return
        has_ended = False
        try:
            job_log.apart(
                partial(
                    job_log.patiently,
                    producer,
                    producer.abort_transaction,
                    self._session.options,
                    "the transaction could not be aborted",
                    _ABORT_SECONDS,
                    self._session.reported,
                )
            )
            has_ended = not self._has_failed
        except (KafkaException, errors.PenstockError):
            pass
        finally:
            self._session.lose_producer(has_ended=has_ended)

    def appended(self) -> Appended:
        return self._appended

    def _begun(self) -> Producer:
        if self._producer is None:
            producer = self._session.producer()
            try:
                producer.begin_transaction()
            except KafkaException as error:
                raise self._refused(error.args[0], "a transaction could not begin") from error
            self._producer = producer
        return self._producer

    def _send(
        self,
        ssp: SystemStreamPartition,
        record: RawRecord,
        report: _Report | None,
        limits: TimestampLimits,
    ) -> None:
        """Send a record, and wait if the client's queue is full. A timestamp that the topic does not take goes into a
        header."""
        producer = self._begun()
        timestamp, key, value, headers = sent_parts(record)
        sent = limits.sent(timestamp, SYSTEM_CLOCK.now_ms())
        if sent != timestamp or limits.replaced:
            headers += header_of(timestamp)
        while True:
            try:
                return producer.produce(ssp.stream, value, key, ssp.partition, report, None, sent, headers or None)
            except BufferError:
                check_interrupt(f"a message could not be appended to `{ssp}`")
                # A message that the brokers do not take fails within the transaction's time, and makes room as well.
                if producer.poll(job_log.STEP_SECONDS) == 0 and len(producer) == 0:
                    raise errors.ConfigError(
                        f"a message for `{ssp}` of {len(key or b'') + len(value or b'')} bytes is larger than what the "
                        f"client keeps; raise `systems.{self._system}.producer.queue.buffering.max.kbytes`"
                    ) from None
            except KafkaException as error:
                raise self._failure(error, f"a message could not be appended to `{ssp}`") from error
            except (TypeError, ValueError, OverflowError) as error:
                raise malformed(record) from error

    def _flush(self, producer: Producer) -> None:
        patience_s, servers = self._session.options.timeout_s, self._session.options.servers
        deadline = time.monotonic() + patience_s
        while job_log.flushed(producer):
            check_interrupt(_COMMIT)
            self._check_places()
            if time.monotonic() > deadline:
                raise errors.SystemAwayError(
                    f"{_COMMIT}: the brokers of the system `{self._system}` at {servers} have not taken all messages "
                    f"within {patience_s:g} s{self._session.reported.why}"
                )

    def _check_places(self) -> None:
        """Raise NotFoundError if a topic was deleted: the client would wait until it exists again."""
        self._session.places.forget()
        try:
            for ssp in self._runs:
                self._session.places.check(ssp)
        except errors.NotFoundError:
            self._has_failed = True
            raise

    def _commit(self, producer: Producer) -> None:
        self._session.is_committing = True
        began = time.monotonic()
        try:
            calls = job_log.patiently(
                producer,
                producer.commit_transaction,
                self._session.options,
                _COMMIT,
                self._session.options.timeout_s,
                self._session.reported,
            )
        except errors.PenstockError:
            self._producer = None
            self._session.lose_producer()  # what becomes of the transaction is not known
            raise
        self._session.is_committing = False
        self._session.reported.forget()
        took_s = time.monotonic() - began
        if calls > 1 or took_s >= resent_after_s(self._session.options):
            LOG.info("a commit to `%s` took %.3f s, and may have been requested twice", self._system, took_s)
            self._session.lose_producer(has_ended=True)  # a late request would commit its next transaction

    def _ranges(self) -> Appended:
        found: dict[SystemStreamPartition, tuple[tuple[int, int], ...]] = {}
        unknown = []
        for ssp, runs in self._runs.items():
            if any(run.failed for run in runs):
                return {}  # the commit says why
            ranges = [run.ranges() for run in runs]
            if None in ranges:
                unknown.append(ssp)
            elif runs:
                found[ssp] = tuple(_merged(sorted(chain.from_iterable(own for own in ranges if own is not None))))
        replaced = [ssp for ssp, runs in self._runs.items() if any(run.replaced for run in runs)]
        if replaced:
            for ssp in replaced:
                self._session.places.replaced_timestamp(ssp.stream)
            raise errors.RetryableError(
                f"the brokers replace the timestamps of {listed([f'`{ssp}`' for ssp in replaced])} "
                "(`message.timestamp.type=LogAppendTime`); nothing was appended. The next transaction has the true "
                "ones in a header"
            )
        if unknown:
            self._session.report_every_offset(unknown)
            raise errors.RetryableError(
                f"others appended to {listed([f'`{ssp}`' for ssp in unknown])} at the same time; nothing was appended. "
                "The next transaction asks for the offset of every message"
            )
        return found

    def _failure(self, error: KafkaException, what: str) -> errors.PenstockError:
        reason: KafkaError = error.args[0]
        self._has_failed = True
        if reason.code() == KafkaError._STATE and self._producer is not None:
            try:
                # It does not: it says what has failed before.
                job_log.apart(partial(self._producer.commit_transaction, job_log.STEP_SECONDS))
            except KafkaException as before:
                reason = before.args[0]
        if reason.fatal() or _is_refused(reason):
            return self._refused(reason, what)
        if reason.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return errors.SystemRefusedError(
                f"{what}: a message, or a batch of messages, is larger than the topic's `max.message.bytes` or the "
                f"client's `systems.{self._system}.producer.message.max.bytes`. Raise them; where messages are small, "
                f"lower `systems.{self._system}.producer.batch.size` instead. {self._alter('max.message.bytes=...')}"
            )
        if reason.code() == KafkaError.INVALID_RECORD:
            keyless = f"{what}: {reason.str()} ({reason.name()}). A compacted topic refuses messages without a key"
            return errors.SystemRefusedError(f"{keyless}. {self._alter('cleanup.policy=delete')}")
        if reason.code() == KafkaError.INVALID_TIMESTAMP:
            self._find_refused(reason.str())
            return errors.RetryableError(
                f"{what}: {reason.str()}; the transaction is aborted, and the next one tries others"
            )
        failed = explain(reason, what, self._session.options, self._session.reported, self._right)
        passes = reason.txn_requires_abort() and type(failed) is errors.PenstockError
        return errors.RetryableError(f"{failed}; the transaction is aborted") if passes else failed

    def _find_refused(self, text: str) -> None:
        """Find the topic of a refused timestamp in the client's text. Delivery reports do not have it, because the
        messages were dropped before, with those for other topics."""
        sent = {ssp.stream: runs[-1].limits for ssp, runs in self._runs.items() if runs}
        named = {stream: limits for stream, limits in sent.items() if f" {stream} [" in text}
        for stream, limits in (named or sent).items():
            self._session.places.refused_timestamp(stream, limits)

    def _alter(self, setting: str) -> str:
        name = min((ssp.stream for ssp in self._runs), default="...")
        return f"To change the topic: `{alter_command(self._session.options.servers, name, setting)}`"

    @property
    def _right(self) -> Right:
        return topic("Write", *sorted({ssp.stream for ssp in self._runs}))

    def _refused(self, reason: KafkaError, what: str) -> errors.PenstockError:
        self._producer = None
        self._session.lose_producer()
        if not _is_refused(reason):
            return explain(reason, what, self._session.options, right=self._right)
        try:
            job_log.apart(self._session.check_fence)
        except errors.PenstockError as fenced:
            return fenced
        return self._session.refused(what, reason.str())


_Report = Callable[[KafkaError | None, Message], None]


def _is_refused(error: KafkaError) -> bool:
    return is_fenced(error) or error.code() in _ENDED


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges, ascending; those that touch are merged."""
    merged: list[tuple[int, int]] = []
    for start, end in ranges:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged
