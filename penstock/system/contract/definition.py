"""A system by its configuration, and its abilities; the names of streams, and the options of a system."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

from penstock.errors import ConfigError, IncompatibleError
from penstock.system.contract.admin import SystemAdmin
from penstock.system.contract.messages import PartitionOffsets, SystemReader
from penstock.system.contract.writer import SystemWriter, WriterIdentity


class System(ABC):
    """A system by its configuration (plain data, picklable); makes admins, readers and writers.

    docs/systems.md shows a whole one in a single file. The flags declare the abilities that some systems lack.

    Example:
        >>> from penstock.system.memory import MemorySystem
        >>> system = MemorySystem("m")
        >>> [system.name, system.dense_offsets, system.fences]
        ['m', True, True]
    """

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
    """True if offsets have no gaps, so that a range holds as many messages as it is long. If False, the number of
    messages left to read is not known; offsets are shown instead."""
    has_keys: ClassVar[bool] = True
    """False if no message has a key, like the rows of data files. A start then refuses operators that work by key and
    have no `partition_by` before them."""
    lag_unit: ClassVar[str] = "message"
    """The unit of `lag`, in the singular."""
    fences: ClassVar[bool] = False
    """True if a larger epoch of a writer's name refuses the smaller ones (`SystemAdmin.fence`). If False, a driver that
    lost its job to another may still append to outputs."""
    compacts_on_request: ClassVar[bool] = False
    """True if a record goes only by `SystemAdmin.compact`. A system that drops records in its own time, as a log
    cleaner does, keeps a range exactly readable up to an offset only if `compacts_by_age` is True."""
    compacts_by_age: ClassVar[bool] = False
    """True if a stream of `SystemAdmin.create_compacted` keeps the newest record of every key, and can tell how far it
    may have been compacted (`SystemAdmin.compaction`)."""
    keeps_owners: ClassVar[bool] = False
    """True if a stream can name its only writer (`SystemAdmin.own`). A system that compacts on request must."""
    retains: ClassVar[bool] = False
    """True if a stream can delete its oldest messages (`SystemAdmin.set_retention`)."""
    ends_streams: ClassVar[bool] = False
    """True if a user can declare that a stream has ended (`SystemAdmin.end_stream`). A system where this is False may
    declare it by itself (`PartitionOffsets.ended`)."""
    commits_atomically: ClassVar[bool] = False
    """True if a writer's commit is one step for all partitions (`SystemWriter.begin`), not one for each."""
    reports_appended: ClassVar[bool] = False
    """True if a writer's transaction reports the offsets of its records (`WriterTransaction.appended`). If False, the
    system cannot hold durable intermediate streams."""
    keeps_progress: ClassVar[bool] = False
    """True if a writer can mark its progress in the same atomic step as the messages it publishes
    (`WriterTransaction.mark`). If False, no output of the system can be exactly once."""
    carries_headers: ClassVar[bool] = False
    """True if messages keep their headers. If False, writers get records without headers."""
    shows_positions: ClassVar[bool] = False
    """True if the system's own tools can show how far a job has read (`SystemAdmin.show_positions`)."""
    readers_seek: ClassVar[bool] = False
    """True if a used reader reads any range as well as a new one. If False, as for a consumer that fetches ahead, a
    reader is used again only for a range of its partition that begins behind the last message it read."""

    readers_share: ClassVar[bool] = False
    """True if one reader reads many partitions as well as a reader for each of them does. A process then keeps one for
    all partitions, and names the coming ranges (`SystemReader.expect`)."""

    takes_root: ClassVar[bool] = False
    """True if `configured` also gets the options `root`, `root.key` and `root.key.previous`: `job.root` and the keys
    that sign its objects. The configuration of the system cannot have them."""
    signs: ClassVar[bool] = False
    """True if the system keeps signed records under the names of writers (`sign`)."""

    def messages_in(self, ends: Iterable[PartitionOffsets]) -> int | None:
        """The number of messages between these ends; None if offsets have gaps, and only reading would tell.

        Args:
            ends: those of some partitions.
        """
        return sum(end.upcoming - end.oldest for end in ends) if self.dense_offsets else None

    def lag(self, position: int, upcoming: int) -> int:
        """The distance of a reader from the end of a partition, in `lag_unit`. If offsets have gaps, it is an upper
        bound.

        Args:
            position: the offset that is read next.
            upcoming: the offset behind the newest message.
        """
        return max(0, upcoming - position)

    def serving(self, stream: str) -> System:
        """The system whose flags say how a stream is read: this one, unless it stands around others.

        Args:
            stream: its name in this system.
        """
        return self

    @property
    def signed_objects(self) -> str | None:
        """The URL of the store whose objects the system signs with the keys of the root; None if there is none."""
        return None

    def sign(self, writer: WriterIdentity, *, takes_unsigned: bool) -> None:
        """Sign the records that the system keeps under the writer's name with the current key of the root, and fence
        older epochs. Idempotent.

        Args:
            writer: a name that a stopped job writes under, and the epoch of a claim of its log.
            takes_unsigned: trust records without a signature, and sign them too.

        Raises:
            IncompatibleError: the system signs no records (`System.signs`).
        """
        raise IncompatibleError(f"the system `{self.name}` keeps no signed records")

    @abstractmethod
    def admin(self) -> SystemAdmin:
        """An admin. It is used by several threads, and closed by its user."""

    @abstractmethod
    def reader(self) -> SystemReader:
        """A reader of ranges. It is used by one thread at a time, kept for many ranges, and closed by its user."""

    @abstractmethod
    def writer(self, identity: WriterIdentity | None) -> SystemWriter:
        """A writer. It is used by one thread, and closed by its user.

        Args:
            identity: the writer's name and epoch; None appends unfenced, as a person does who publishes by hand.
        """


