"""The topic of a writer's name, one for each name and cluster: fences, producers, progress. Pure.

```
fence/<epoch>                      {"format": 1}                                     epochs below it may not write
producer/<transactional id>        {"format": 1, "epoch": 4}                         a producer that may write
progress/<stream>/<partition>      {"format": 1, "slot": 7, "chunk": 3}              the progress of publishing
```

The topic has one partition and is compacted: a record counts until there is a newer one of its key, or a tombstone.

Whoever may write to the topic can write anything. With `job.root.key`, only records with a genuine signature count.
Others are ignored and reported. If one may have taken the place of the only genuine progress, the progress is unknown,
and nothing may be published. Without a key, a fence that does not parse, or is further ahead than any job comes, is
ignored and reported. Progress and producers cannot be ignored without doubt, so a wrong record of these is an error.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import orjson

from penstock.api.ssp import SystemStreamPartition
from penstock.base.documents import Count, VersionedDocument, decode_format, decoding, number
from penstock.errors import ConfigError, CorruptError, FencedError, IncompatibleError
from penstock.system.base import Progress, WriterIdentity
from penstock.system.kafka.own_topics.foreign import ForeignRecords
from penstock.system.kafka.signatures import Headers, RecordSigner, Signature

FORMAT = 1
PREFIX = "__penstock_"
_LONGEST_NAME = 100
_MOST_AHEAD = 1_000_000
"""No epoch is so far ahead of another one: each start of a driver, and each loss of a container, makes one."""
_FENCE, _PRODUCER, _PROGRESS = b"fence", b"producer", b"progress"


def job_topic(writer_name: str) -> str:
    """The topic of a writer's name. Two names never share one.

    Example:
        >>> job_topic("sums-1")
        '__penstock_sums-1-8cf5ce8256'
    """
    safe = re.sub(r"[^A-Za-z0-9-]", "-", writer_name)[:_LONGEST_NAME]
    return f"{PREFIX}{safe}-{hashlib.sha256(writer_name.encode()).hexdigest()[:10]}"


def new_transactional_id(topic: str) -> str:
    """A unique id. It begins with the topic's name, so that one rule of access fits all."""
    return f"{topic}-{uuid.uuid4().hex}"


class _Producer(VersionedDocument):
    epoch: Count


class _Mark(VersionedDocument):
    slot: Count
    chunk: Count


def fence_record(epoch: int) -> tuple[bytes, bytes]:
    """The key and value that refuse epochs below this one."""
    return b"%s/%d" % (_FENCE, epoch), orjson.dumps({"format": FORMAT})


def producer_record(transactional_id: str, epoch: int) -> tuple[bytes, bytes]:
    return producer_key(transactional_id), orjson.dumps({"format": FORMAT, "epoch": epoch})


def fence_key(epoch: int) -> bytes:
    return fence_record(epoch)[0]


def producer_key(transactional_id: str) -> bytes:
    return b"%s/%s" % (_PRODUCER, transactional_id.encode())


def progress_record(ssp: SystemStreamPartition, mark: Progress) -> tuple[bytes, bytes]:
    value = orjson.dumps({"format": FORMAT, "slot": mark.slot, "chunk": mark.chunk})
    return _progress_key(ssp.stream, ssp.partition), value


def _progress_key(stream: str, partition: int) -> bytes:
    return b"%s/%s/%d" % (_PROGRESS, stream.encode(), partition)


