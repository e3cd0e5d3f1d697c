"""Names of streams and their partitions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True, order=True)
class SystemStream:
    """A stream of a system, as Samza's SystemStream. Written `system.stream`; only the stream's name may have dots.

    Example:
        >>> stream = ps.SystemStream.parse("local.dep.flights")
        >>> stream.system, stream.stream, str(stream)
        ('local', 'dep.flights', 'local.dep.flights')
    """

    system: str
    stream: str

    def __str__(self) -> str:
        return f"{self.system}.{self.stream}"

    @classmethod
    def parse(cls, text: str) -> SystemStream:
        """Read `system.stream`. The first dot ends the system's name.

        Args:
            text: the written form.

        Raises:
            ConfigError: it is no text, there is no dot, or one of the two names is empty.
        """
        if not isinstance(text, str):
            raise ConfigError(f"a stream is named by a text of the form `system.stream`, not by {text!r}")
        system, dot, stream = text.partition(".")
        if not (system and dot and stream):
            raise ConfigError(f"stream `{text}` is not of the form `system.stream`, for example `local.flights`")
        return cls(system, stream)


@dataclass(frozen=True, slots=True, order=True)
class StreamPattern:
    """A regular expression for the names of a system's streams. Written `system.expression`; it matches whole names.

    Example:
        >>> from penstock.api.ssp import StreamPattern
        >>> pattern = StreamPattern.parse("kafka.orders-.*")
        >>> [pattern.matches(ps.SystemStream.parse(name)) for name in ("kafka.orders-eu", "kafka.old-orders-eu")]
        [True, False]
    """

    system: str
    expression: str

    def __str__(self) -> str:
        return f"{self.system}.{self.expression}"

    def matches(self, stream: SystemStream) -> bool:
        """True if the stream is of the system, and the expression matches its name."""
        return stream.system == self.system and re.fullmatch(self.expression, stream.stream) is not None

    @classmethod
    def parse(cls, text: str) -> StreamPattern:
        """Read `system.expression`. The first dot ends the system's name.

        Args:
            text: the written form.

        Raises:
            ConfigError: the text has another form, or the rest is no regular expression.
        """
        both = SystemStream.parse(text)
        try:
            re.compile(both.stream)
        except re.error as error:
            raise ConfigError(f"`{both.stream}` in the pattern `{text}` is no regular expression: {error}") from error
        return cls(both.system, both.stream)


@dataclass(frozen=True, slots=True, order=True)
class SystemStreamPartition:
    """A partition of a stream, as Samza's SystemStreamPartition (SSP). Written `system.stream.partition`.

    Example:
        >>> ssp = ps.SystemStreamPartition.parse("local.dep.flights.3")
        >>> ssp.stream, ssp.partition, str(ssp.system_stream)
        ('dep.flights', 3, 'local.dep.flights')
    """

    system: str
    stream: str
    partition: int

    @property
    def system_stream(self) -> SystemStream:
        """The stream that has this partition."""
        return SystemStream(self.system, self.stream)

    def __str__(self) -> str:
        return f"{self.system}.{self.stream}.{self.partition}"

    @classmethod
    def parse(cls, text: str) -> SystemStreamPartition:
        """Read `system.stream.partition`. The first dot ends the system's name, the last one the stream's.

        Args:
            text: the written form.

        Raises:
            ConfigError: the text has another form.
        """
        head, _, partition = text.rpartition(".")
        if not (partition.isascii() and partition.isdigit() and len(partition) < 20):
            raise ConfigError(f"`{text}` is not of the form `system.stream.partition`")
        stream = SystemStream.parse(head)
        return cls(stream.system, stream.stream, int(partition))