QUERY_SYSTEM = "spark"
"""The name of the system whose streams nobody reads or writes: the batches of a streaming query around the job, which
hands over the rows of the inputs and takes those of the outputs."""
_STREAM_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,248}")


def is_stream_name(text: str) -> bool:
    """True if the text can be a stream's name.

    Example:
        >>> is_stream_name("flights.by-origin"), is_stream_name("flights/by/origin")
        (True, False)
    """
    return _STREAM_NAME.fullmatch(text) is not None


def check_stream_name(stream: str) -> None:
    """Check that a name can be a folder here and a topic in Kafka.

    Raises:
        ConfigError: naming the stream and the rule.

    Example:
        >>> check_stream_name("flights.by-origin")
    """
    if not is_stream_name(stream):
        raise ConfigError(
            f"`{stream}` cannot be a stream's name: it is 1 to 249 of the characters a-z A-Z 0-9 . _ - "
            "and does not start with a dot"
        )


def check_options(name: str, options: Mapping[str, str], known: Iterable[str]) -> None:
    """Refuse options that a system does not know; for `System.configured`.

    Args:
        name: the system's name in the configuration.
        options: the configured ones, as `System.configured` gets them.
        known: the existing ones.

    Raises:
        ConfigError: names every unknown option, and all known ones.

    Example:
        >>> check_options("archive", {"folder": "/srv"}, ["folder"])
    """
    known = sorted(known)
    unknown = [f"`systems.{name}.{option}`" for option in sorted(options) if option not in known]
    if unknown:
        there = ", ".join(f"`{option}`" for option in known) or "none"
        raise ConfigError(f"unknown options: {', '.join(unknown)}; the options of the system `{name}` are: {there}")


def positive_option(name: str, options: Mapping[str, str], option: str) -> int | None:
    """The integer that an option of a system gives, at least 1; None if it is left out. Raises ConfigError.

    Example:
        >>> positive_option("archive", {"partitions": "8"}, "partitions")
        8
    """
    text = options.get(option)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise ConfigError(f"`systems.{name}.{option}` = `{text}` is not a number from 1")
    return int(text)


def absolute_place(place: str) -> str:
    """A URL or path for processes that have another working directory.

    Example:
        >>> absolute_place("s3://bucket/tables"), absolute_place("/srv/tables")
        ('s3://bucket/tables', '/srv/tables')
    """
    return place if "://" in place else str(Path(place).expanduser().absolute())
