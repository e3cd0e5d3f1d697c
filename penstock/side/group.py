"""Fills stores that share partitions: catches them up, follows, and fills them again if messages are gone.

All stores of a group are at the same offset of a partition whenever views of them are taken: a piece of a partition
is written to all of them under one lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK, may_pass
from penstock.base.wording import counted
from penstock.errors import IncompatibleError
from penstock.side.engine import SideEngine, SidePositions
from penstock.side.entries import MessageFailedError, SideEntries, SidePart
from penstock.side.folders import OpenedSide, SideReuse
from penstock.side.replica import GoneError, SideHomes, SideReplica, SideSources, SideStreamEnds
from penstock.system.base import RawMessage

logger = logging.getLogger(__name__)
GATHER_BYTES = 16 << 20
"""Bytes gathered in memory before they are written as one sorted file. Much of it fits into the CPU's caches, which
makes a row a fifth cheaper than 64 MB do; less makes too many files."""
READ_AT_ONCE = 4096
"""Messages read at once while a store is caught up."""
WRITE_AT_ONCE = 500
"""Messages written at once while attempts read: RocksDB's binding lets no other Python thread run meanwhile."""
FOLLOW_AT_MOST = 20_000
"""Messages of a partition that are followed before the next partition's turn."""
_CHECK_EVERY = 512
_RETRY_SECONDS = 0.5


class FollowResult(IntEnum):
    """The result of a pass."""

    NOTHING = 0
    ALL = 1
    """Everything new has been written."""
    A_PART = 2


@dataclass(slots=True)
class FillCounts:
    """Counters of one part since its group was made."""

    messages: int = 0
    flushes: int = 0
    rebuilds: int = 0


@dataclass(frozen=True, slots=True)
class SideGroupContext:
    """The objects that the groups of a container share."""

    sources: SideSources
    lock: threading.Lock
    """Held while views are taken, and while a piece is written."""
    stop: threading.Event
    homes: SideHomes
    entries: Callable[[SidePart, SideEngine], SideEntries]
    retire: Callable[[OpenedSide], None]
    """Called under the lock with a replaced store. Views of it may be open."""


