"""`penstock stream tail`: messages for people, or as JSON lines."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated, Any

import orjson
import typer

from penstock.admin.stream.names import open_stream
from penstock.admin.stream.tail import Message, StreamTail
from penstock.api.intermediate import MessageType
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile
from penstock.cli.stream.options import StreamName
from penstock.documents import text_or_hex
from penstock.wording import printable, utc_text

_PLAIN_CONTROLS = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def tail(
    name: StreamName,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.", show_default=False)
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Begin with the oldest message instead of the last ones.")
    ] = False,
    count: Annotated[
        int | None,
        typer.Option(
            "-n",
            metavar="N",
            min=0,
            help="How many messages; by default 10, or all with --from-beginning.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new messages, until Ctrl-C.")] = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show the messages of a stream by their timestamps, those of each partition in their order.

    With --from-beginning and -n, the command ends after that many messages, even with --follow. Without
    --from-beginning, -n counts only messages that exist already. In an intermediate stream, values are shown without
    their first byte, and control messages with their kind: WATERMARK, END_OF_STREAM or DRAIN.
    """
    found = StreamTail(open_stream(name, config, assignments), partition, sys.stdout.flush)
    try:
        show = _json_line if as_json else _text_line
        typed = found.is_intermediate()
        for message in found.messages(from_beginning=from_beginning, count=count, follow=follow):
            sys.stdout.write(show(*_typed(message)) if typed else show(message))
    except KeyboardInterrupt:
        if not follow:
            raise
    finally:
        sys.stdout.flush()
        found.close()


def _typed(message: Message) -> tuple[Message, MessageType | None]:
    """A message of an intermediate stream without the first byte of its value, and what that byte says."""
    try:
        kind = MessageType((message.value or b"\xff")[0])
    except ValueError:
        return message, None
    return replace(message, value=(message.value or b"")[1:]), kind


def _text_line(message: Message, kind: MessageType | None = None) -> str:
    where = f"{message.partition}:{message.offset}"
    control = f"{kind.name} " if kind else ""  # a user's message is 0
    return f"{where}\t{utc_text(message.timestamp)}\t{_shown(message.key)}\t{control}{_shown(message.value)}\n"


def _shown(data: bytes | None) -> str:
    if data is None:
        return "-"
    text = printable(data)
    if text is None:
        return f"0x{data.hex()}"
    return "".join(_PLAIN_CONTROLS.get(char, char) for char in text)


def _json_line(message: Message, kind: MessageType | None = None) -> str:
    """`key` and `value` are text or null; what is no text stands as `keyHex`, `valueHex`. A message of an intermediate
    stream has its `type`."""
    fields: dict[str, Any] = {
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        **text_or_hex("key", message.key),
        **text_or_hex("value", message.value),
        **({} if kind is None else {"type": kind.name}),
    }
    return orjson.dumps(fields).decode() + "\n"
