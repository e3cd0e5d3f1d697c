"""Names of streams and their partitions."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True, order=True)
class SystemStream:
    """A stream of a system. Written `system.stream`; the stream's name may contain dots, the system's not."""

    system: str
    stream: str

    def __str__(self) -> str:
        return f"{self.system}.{self.stream}"

    @classmethod
    def parse(cls, text: str) -> SystemStream:
        """Read `system.stream`; the first dot separates.

        Raises:
            ConfigError: there is no dot, or one of the two names is empty.
        """
        system, dot, stream = text.partition(".")
        if not (system and dot and stream):
            raise ConfigError(f"stream `{text}` is not of the form `system.stream`, for example `local.flights`")
        return cls(system, stream)


@dataclass(frozen=True, slots=True, order=True)
class SystemStreamPartition:
    """One partition of a stream: Samza's SSP. Written `system.stream.partition`; dots in the stream round-trip."""

    system: str
    stream: str
    partition: int

    @property
    def system_stream(self) -> SystemStream:
        """The stream this is a partition of."""
        return SystemStream(self.system, self.stream)

    def __str__(self) -> str:
        return f"{self.system}.{self.stream}.{self.partition}"

    @classmethod
    def parse(cls, text: str) -> SystemStreamPartition:
        """Read `system.stream.partition`: the first and the last dot separate.

        Raises:
            ConfigError: the text has another form.
        """
        head, _, partition = text.rpartition(".")
        if not (partition.isascii() and partition.isdigit()):
            raise ConfigError(f"`{text}` is not of the form `system.stream.partition`")
        stream = SystemStream.parse(head)
        return cls(stream.system, stream.stream, int(partition))
