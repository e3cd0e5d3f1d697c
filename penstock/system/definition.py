"""A system by its configuration, and what it can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

from penstock.errors import ConfigError
from penstock.system.admin import SystemAdmin
from penstock.system.messages import PartitionOffsets
from penstock.system.reader import SystemReader
from penstock.system.writer import SystemWriter, WriterIdentity


class System(ABC):
    """A system by its configuration (plain data, picklable); makes admins, readers and writers."""

    name: str

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> System:
        """The system that `systems.<name>.*` describes, for which this class is `systems.<name>.samza.factory`.

        Args:
            name: the system's name in the configuration; the new system must have it.
            options: every other key of the system, without `systems.<name>.`. `check_options` refuses unknown ones.

        Raises:
            ConfigError: an option is missing, unknown or wrong. Nothing is opened here.
        """
        raise ConfigError(f"{cls.__module__}:{cls.__qualname__} cannot be configured: it has no method `configured`")

    dense_offsets: ClassVar[bool] = False
    """Whether offsets have no gaps, so that a range holds as many messages as it is long. Where it is False, how many
    messages are left to read is not known; offsets are shown instead."""
    fences: ClassVar[bool] = False
    """Whether a larger epoch of a writer's name refuses the smaller ones (`SystemAdmin.fence`). Where it is False, a
    driver that lost its job to another may still append to outputs."""
    compacts_on_request: ClassVar[bool] = False
    """Whether a record goes only by `SystemAdmin.compact`. A system that drops records in its own time, as a log
    cleaner does, cannot hold what must be readable up to an offset exactly."""
    retains: ClassVar[bool] = False
    """Whether a stream can delete its oldest messages (`SystemAdmin.set_retention`)."""
    commits_atomically: ClassVar[bool] = False
    """Whether a writer's commit is one step for all partitions (`SystemWriter.begin`), not one for each."""
    readers_seek: ClassVar[bool] = False
    """Whether a reader that was used reads any range as well as a new one. Where it is False, as for a consumer that
    fetches ahead, a reader is used again only for the range of its partition that begins behind what it read last."""

    def messages_in(self, ends: Iterable[PartitionOffsets]) -> int | None:
        """How many messages are between these ends; None where offsets have gaps, and only reading would tell."""
        return sum(end.upcoming - end.oldest for end in ends) if self.dense_offsets else None

    @abstractmethod
    def admin(self) -> SystemAdmin: ...

    @abstractmethod
    def reader(self) -> SystemReader: ...

    @abstractmethod
    def writer(self, identity: WriterIdentity | None) -> SystemWriter:
        """A writer; without an identity it appends unfenced (a person publishing by hand)."""
