"""Who may write to a topic: the newest epoch of the job that owns it.

Fencing: after a newer epoch has taken over, no transaction of an older one commits. ARCHITECTURE.md, "Kafka", has
the argument.

The owners of a cluster's topics are in one small topic that all jobs of the cluster share.

```
owner/<id of the topic>/<claim>    {"format": 1, "stream": "counts-changelog", "owner": "job counts-1 ..."}
```

Each claim has a key with only one record, so compaction moves none: the first claim of a topic counts. A job that
claims a topic writes first and reads afterwards. Two jobs that do it at once both see the same first claim. The one
that is refused takes its claim back, and so does who deletes a topic; that only lets the brokers drop the claims.
For a reader nothing takes a claim back or replaces it, because a later record of its key may be anybody's. Once the
brokers have dropped a claim for such a record, its job still knows that the topic is its own: see
`penstock.job.identity`.

Every job of the cluster reads all claims. One that does not parse is ignored and reported. One of a newer format has
an unknown owner, which matters for its topic alone.

Jobs may have different keys (`job.root.key`), or none, so a claim counts even if its signature cannot be verified:
it keeps other jobs from writing. Only a signature that is known to be wrong makes a claim nobody's.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from contextvars import copy_context
from dataclasses import dataclass, field

import orjson
from confluent_kafka import KafkaException, Producer

from penstock.api.ssp import SystemStreamPartition
from penstock.base.documents import VersionedDocument, decode_format, decoding
from penstock.errors import CorruptError, FencedError, IncompatibleError, NotFoundError, PenstockError
from penstock.system.base import WriterIdentity
from penstock.system.kafka import job_log
from penstock.system.kafka.client import open_producer
from penstock.system.kafka.errors import ClientErrors, explain
from penstock.system.kafka.job_topic import (
    PREFIX,
    ForeignRecords,
    Headers,
    JobTopic,
    RecordSigner,
    Signature,
    fence_key,
    fence_record,
    job_topic,
    new_transactional_id,
    producer_key,
    producer_record,
    progress_record,
)
from penstock.system.kafka.options import KafkaOptions

_AT_ONCE = 8
_CONNECT_SECONDS = 0.1


def fence(options: KafkaOptions, writer: WriterIdentity) -> None:
    """Once it returns, no older epoch of the name commits. Idempotent; a second call only reads.

    Raises:
        FencedError: a larger epoch has taken over.
        RetryableError: the cluster does not answer.
    """
    topic = job_topic(writer.name)
    with closing(job_log.created(options, _state(options, writer.name))) as log:
        state = log.state
        state.check_fence(writer, options.system)
        if writer.epoch not in state.fences:
            job_log.put(options, topic, [fence_record(writer.epoch)])
            state = log.catch_up()
            state.check_fence(writer, options.system)
        older = state.older_producers(writer.epoch)
        retire(options, topic, older, state.older_fences(writer.epoch))


def retire(options: KafkaOptions, topic: str, producers: Sequence[str], fences: Sequence[int] = ()) -> None:
    """End all open transactions of these ids, for ever, and delete their records."""
    if len(producers) == 1:
        _end(options, producers[0], topic)
    elif producers:
        with ThreadPoolExecutor(min(len(producers), _AT_ONCE), thread_name_prefix="kafka-fence") as threads:
            contexts = [copy_context() for _ in producers]  # what interrupts this thread interrupts them
            list(threads.map(lambda own, each: own.run(_end, options, each, topic), contexts, producers))
    keys = [*map(producer_key, producers), *map(fence_key, fences)]
    if keys:
        job_log.put(options, topic, [(key, None) for key in keys])


def register(
    options: KafkaOptions, writer: WriterIdentity, reported: ClientErrors, ended: Iterable[str] = ()
) -> tuple[str, Producer, JobTopic]:
    """A new producer that a newer epoch can fence: its transactional id, the producer, and the state of the topic.
    `reported` gets the reports of the producer. The registrations of the ids `ended`, which are used no more and have
    no open transaction, are deleted.

    The order is essential: the id is on record before the producer can write, and the fences are read afterwards.

    Raises:
        FencedError: a larger epoch has taken over.
    """
    topic = job_topic(writer.name)
    transactional_id = new_transactional_id(topic)
    with closing(job_log.created(options, _state(options, writer.name))) as log:
        state = log.state
        state.check_fence(writer, options.system)  # it is refused here as well, without leaving anything behind
        gone = [(producer_key(each), None) for each in ended]
        job_log.put(options, topic, [producer_record(transactional_id, writer.epoch), *gone])
        made = initialised(options, transactional_id, topic, reported)
        try:
            state = log.catch_up()
            state.check_fence(writer, options.system)
        except FencedError:
            job_log.discard(made)
            with suppress(PenstockError):  # it has written nothing, and the next writer has this id
                job_log.put(options, topic, [(producer_key(transactional_id), None)])
            raise
    return transactional_id, made, state


def check(options: KafkaOptions, writer: WriterIdentity) -> None:
    """Raise FencedError if a larger epoch has taken over."""
    with closing(opened(options, writer.name, committed=False)) as log:
        log.catch_up().check_fence(writer, options.system)


def has_job_topic(options: KafkaOptions, writer_name: str) -> bool:
    """True if the topic with the progress of writers of this name still exists. With a key, a topic from which every
    genuine record was removed is as good as none: the topic of a job that has run has a fence.

    Raises:
        RetryableError: the cluster does not answer.
    """
    with closing(opened(options, writer_name, committed=False)) as log:
        try:
            state = log.catch_up()
        except NotFoundError:
            return False
        return not (options.keys.all and state.is_empty and log.was_written)


def sign(options: KafkaOptions, writer: WriterIdentity) -> None:
    """Sign every record that counts with the current key, once no older epoch can write. Idempotent.

    Raises:
        FencedError: a larger epoch has taken over.
        RetryableError: the cluster does not answer.
    """
    if not has_job_topic(options, writer.name):
        return
    fence(options, writer)
    with closing(opened(options, writer.name, committed=True)) as log:
        marks = log.catch_up().progress
    places = {SystemStreamPartition(options.system, *place): mark for place, mark in marks.items()}
    job_log.put(options, job_topic(writer.name), [progress_record(ssp, mark) for ssp, mark in places.items()])


def opened(options: KafkaOptions, writer_name: str, *, committed: bool) -> job_log.JobLog:
    return job_log.TopicLog(options, _state(options, writer_name), committed=committed)


def _state(options: KafkaOptions, writer_name: str) -> JobTopic:
    return JobTopic(job_topic(writer_name), options.signer)


def initialised(options: KafkaOptions, transactional_id: str, topic: str | None, reported: ClientErrors) -> Producer:
    """A producer of this id. It ends open transactions of others with the id, which can write no more.

    Args:
        topic: one that exists.
        reported: gets the reports of the producer.
    """
    made = open_producer(options, reported, {"transactional.id": transactional_id})
    what = f"the transactions of `{transactional_id}` could not be initialised"
    try:
        with suppress(KafkaException):  # the client tries again after half a second if it is not connected yet
            _ = made.poll(_CONNECT_SECONDS) if topic is None else made.list_topics(topic, job_log.STEP_SECONDS)
        job_log.patiently(made, made.init_transactions, options, what, options.timeout_s, reported)
    except KafkaException as error:
        raise explain(error, what, options, reported) from error
    except BaseException:
        job_log.discard(made)
        raise
    return made


def _end(options: KafkaOptions, transactional_id: str, topic: str) -> None:
    job_log.discard(initialised(options, transactional_id, topic, ClientErrors()))


FORMAT = 1
TOPIC = f"{PREFIX}owners"
"""No job's topic has this name, because those end with a hash."""
_OWNER = b"owner"