class SideGroup:
    """The stores of one group. Filled by one thread; others read `replicas` under the lock."""

    def __init__(
        self, parts: Sequence[SidePart], partitions: Mapping[SystemStream, int], around: SideGroupContext
    ) -> None:
        """`partitions`: the streams' numbers of partitions when the parts were made."""
        self.parts = tuple(parts)
        self._partitions = partitions
        self.name = ", ".join(dict.fromkeys(f"`{part.spec.name}`" for part in parts))
        self.counts = {part: FillCounts() for part in parts}
        self._around = around
        self._ssps = tuple(dict.fromkeys(ssp for part in parts for ssp in part.ssps))
        self._streams = tuple(dict.fromkeys(ssp.system_stream for ssp in self._ssps))
        self.replicas: Mapping[SidePart, SideReplica] = {}
        """The replicas that attempts read; empty until everything is caught up."""
        self.filling: Mapping[SidePart, SideReplica] = {}
        self.began: dict[tuple[SidePart, SystemStreamPartition], int] = {}
        """The offsets at which catching up began."""
        self.ends = SideStreamEnds()
        """The ends to catch up to, or those that were seen last."""
        self._identities: Mapping[SystemStream, str | None] = {}
        """The identities of the streams that `replicas` were made from."""

    # Catching up.

    def aim(self, check: Callable[[], None]) -> None:
        """Take the streams' present ends as the goal of `bootstrap`. Raises as `bootstrap`."""
        self.ends = self._patiently(self.look, check)

    def bootstrap(self, check: Callable[[], None]) -> None:
        """Catch all stores up to the ends that `aim` took.

        Args:
            check: called again and again; it raises when this must end.

        Raises:
            MessageFailedError: a message does not decode, or the processor raised.
            NotFoundError: there is no such stream, or no such partition.
        """
        opened: dict[SidePart, SideReplica] = {}
        try:
            for part in self.parts:
                opened[part] = self._open(part)
            self._catch_up(opened, check)
        except BaseException:
            _close(opened)
            raise
        self._identities = dict(self.ends.identities)
        with self._around.lock:
            self.replicas = opened

    def rebuild(self, why: str, check: Callable[[], None]) -> None:
        """Fill all stores again from the beginning, beside those that attempts read meanwhile. Raises as
        `bootstrap`."""
        logger.warning("store %s is filled again from the beginning: %s", self.name, why)
        self._count_rebuilds(self.parts)
        for replica in self.replicas.values():
            replica.opened.give_up()
        self.ends = self._patiently(self.look, check)
        made: dict[SidePart, SideReplica] = {}
        try:
            for part in self.parts:
                made[part] = self._over(part, self._around.homes.beside(part), new=True)
            self._catch_up(made, check)
        except BaseException:
            _close(made)
            raise
        self._identities = dict(self.ends.identities)
        with self._around.lock:
            old, self.replicas = self.replicas, made
            for replica in old.values():
                self._around.retire(replica.opened)

    def look(self, *, whole: bool = True) -> SideStreamEnds:
        """The present ends of all partitions; `whole`: also the offsets from which they are complete. Raises
        NotFoundError if a stream does not exist, IncompatibleError if its number of partitions has changed."""
        found, sources = SideStreamEnds(), self._around.sources
        for stream in self._streams:
            found.identities[stream] = sources.identity(stream)
            ends, complete_from = sources.ends(stream), sources.complete_from(stream) if whole else {}
            if len(ends) != self._partitions[stream]:
                raise IncompatibleError(
                    f"the side input `{stream}` of store {self.name} has {counted(len(ends), 'partition')}; it had "
                    f"{self._partitions[stream]} when the containers began to read it. Start the job again"
                )
            for ssp in self._ssps:
                if ssp.system_stream == stream:
                    found.offsets[ssp] = ends[ssp.partition]
                    found.complete_from[ssp] = complete_from.get(ssp.partition, 0)
            if whole and (kept_ms := sources.deletions_kept_ms(stream)) is not None:
                found.deletions_kept_ms[stream] = kept_ms
        return found

    def _open(self, part: SidePart) -> SideReplica:
        opened = self._around.homes.open(part, self.ends)
        return self._over(part, opened, new=not isinstance(opened.decision, SideReuse))

    def _over(self, part: SidePart, opened: OpenedSide, *, new: bool) -> SideReplica:
        """A replica over an engine. If `new`, the engine is empty, and begins at the oldest messages."""
        ends, positions = self.ends, opened.engine.positions
        if new:
            positions = SidePositions(
                {ssp: ends.offsets[ssp].oldest for ssp in part.ssps},
                {each.stream: ends.identities[each.stream] for each in part.side.streams},
                self._around.homes.fingerprint(part),
                updated_ms=SYSTEM_CLOCK.now_ms(),
            )
        return SideReplica(part, opened, self._around.entries(part, opened.engine), positions, new=new)

    def _catch_up(self, replicas: dict[SidePart, SideReplica], check: Callable[[], None]) -> None:
        """Read until all replicas are at the ends, and make them survive the process."""
        self.filling = replicas
        self.began = {(part, ssp): offset for part, each in replicas.items() for ssp, offset in each.reached.items()}
        try:
            while True:
                for part in self.parts:
                    self._fill(replicas, part, check)
                if self._is_caught_up(replicas) and not self._changed(replicas, self._patiently(self.look, check)):
                    break
            for replica in replicas.values():
                replica.load(complete=True)
                replica.flush()
        finally:
            self.filling = {}

    def _is_caught_up(self, replicas: Mapping[SidePart, SideReplica]) -> bool:
        return all(r.reached[ssp] >= self.ends.upcoming(ssp) for r in replicas.values() for ssp in r.part.ssps)

    def _changed(self, replicas: dict[SidePart, SideReplica], now: SideStreamEnds) -> bool:
        """True if a stream was created again meanwhile: everything read from it is of no use then, and is read
        again."""
        changed = [stream for stream in self._streams if now.identities[stream] != self.ends.identities[stream]]
        for stream in changed:
            self._take_ends(now, [ssp for ssp in self._ssps if ssp.system_stream == stream])
            for part in self.parts:
                if any(each.stream == stream for each in part.side.streams):
                    self._begin_again(replicas, part, f"the stream `{stream}` was deleted and created again")
        return bool(changed)

    def _fill(self, replicas: dict[SidePart, SideReplica], part: SidePart, check: Callable[[], None]) -> None:
        for ssp in part.ssps:
            while (replica := replicas[part]).reached[ssp] < self.ends.upcoming(ssp):
                check()
                try:
                    self._read(replica, ssp, check)
                except GoneError as error:
                    now = self._patiently(self.look, check)
                    if not self._changed(replicas, now):
                        self._take_ends(now, [ssp])
                        self._begin_again(replicas, part, str(error))
                    return  # the caller looks again who is behind
                except Exception as error:
                    if not may_pass(error):
                        raise
                    logger.warning("%s: reading `%s` is tried again: %s", part.name, ssp, error)
                    if replica.is_torn(ssp):
                        self._begin_again(replicas, part, str(error))
                        return
                    replica.drop()
                    self._around.stop.wait(_RETRY_SECONDS)
        replicas[part].load()

    def _read(self, replica: SideReplica, ssp: SystemStreamPartition, check: Callable[[], None]) -> None:
        start, end = replica.reached[ssp], self.ends.upcoming(ssp)
        left = self._around.sources.compacts(ssp.system_stream) and replica.begins_with(ssp)
        for messages in self._around.sources.read(ssp, start, end, READ_AT_ONCE, what_is_left=left):
            for first in range(0, len(messages), _CHECK_EVERY):
                check()
                piece = messages[first : first + _CHECK_EVERY]
                replica.take(ssp, piece, piece[-1][0] + 1)
                self.counts[replica.part].messages += len(piece)
            if replica.pending_bytes >= GATHER_BYTES:
                replica.load()
        replica.take(ssp, [], end)
        replica.has_whole(ssp)

    def _take_ends(self, now: SideStreamEnds, ssps: Sequence[SystemStreamPartition]) -> None:
        for ssp in ssps:
            self.ends.offsets[ssp], self.ends.complete_from[ssp] = now.offsets[ssp], now.complete_from[ssp]
            self.ends.identities[ssp.system_stream] = now.identities[ssp.system_stream]

    def _begin_again(self, replicas: dict[SidePart, SideReplica], part: SidePart, why: str) -> None:
        logger.warning("%s is filled again from the beginning: %s", part.name, why)
        self._count_rebuilds([part])
        opened = self._around.homes.emptied(part, replicas[part].opened)
        replicas[part] = again = self._over(part, opened, new=True)
        self.began.update({(part, ssp): offset for ssp, offset in again.reached.items()})

    def _count_rebuilds(self, parts: Sequence[SidePart]) -> None:
        for part in parts:
            self.counts[part].rebuilds += 1

    def _patiently(self, look: Callable[[], SideStreamEnds], check: Callable[[], None]) -> SideStreamEnds:
        while True:
            check()
            try:
                return look()
            except Exception as error:
                if not may_pass(error):
                    raise
                logger.warning("the side inputs of store %s are looked at again: %s", self.name, error)
                self._around.stop.wait(_RETRY_SECONDS)

    def progress(self) -> dict[SidePart, tuple[int, int]]:
        """Part → messages read since its catching up began, and of how many. May be called by any thread."""
        found: dict[SidePart, tuple[int, int]] = {}
        ends, filling, caught_up = dict(self.ends.offsets), self.filling, self.replicas
        for part in self.parts:
            replica = filling.get(part) or caught_up.get(part)
            done = total = 0
            for ssp in part.ssps:
                if ssp in ends:
                    began = self.began.get((part, ssp), ends[ssp].oldest)
                    total += max(0, ends[ssp].upcoming - began)
                    done += 0 if replica is None else max(0, replica.reached[ssp] - began)
            found[part] = done, total
        return found

    def missing(self) -> str:
        """The first store and partition that is not caught up, in words, with its offsets."""
        for part, replica in self.filling.items():
            for ssp in part.ssps:
                if (reached := replica.reached[ssp]) < (wanted := self.ends.upcoming(ssp)):
                    return f"{part.name} has read `{ssp}` up to offset {reached} of {wanted}"
        streams = ", ".join(f"`{stream}`" for stream in self._streams)
        return f"filling store {self.name} has not begun: {streams} did not answer, or other stores took the time"

    # Following.

    def follow(self) -> FollowResult:
        """Write new messages, a limited number of each partition.

        Raises:
            GoneError: messages are gone that it needs, or a stream was created again: `rebuild` must follow.
            MessageFailedError: a message does not decode, or the processor raised. All before it was written.
            NotFoundError: a stream does not exist any more.
            RetryableError: a system failed.
        """
        now = self.look(whole=False)
        for stream in self._streams:
            if now.identities[stream] != self._identities[stream]:
                raise GoneError(f"the stream `{stream}` was deleted and created again")
        self.ends = now
        found = {self._follow(ssp, now.upcoming(ssp), now.identities[ssp.system_stream]) for ssp in self._ssps}
        return max(found, default=FollowResult.NOTHING)

    def _follow(self, ssp: SystemStreamPartition, upcoming: int, identity: str | None) -> FollowResult:
        sources, stop = self._around.sources, self._around.stop
        replicas = [replica for part, replica in self.replicas.items() if ssp in part.ssps]
        start = min(replica.reached[ssp] for replica in replicas)
        if upcoming < max(replica.reached[ssp] for replica in replicas):
            raise GoneError(f"`{ssp}` ends at {upcoming}, before what was read of it: it was deleted and created again")
        end = min(upcoming, start + FOLLOW_AT_MOST)
        if start == end:
            return FollowResult.NOTHING
        for messages in sources.read(ssp, start, end, WRITE_AT_ONCE):
            if stop.is_set():
                return FollowResult.ALL
            if sources.identity(ssp.system_stream) != identity:
                raise GoneError(f"the stream `{ssp.system_stream}` was deleted and created again")
            self._write(replicas, ssp, messages, messages[-1][0] + 1)
        if any(replica.reached[ssp] < end for replica in replicas):  # the rest of the range has no messages
            self._write(replicas, ssp, [], end)
        return FollowResult.ALL if end == upcoming else FollowResult.A_PART

    def _write(
        self, replicas: Sequence[SideReplica], ssp: SystemStreamPartition, messages: Sequence[RawMessage], reached: int
    ) -> None:
        """Write a piece of a partition to all stores that it fills, up to the first message that fails."""
        try:
            for replica in replicas:
                replica.take(ssp, messages, reached)
            with self._around.lock:
                for replica in replicas:
                    replica.write()
                    self.counts[replica.part].messages += len(messages)
        except MessageFailedError as error:
            bad = error.message[0]
            _drop(replicas)
            if before := [message for message in messages if message[0] < bad]:
                self._write(replicas, ssp, before, bad)
            raise
        except BaseException:
            _drop(replicas)
            raise

    def flush(self) -> None:
        """Make everything written survive the process."""
        for part, replica in self.replicas.items():
            self.counts[part].flushes += replica.flush()

    def touch(self) -> None:
        """Note in all stores that they are up to date now, though nothing came."""
        for replica in self.replicas.values():
            replica.write()

    def lag(self) -> dict[SidePart, dict[SystemStreamPartition, int]]:
        """Part → partition → offsets behind the ends that were seen last. May be called by any thread."""
        replicas, ends = self.filling or self.replicas, dict(self.ends.offsets)
        return {
            part: {ssp: max(0, ends[ssp].upcoming - replica.reached[ssp]) for ssp in part.ssps if ssp in ends}
            for part, replica in list(replicas.items())
        }

    def close(self) -> None:
        """Flush and close all stores."""
        _close(self.replicas)


def _drop(replicas: Sequence[SideReplica]) -> None:
    for replica in replicas:
        replica.drop()


def _close(replicas: Mapping[SidePart, SideReplica]) -> None:
    """Close all engines. Errors are logged: entries that were not written are read again."""
    for part, replica in replicas.items():
        try:
            replica.opened.close()
        except Exception as error:
            logger.warning("%s was not closed cleanly: %s", part.name, error)
