"""Trailers: which attempts of a stage have ended their output, and how much each of them has sent to a task.

A trailer is for one task, and names every attempt whose output left in one stream. With a trailer for each pair of
tasks, a batch of 1,000 tasks would have a million of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import msgspec
from xxhash import xxh3_64_intdigest

from penstock.base.documents import decoder, decoding
from penstock.graph.topology import Topology
from penstock.runtime.messages.packet import Packet, PacketKind

Place: TypeAlias = tuple[int, int]
"""A stage and a task."""
Count: TypeAlias = tuple[int, int]
"""Data packets, and the messages in them."""

_Named: TypeAlias = list[tuple[str, bool, list[int]]]
"""A token, whether its attempts failed, and their tasks. The attempts of a stream usually share their token."""
_Counts: TypeAlias = dict[int, Count]
_MARKS = 1 << 64


class EndedAttempt(NamedTuple):
    """An attempt that has ended its output."""

    task: int
    token: str
    failed: bool
    """It failed in user code: its output must not be used."""
    sent: Mapping[Place, Count]


class Trailer(NamedTuple):
    """A trailer as its task reads it."""

    tokens: Mapping[Place, str]
    """The attempts that it names."""
    sent: Mapping[Place, Count]
    """The counts of each attempt that sent something to this task."""
    failed: bool
    """One of them failed."""
    mark: int
    """See `mark_of`."""


def mark_of(stage: int, attempts: Iterable[tuple[int, str]]) -> int:
    """A number of 64 bits for some attempts (task, token) of a stage, in any order. The marks of two groups that have
    none in common add up to the mark of both together: see `add_marks`."""
    return sum(xxh3_64_intdigest(f"{stage} {task} {token}".encode()) for task, token in attempts) % _MARKS


def add_marks(one: int, other: int) -> int:
    return (one + other) % _MARKS


def trailers(topology: Topology, stage: int, tasks: int, ended: Iterable[EndedAttempt]) -> Iterator[Packet]:
    """The trailers of these attempts of a stage, for every task that they may send to."""
    ended = list(ended)
    everyone = _encode(ended)
    counts: dict[Place, _Counts] = {}
    for each in ended:
        for place, count in each.sent.items():
            counts.setdefault(place, {})[each.task] = count
    for target in topology.targets_of(stage):
        if topology.is_shuffled(target):
            named = [(dest, everyone) for dest in range(tasks)]
        else:
            named = [(each.task, _encode([each])) for each in ended]
        for dest, names in named:
            sent = msgspec.msgpack.encode(counts.get((target, dest), {}))
            yield Packet(dest, target, PacketKind.TRAILER, stage, -1, "", -1, -1, 0, 0, names, sent)


def read_trailer(packet: Packet) -> Trailer:
    """Raises CorruptError if it is damaged."""
    stage = packet.source_stage
    tokens, failed, mark = _decode(stage, bytes(packet.payload or b""))
    with decoding("the counts of a trailer are damaged"):
        counts = decoder(_Counts).decode(packet.places or b"")
    return Trailer(tokens, {(stage, task): count for task, count in counts.items()}, failed, mark)


def _encode(ended: Iterable[EndedAttempt]) -> bytes:
    named: dict[tuple[str, bool], list[int]] = {}
    for each in ended:
        named.setdefault((each.token, each.failed), []).append(each.task)
    return msgspec.msgpack.encode([(*name, tasks) for name, tasks in named.items()])


@lru_cache(maxsize=64)  # the trailers of a lane name the same attempts, and tasks read them in turn
def _decode(stage: int, names: bytes) -> tuple[Mapping[Place, str], bool, int]:
    with decoding("the names in a trailer are damaged"):
        named = decoder(_Named).decode(names)
    tokens = {(stage, task): token for token, _, tasks in named for task in tasks}
    mark = mark_of(stage, ((task, token) for (_, task), token in tokens.items()))
    return tokens, any(failed for _, failed, _ in named), mark