class _Claim(VersionedDocument):
    stream: str
    owner: str


@dataclass(slots=True)
class OwnersTopic:
    """The state of the topic, built from its records in their order."""

    topic: str = TOPIC
    signer: RecordSigner = field(default_factory=RecordSigner)
    claims: dict[str, dict[str, _Claim]] = field(default_factory=dict)
    """By the id of a topic and that of the claim, the first claim first."""
    foreign: ForeignRecords = field(default_factory=ForeignRecords)

    def add(self, key: bytes | None, value: bytes | None, headers: Headers = None) -> None:
        """Add the next record. Records of kinds that this version does not know are for others."""
        kind, _, rest = (key or b"").partition(b"/")
        if key is None or kind != _OWNER:
            return
        signature = self.signer.signature(self.topic, key, value, headers)
        if signature in (Signature.WRONG, Signature.UNREADABLE):
            self.foreign.add(key, signature.value)
            return
        what = "it is damaged"
        try:
            with decoding(what):
                topic_id, _, claim_id = rest.decode().rpartition("/")  # an id may have a slash
            if value is None:
                return
            claim = _claim(value, what)
            if self.claims.setdefault(topic_id, {}).setdefault(claim_id, claim) != claim:
                self.foreign.add(key, "it would replace another one")
        except CorruptError as error:
            self.foreign.add(key, str(error))

    def owner(self, topic_id: str) -> str | None:
        return next((claim.owner for claim in self.claims.get(topic_id, {}).values()), None)

    def streams(self) -> list[str]:
        """Every stream that has, or had, an owner."""
        return sorted({claim.stream for own in self.claims.values() for claim in own.values()})