@dataclass(slots=True)
class JobTopic:
    """The state of a topic, built from its records in their order."""

    topic: str
    signer: RecordSigner = field(default_factory=RecordSigner)
    fences: set[int] = field(default_factory=set)
    producers: dict[str, int] = field(default_factory=dict)
    """Transactional id -> epoch."""
    progress: dict[tuple[str, int], Progress] = field(default_factory=dict)
    """By stream and partition."""
    doubtful: dict[tuple[str, int], Signature] = field(default_factory=dict)
    """By stream and partition: no progress is known, and a record that does not count may have replaced it."""
    foreign: ForeignRecords = field(default_factory=ForeignRecords)
    _has_genuine: bool = False

    def add(self, key: bytes | None, value: bytes | None, headers: Headers = None) -> None:
        """Add the next record. Records of kinds that this version does not know are for others.

        Raises:
            ConfigError: it is signed, and there is no key.
            CorruptError: it is damaged.
            IncompatibleError: a newer version wrote it.
        """
        kind, _, rest = (key or b"").partition(b"/")
        if kind not in (_FENCE, _PRODUCER, _PROGRESS):
            return
        signature = self.signer.signature(self.topic, key, value, headers)
        if not self.signer.counts(signature):
            self._leave_out(kind, key, rest, signature)
            return
        if not self._has_genuine:  # what is before it was written before there was a key, and is signed behind it
            self._has_genuine, self.foreign = True, ForeignRecords()
        what = f"the record {key!r} of the Kafka topic `{self.topic}` is damaged"
        with decoding(what):
            if kind == _FENCE:
                self._add_fence(key, rest, value, what)
            elif kind == _PRODUCER:
                if value is None:
                    self.producers.pop(rest.decode(), None)
                else:
                    self.producers[rest.decode()] = decode_format(_Producer, value, what, what, FORMAT).epoch
            elif kind == _PROGRESS:
                place = _progress_place(rest)
                if value is None:
                    self.progress.pop(place, None)
                else:
                    read = decode_format(_Mark, value, what, what, FORMAT)
                    mark, known = Progress(read.slot, read.chunk), self.progress.get(place)
                    if known is None or known < mark or not self.signer.has_key:  # it may be an old one, put back
                        self.progress[place] = mark
                    self.doubtful.pop(place, None)

    def _leave_out(self, kind: bytes, key: bytes | None, rest: bytes, signature: Signature) -> None:
        if not self.signer.has_key and signature is not Signature.UNREADABLE:
            raise ConfigError(
                f"the record {key!r:.300} of the Kafka topic `{self.topic}` is signed, and the configuration has no "
                "`job.root.key`. Give the key of the job, best as `file:PATH`, `env:NAME` or `cmd:COMMAND`"
            )
        self.foreign.add(key, signature.value)
        if kind == _PROGRESS:
            with suppress(ValueError):  # no job has such a key
                if (place := _progress_place(rest)) not in self.progress:
                    self.doubtful[place] = signature

    def check_known(self, places: Iterable[tuple[str, int]], system: str) -> None:
        """Raise IncompatibleError if a record that does not count may have replaced the progress of one of these
        places: brokers keep the last record of a key only, whoever wrote it."""
        for stream, partition in places:
            if (signature := self.doubtful.get((stream, partition))) is not None:
                raise IncompatibleError(
                    f"how far this job has published to partition {partition} of `{stream}` is not known: the record "
                    f"`{_progress_key(stream, partition).decode()}` of the topic `{self.topic}` of the system "
                    f"`{system}` is not one of this job ({signature.value}), and may have replaced one. Nothing was "
                    "published, because readers could get messages twice. If `job.root.key` has changed, give the "
                    "former one as `job.root.key.previous`. Otherwise let nobody else write to the topic, delete it, "
                    "and create it again (docs/kafka.md, fencing): the next start then publishes again what the last "
                    "checkpoint leaves to be published"
                )

    @property
    def is_empty(self) -> bool:
        return not (self.fences or self.producers or self.progress)

    def _add_fence(self, key: bytes | None, rest: bytes, value: bytes | None, what: str) -> None:
        try:
            with decoding(what):
                epoch = number(rest.decode())
                if value is not None:
                    decode_format(VersionedDocument, value, what, what, FORMAT)
        except CorruptError as error:
            self.foreign.add(key, str(error))
            return
        if value is None:
            self.fences.discard(epoch)
        else:
            self.fences.add(epoch)

    def check_fence(self, writer: WriterIdentity, system: str) -> None:
        """Raise FencedError if a larger epoch has taken over."""
        if far := [epoch for epoch in self.fences if epoch > writer.epoch + _MOST_AHEAD]:
            for epoch in sorted(far):
                self.fences.discard(epoch)
                self.foreign.add(fence_key(epoch), f"no job comes to epoch {epoch}: this one is in {writer.epoch}")
        if (newest := max(self.fences, default=-1)) > writer.epoch:
            raise FencedError(
                f"the writer `{writer.name}` of epoch {writer.epoch} must not append to streams of the system "
                f"`{system}`: epoch {newest} has taken over. Stop this run"
            )

    def older_producers(self, epoch: int) -> list[str]:
        return sorted(each for each, own in self.producers.items() if own < epoch)

    def older_fences(self, epoch: int) -> list[int]:
        return sorted(each for each in self.fences if each < epoch)


def _progress_place(rest: bytes) -> tuple[str, int]:
    stream, _, partition = rest.decode().rpartition("/")
    return stream, int(partition)
