"""Trailers of single attempts."""

from __future__ import annotations

import msgspec

from penstock.runtime.messages.packet import Packet, PacketKind


def trailer(
    source: tuple[int, int],
    packets: int = 0,
    messages: int = 0,
    *,
    token: str = "t",
    failed: bool = False,
    dest: int = 0,
    stage: int = 1,
) -> Packet:
    """The trailer of an attempt of `source` (stage, task) that sent this much to a task."""
    names = msgspec.msgpack.encode([(token, failed, [source[1]])])
    sent = msgspec.msgpack.encode({source[1]: (packets, messages)})
    return Packet(dest, stage, PacketKind.TRAILER, source[0], -1, "", -1, -1, 0, 0, names, sent)
