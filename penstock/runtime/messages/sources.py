"""The packets that come to an attempt: in sequence from each source, and complete once the trailers match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.errors import RetryableError
from penstock.runtime.messages.packet import Packet, PacketKind
from penstock.runtime.messages.trailers import Count, Place, add_marks, read_trailer


class DiscardedAttemptError(RetryableError):
    """The attempt's input was incomplete or came from two attempts. It is dropped; Spark or the run loop tries
    again."""


class Sources:
    """The packets that an attempt has received. Puts those of each source in sequence, and checks the trailers."""

    def __init__(self, expected: frozenset[Place]) -> None:
        self._expected = expected
        self._tokens: dict[Place, str] = {}
        self._next: dict[Place, int] = {}
        self._waiting: dict[Place, dict[int, Packet]] = {}
        self._messages: dict[Place, int] = {}
        self._ended: set[Place] = set()
        """The sources that a trailer has named."""
        self._sent: dict[Place, Count] = {}
        """As the trailers say."""
        self._marks: dict[int, int] = {}
        self.failed = False

    def accept(self, packet: Packet) -> Iterator[Packet]:
        """Take a packet; yields the data packets that are next in their source's sequence."""
        if packet.kind == PacketKind.TRAILER:
            self._end(packet)
            return
        source = (packet.source_stage, packet.source_task)
        if source not in self._expected:
            raise DiscardedAttemptError(f"rows came from {_name(source)}, which does not send here")
        self._check_token(source, self._tokens.setdefault(source, packet.token), packet.token)
        waiting = self._waiting.setdefault(source, {})
        if packet.seq in waiting or packet.seq < self._next.get(source, 0):
            raise DiscardedAttemptError(f"packet {packet.seq} came twice from {_name(source)}")
        waiting[packet.seq] = packet
        while (ready := waiting.pop(self._next.get(source, 0), None)) is not None:
            self._next[source] = ready.seq + 1
            self._messages[source] = self._messages.get(source, 0) + ready.messages
            yield ready

    def _end(self, packet: Packet) -> None:
        trailer = read_trailer(packet)
        sources = trailer.tokens.keys()
        if foreign := sources - self._expected:
            raise DiscardedAttemptError(f"a trailer came from {_name(min(foreign))}, which does not send here")
        if twice := sources & self._ended:
            raise DiscardedAttemptError(f"a second trailer came from {_name(min(twice))}")
        for source in sources & self._tokens.keys():
            self._check_token(source, self._tokens[source], trailer.tokens[source])
        self._tokens.update(trailer.tokens)
        self._ended.update(sources)
        self._sent.update(trailer.sent)
        stage = packet.source_stage
        self._marks[stage] = add_marks(self._marks.get(stage, 0), trailer.mark)
        self.failed = self.failed or trailer.failed

    @staticmethod
    def _check_token(source: Place, known: str, token: str) -> None:
        if known != token:
            raise DiscardedAttemptError(f"rows of two attempts of {_name(source)} came: {known} and {token}")

    def check_complete(self) -> None:
        """Raise DiscardedAttemptError unless everything from every source has come."""
        missing = self._expected - self._ended
        if missing:
            raise DiscardedAttemptError(
                f"the rows ended without the trailer of {', '.join(_name(s) for s in sorted(missing))}"
            )
        if self.failed:
            return
        for source in self._sent.keys() | self._waiting.keys():
            sent = self._sent.get(source, (0, 0))
            got = (self._next.get(source, 0), self._messages.get(source, 0))
            if self._waiting.get(source) or got != sent:
                raise DiscardedAttemptError(
                    f"{_name(source)} sent {sent[0]} packets with {sent[1]} messages, but "
                    f"{got[0]} packets with {got[1]} messages came"
                )

    def marks(self) -> Mapping[int, int]:
        """By source stage, the mark of the attempts that ended (`mark_of`)."""
        return self._marks


def _name(source: Place) -> str:
    return f"stage {source[0]} task {source[1]}"
