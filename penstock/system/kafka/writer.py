"""Appends to streams of Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import Progress, RawRecord, SystemWriter, WriterIdentity, WriterTransaction, check_may_mark
from penstock.system.kafka.options import KafkaOptions
from penstock.system.kafka.transaction import KafkaTransaction
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
