"""The system `kafka` by its configuration."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from penstock.errors import ConfigError
from penstock.system.base import System, SystemAdmin, SystemReader, SystemWriter, WriterIdentity
from penstock.system.kafka.options import KafkaOptions, parse_options

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
        from penstock.system.kafka.writer import KafkaWriter

        return KafkaWriter(self.options, identity)

    def sign(self, writer: WriterIdentity, *, takes_unsigned: bool) -> None:
        """They are in the topic of the name."""
        from penstock.system.kafka import fences

        fences.sign(replace(self.options, takes_unsigned=takes_unsigned), writer)
