"""`penstock stream tail`: messages for people, or as JSON lines."""

from __future__ import annotations

import heapq
import sys
import time
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import orjson
import typer

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile
from penstock.cli.stream.names import StreamName, no_stream, open_stream
from penstock.errors import NotFoundError
from penstock.system.base import OffsetRange, PartitionOffsets, RawMessage, System, SystemReader
from penstock.wording import counted, utc_text

_LAST = 10
_CHUNK = 1000
_POLL_S = 0.2
_PLAIN_CONTROLS = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


@dataclass(frozen=True, slots=True)
class Message:
    """A message and where it lies."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def tail(
    name: StreamName,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Only this partition.", show_default=False)
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="From the oldest message on, instead of the last ones.")
    ] = False,
    count: Annotated[
        int | None,
        typer.Option(
            "-n", min=0, help="How many messages; 10 unless they are shown from the beginning.", show_default=False
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what arrives, until Ctrl-C.")] = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show messages, by their timestamps, each partition in its order.

    With --from-beginning and -n it ends after so many messages, also if it follows; otherwise -n is about what is
    there already.
    """
    system, stream = open_stream(name, config, assignments)
    found = StreamTail(system, stream, partition)
    try:
        show = _json_line if as_json else _text_line
        for message in found.messages(from_beginning=from_beginning, count=count, follow=follow):
            sys.stdout.write(show(message))
    except KeyboardInterrupt:
        if not follow:
            raise
    finally:
        sys.stdout.flush()
        found.close()


class StreamTail:
    """Reads the end of a stream, or all of it, and what is appended meanwhile. Used by one thread."""

    def __init__(self, system: System, stream: SystemStream, partition: int | None) -> None:
        self._stream = stream
        self._partition = partition
        self._admin = system.admin()
        self._reader: SystemReader = system.reader()
        self._dense = system.dense_offsets

    def messages(self, *, from_beginning: bool, count: int | None, follow: bool) -> Iterator[Message]:
        """The messages that are there, and with `follow` those that come, without an end.

        Raises:
            NotFoundError: there is no such stream or partition.
        """
        ends = self._ends()
        if from_beginning:
            begun = self._from({number: end.oldest for number, end in ends.items()}, ends, follow=follow)
            yield from islice(begun, count)
            return
        wanted = _LAST if count is None else count
        starts = {
            number: max(end.oldest, end.upcoming - wanted) if self._dense else end.oldest
            for number, end in ends.items()
        }
        yield from deque(self._merged(starts, ends), maxlen=wanted)
        if follow:
            yield from self._from({number: end.upcoming for number, end in ends.items()}, ends, follow=True)

    def close(self) -> None:
        """Close what is open."""
        self._reader.close()
        self._admin.close()

    def _from(
        self, starts: Mapping[int, int], ends: Mapping[int, PartitionOffsets], *, follow: bool
    ) -> Iterator[Message]:
        yield from self._merged(starts, ends)
        while follow:
            sys.stdout.flush()
            starts, ends = {number: end.upcoming for number, end in ends.items()}, self._ends()
            if all(ends[number].upcoming == start for number, start in starts.items()):
                time.sleep(_POLL_S)
            else:
                yield from self._merged(starts, ends)

    def _ends(self) -> dict[int, PartitionOffsets]:
        try:
            ends = self._admin.offsets(self._stream.stream)
        except NotFoundError:
            raise no_stream(self._stream) from None
        if self._partition is None:
            return ends
        if self._partition not in ends:
            raise NotFoundError(
                f"stream `{self._stream}` has no partition {self._partition}: it has "
                f"{counted(len(ends), 'partition')}, numbered from 0"
            )
        return {self._partition: ends[self._partition]}

    def _merged(self, starts: Mapping[int, int], ends: Mapping[int, PartitionOffsets]) -> Iterator[Message]:
        parts = (self._read(number, start, ends[number].upcoming) for number, start in starts.items())
        return heapq.merge(*parts, key=lambda message: message.timestamp)

    def _read(self, partition: int, start: int, end: int) -> Iterator[Message]:
        ssp = SystemStreamPartition(self._stream.system, self._stream.stream, partition)
        return _messages(partition, self._reader.read(OffsetRange(ssp, start, end), _CHUNK))


def _messages(partition: int, chunks: Iterable[list[RawMessage]]) -> Iterator[Message]:
    return (Message(partition, *raw) for chunk in chunks for raw in chunk)


def printable(data: bytes) -> str | None:
    """The data as UTF-8 text, or None if it is none or holds control characters other than white space."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if text.isprintable() or not any(
        unicodedata.category(char) == "Cc" and char not in _PLAIN_CONTROLS for char in text
    ):
        return text
    return None


def _text_line(message: Message) -> str:
    where = f"{message.partition}:{message.offset}"
    return f"{where}\t{utc_text(message.timestamp)}\t{_shown(message.key)}\t{_shown(message.value)}\n"


def _shown(data: bytes | None) -> str:
    if data is None:
        return "-"
    text = printable(data)
    if text is None:
        return f"0x{data.hex()}"
    return "".join(_PLAIN_CONTROLS.get(char, char) for char in text)


def _json_line(message: Message) -> str:
    """`key` and `value` are text or null; what is no text stands as `keyHex`, `valueHex`."""
    fields: dict[str, Any] = {
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        **_field("key", message.key),
        **_field("value", message.value),
    }
    return orjson.dumps(fields).decode() + "\n"


def _field(name: str, data: bytes | None) -> dict[str, str | None]:
    text = None if data is None else printable(data)
    return {name: text} if text is not None or data is None else {f"{name}Hex": data.hex()}
