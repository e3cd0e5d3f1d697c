"""A message on its way into a task (Samza's IncomingMessageEnvelope)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol

from penstock.api.messages.headers import Headers
from penstock.api.ssp import SystemStreamPartition

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers know it: a type variable with a default is Python 3.13's

    V = TypeVar("V", default=Any)
else:
    from typing import TypeVar

    V = TypeVar("V")


class MessageOrigins(Protocol):
    """The origins of messages, by row."""

    @property
    def timestamps(self) -> Sequence[int]:
        """Epoch milliseconds."""

    @property
    def offsets(self) -> Sequence[int]:
        """Offsets in their partitions."""

    def ssp(self, row: int) -> SystemStreamPartition: ...

    def headers(self, row: int) -> Headers: ...


class IncomingMessageEnvelope(NamedTuple, Generic[V]):
    """A message on its way into a task, as Samza's IncomingMessageEnvelope.

    `key` and `value` are decoded objects or None. `ssp`, `offset` and `timestamp` are those of the input message that
    this message is, or from which earlier operators made it. `timestamp` is in epoch milliseconds; it is the event time
    if the input has a function for it. `headers` are those of the input message, unless a task has set others. Only the
    runtime makes envelopes. They stay valid after the call.

    For type checkers, `IncomingMessageEnvelope[Trip]` has values of the type Trip.

    Example:
        >>> app = ps.StreamApplication("origins")
        >>> origins = app.input("local.trips").map(lambda m: [str(m.ssp), m.offset, m.timestamp], envelope=True)
        >>> _ = origins.send_to(app.output("local.origins"))
        >>> runner = TestRunner(app).input("local.trips", ["a", "b"], partition=1, timestamp=700).run()
        >>> [message.value for message in runner.output("local.origins")]
        [['local.trips.1', 0, 700], ['local.trips.1', 1, 700]]
    """

    key: Any
    value: V
    origins: MessageOrigins
    row: int

    @property
    def ssp(self) -> SystemStreamPartition:
        """The partition of the input from which the message comes."""
        return self.origins.ssp(self.row)

    @property
    def offset(self) -> int:
        """The offset of the input message in its partition."""
        return self.origins.offsets[self.row]

    @property
    def timestamp(self) -> int:
        """The timestamp of the input message, in epoch milliseconds."""
        return self.origins.timestamps[self.row]

    @property
    def headers(self) -> Headers:
        """The headers, pairs of name and value in order; empty if the message has none."""
        return self.origins.headers(self.row)

    def header(self, name: str) -> bytes | None:
        """The value of the last header of this name; None if there is none, or its value is null.

        Args:
            name: the header's name.

        Example:
            >>> app = ps.StreamApplication("tenants")
            >>> tenants = app.input("local.trips").map(lambda m: m.header("tenant").decode(), envelope=True)
            >>> _ = tenants.send_to(app.output("local.tenants"))
            >>> runner = TestRunner(app).input("local.trips", ["a"], headers={"tenant": "north"}).run()
            >>> [(message.value, message.headers) for message in runner.output("local.tenants")]
            [('north', (('tenant', b'north'),))]
        """
        return next((value for own, value in reversed(self.headers) if own == name), None)

    def __repr__(self) -> str:
        return (
            f"IncomingMessageEnvelope(ssp={self.ssp}, offset={self.offset}, key={self.key!r}, value={self.value!r}, "
            f"timestamp={self.timestamp})"
        )
