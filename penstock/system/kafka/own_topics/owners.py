"""The owners of a cluster's topics, in one small topic that all jobs of the cluster share.

```
owner/<id of the topic>/<claim>    {"format": 1, "stream": "counts-changelog", "owner": "job counts-1 ..."}
```

Each claim has a key with only one record, so compaction moves none: the first claim of a topic counts.
A job that claims a topic writes first and reads afterwards. Two jobs that do it at once both see the same first claim.
The one that is refused takes its claim back, and so does who deletes a topic; that only lets the brokers drop the
claims. For a reader nothing takes a claim back or replaces it, because a later record of its key may be anybody's. Once
the brokers have dropped a claim for such a record, its job still knows that the topic is its own: see
`penstock.job.owned_streams`.

Every job of the cluster reads all claims. One that does not parse is ignored and reported. One of a newer format has an
unknown owner, which matters for its topic alone.

Jobs may have different keys (`job.root.key`), or none, so a claim counts even if its signature cannot be verified:
it keeps other jobs from writing. Only a signature that is known to be wrong makes a claim nobody's.
"""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass, field

import orjson

from penstock.base.documents import VersionedDocument, decode_format, decoding
from penstock.errors import CorruptError, IncompatibleError, NotFoundError
from penstock.system.kafka.options.options import KafkaOptions
from penstock.system.kafka.own_topics import job_log
from penstock.system.kafka.own_topics.foreign import ForeignRecords
from penstock.system.kafka.own_topics.job_topic import PREFIX
from penstock.system.kafka.signatures import Headers, RecordSigner, Signature

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
