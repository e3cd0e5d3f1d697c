"""The system `kafka` by its configuration, and its writer, which appends to streams."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError
from penstock.system.base import (
    Progress,
    RawRecord,
    System,
    SystemAdmin,
    SystemReader,
    SystemWriter,
    WriterIdentity,
    WriterTransaction,
    check_may_mark,
)
from penstock.system.kafka.options import KafkaOptions, parse_options
from penstock.system.kafka.transaction import KafkaTransaction
from penstock.system.kafka.writer_session import WriterSession

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, slots=True)
class KafkaSystem(System):
    """The topics of a Kafka cluster. The package `confluent-kafka` is imported when it is first used.

    Example:
        >>> system = KafkaSystem.configured("kafka", {"consumer.bootstrap.servers": "127.0.0.1:9092"})
        >>> [system.name, system.fences, system.dense_offsets]
        ['kafka', True, False]
    """

    name: str
    options: KafkaOptions = field(repr=False)

    carries_headers: ClassVar[bool] = True
    shows_positions: ClassVar[bool] = True
    fences: ClassVar[bool] = True
    compacts_by_age: ClassVar[bool] = True
    keeps_owners: ClassVar[bool] = True
    retains: ClassVar[bool] = True
    commits_atomically: ClassVar[bool] = True
    reports_appended: ClassVar[bool] = True
    keeps_progress: ClassVar[bool] = True
    readers_share: ClassVar[bool] = True
    takes_root: ClassVar[bool] = True
    signs: ClassVar[bool] = True

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> Self:
        """The cluster at `consumer.bootstrap.servers`. docs/kafka.md has the options.

        Raises:
            ConfigError: an option is missing, unknown or refused, or the package `confluent-kafka` is not installed.
        """
        if importlib.util.find_spec("confluent_kafka") is None:
            raise ConfigError(
                f"the system `{name}` needs the package `confluent-kafka`: run `pip install 'penstock-streams[kafka]'`"
            )
        return cls(name, parse_options(name, options))

    def admin(self) -> SystemAdmin:
        """The admin keeps its connections open."""
        from penstock.system.kafka.admin import KafkaAdmin

        return KafkaAdmin(self.options)

    def reader(self) -> SystemReader:
        """The reader keeps a consumer."""
        from penstock.system.kafka.reader import KafkaReader

        return KafkaReader(self.options)

    def writer(self, identity: WriterIdentity | None) -> SystemWriter:

        return KafkaWriter(self.options, identity)

    def sign(self, writer: WriterIdentity, *, takes_unsigned: bool) -> None:
        """They are in the topic of the name."""
        from penstock.system.kafka import fences

        fences.sign(replace(self.options, takes_unsigned=takes_unsigned), writer)


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