class Owners:
    """Reads and writes the owners of a cluster's topics. Thread-safe; it keeps its connections."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._log: job_log.TopicLog[OwnersTopic] | None = None

    def read(self) -> OwnersTopic:
        """The present state of the topic; empty if it does not exist.

        Raises:
            RetryableError: the cluster does not answer.
        """
        with self._lock:
            return self._read()

    def own(self, stream: str, topic_id: str, owner: str) -> str:
        """Claim a topic; returns its owner.

        Raises:
            RetryableError: the cluster does not answer. The topic may have been claimed.
        """
        with self._lock:
            if (found := self._read().owner(topic_id)) is not None:
                return found
            claim_id = uuid.uuid4().hex
            key = _key(topic_id, claim_id)
            log = self._log = self._log or job_log.created(self._options, self._nothing())
            value = orjson.dumps({"format": FORMAT, "stream": stream, "owner": owner})
            job_log.put(self._options, TOPIC, [(key, value)])
            first = next(iter(log.catch_up().claims[topic_id]))
            found = log.state.claims[topic_id][first].owner
            if first != claim_id:
                job_log.put(self._options, TOPIC, [(key, None)])
            return found

    def forget(self, topic_id: str) -> None:
        """Drop the claims of a topic that was deleted.

        Raises:
            RetryableError: the cluster does not answer.
        """
        with self._lock:
            claims = self._read().claims.get(topic_id, {})
            if claims:
                job_log.put(self._options, TOPIC, [(_key(topic_id, each), None) for each in claims])

    def close(self) -> None:
        with self._lock:
            self._discard()

    def _read(self) -> OwnersTopic:
        if self._log is None:
            log = job_log.TopicLog(self._options, self._nothing(), committed=False)
            try:
                log.catch_up()
            except NotFoundError:
                log.close()
                return OwnersTopic()
            except BaseException:
                log.close()
                raise
            self._log = log
            return log.state
        with suppress(NotFoundError):
            return self._log.catch_up()
        self._discard()  # it was deleted
        return OwnersTopic()

    def _nothing(self) -> OwnersTopic:
        return OwnersTopic(signer=self._options.signer)

    def _discard(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def _claim(value: bytes, what: str) -> _Claim:
    try:
        return decode_format(_Claim, value, what, what, FORMAT)
    except IncompatibleError:
        return _Claim(FORMAT, "a stream of a newer Penstock", "a job of a newer Penstock")


def _key(topic_id: str, claim_id: str) -> bytes:
    return b"%s/%s/%s" % (_OWNER, topic_id.encode(), claim_id.encode())
