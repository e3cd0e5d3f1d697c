"""The packets that come to an attempt: in sequence from each source, and complete once every trailer matches."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import RetryableError
from penstock.runtime.messages.packet import Kind, Packet


class DiscardedAttemptError(RetryableError):
    """The attempt's input was incomplete or came from two attempts. It is dropped; Spark or the run loop tries
    again."""


class Sources:
    """The packets that an attempt has received. Puts those of each source in sequence, and checks the trailers."""

    def __init__(self, expected: frozenset[tuple[int, int]]) -> None:
        self._expected = expected
        self._tokens: dict[tuple[int, int], str] = {}
        self._next: dict[tuple[int, int], int] = {}
        self._waiting: dict[tuple[int, int], dict[int, Packet]] = {}
        self._messages: dict[tuple[int, int], int] = {}
        self._trailers: dict[tuple[int, int], Packet] = {}
        self.failed = False

    def accept(self, packet: Packet) -> Iterator[Packet]:
        """Take a packet; yields the data packets that are next in their source's sequence."""
        source = (packet.source_stage, packet.source_task)
        if source not in self._expected:
            raise DiscardedAttemptError(f"rows came from {_name(source)}, which does not send here")
        token = self._tokens.setdefault(source, packet.token)
        if token != packet.token:
            raise DiscardedAttemptError(f"rows of two attempts of {_name(source)} came: {token} and {packet.token}")
        if packet.kind != Kind.DATA:
            if source in self._trailers:
                raise DiscardedAttemptError(f"a second trailer came from {_name(source)}")
            self._trailers[source] = packet
            self.failed = self.failed or packet.kind == Kind.FAILED_TRAILER
            return
        waiting = self._waiting.setdefault(source, {})
        if packet.seq in waiting or packet.seq < self._next.get(source, 0):
            raise DiscardedAttemptError(f"packet {packet.seq} came twice from {_name(source)}")
        waiting[packet.seq] = packet
        while (ready := waiting.pop(self._next.get(source, 0), None)) is not None:
            self._next[source] = ready.seq + 1
            self._messages[source] = self._messages.get(source, 0) + ready.messages
            yield ready

    def check_complete(self) -> None:
        """Raise DiscardedAttemptError unless everything from every source has come."""
        missing = self._expected - self._trailers.keys()
        if missing:
            raise DiscardedAttemptError(
                f"the rows ended without the trailer of {', '.join(_name(s) for s in sorted(missing))}"
            )
        if self.failed:
            return
        for source, trailer in self._trailers.items():
            got = (self._next.get(source, 0), self._messages.get(source, 0))
            if self._waiting.get(source) or got != (trailer.seq, trailer.messages):
                raise DiscardedAttemptError(
                    f"{_name(source)} sent {trailer.seq} packets with {trailer.messages} messages, but "
                    f"{got[0]} packets with {got[1]} messages came"
                )

    def tokens(self) -> dict[int, dict[int, str]]:
        """Source stage -> source task -> token."""
        read: dict[int, dict[int, str]] = {}
        for (stage, task), token in self._tokens.items():
            read.setdefault(stage, {})[task] = token
        return read


def _name(source: tuple[int, int]) -> str:
    return f"stage {source[0]} task {source[1]}"
