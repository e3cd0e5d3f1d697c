"""Translates the errors of Kafka to those of Penstock, with the rights that a client needs, and the commands of Kafka's
own scripts that grant them or change a topic.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import Literal

from confluent_kafka import KafkaError, KafkaException

from penstock.base.wording import listed
from penstock.errors import (
    CorruptError,
    NotFoundError,
    PenstockError,
    RetryableError,
    SystemAwayError,
    SystemRefusedError,
)
from penstock.system.kafka.job_topic import PREFIX
from penstock.system.kafka.options import KafkaOptions

_LOGIN = re.compile(r"[\w.@/-]+")


@dataclass(frozen=True, slots=True)
class Right:
    """One operation on topics, transactional ids or the cluster, in Kafka's names."""

    operation: str
    names: tuple[str, ...] = ()
    kind: Literal["topic", "transactional-id", "cluster"] = "topic"

    def missing(self, options: KafkaOptions) -> str:
        """The sentence for an error: the user, the missing right, and the way to grant it.

        Example:
            >>> options = KafkaOptions("kafka", {"bootstrap.servers": "b:9092", "sasl.username": "shop"}, {})
            >>> Right("Read", ("flights",)).missing(options)
            'The user `User:shop` has no right to Read on topic `flights`. Grant it: `kafka-acls.sh --bootstrap-server \
b:9092 --add --allow-principal User:shop --operation Read --topic flights`'
        """
        login = options.consumer.get("sasl.username", "")
        user = f"User:{login}" if _LOGIN.fullmatch(login) else "User:NAME"
        who = f"The user `{user}`" if login else "The client's user"
        what = self.kind if self.kind == "cluster" else f"{self.kind} {listed([f'`{name}`' for name in self.names])}"
        return (
            f"{who} has no right to {self.operation} on {what}. Grant it: `kafka-acls.sh --bootstrap-server "
            f"{options.servers} --add --allow-principal {user} --operation {self.operation} {self._resource}`"
        )

    @property
    def _resource(self) -> str:
        if self.kind == "cluster":
            return "--cluster"
        names = sorted({PREFIX if name.startswith(PREFIX) else name for name in self.names})
        prefixed = "--resource-pattern-type prefixed " if names == [PREFIX] else ""
        return prefixed + " ".join(f"--{self.kind} {name}" for name in names)


def topic(operation: str, *names: str) -> Right:
    return Right(operation, names)


TRANSACTIONS = Right("Write", (PREFIX,), "transactional-id")
"""All transactional ids of Penstock begin with the prefix."""
IDEMPOTENT = Right("IdempotentWrite", kind="cluster")
"""Required of producers by brokers before 2.8."""


def alter_command(servers: str, topic: str, setting: str) -> str:
    """The command that changes a setting of a topic, `key=value`. `servers`: the addresses of some brokers."""
    return (
        f"kafka-configs.sh --bootstrap-server {servers} --alter --entity-type topics --entity-name {topic} "
        f"--add-config {setting}"
    )


_AWAY: frozenset[int] = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._RESOLVE,
        -137,  # _DESTROY_BROKER: the client forgot a broker that had left; older clients do not have the name
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_CONTROLLER,
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)
"""There is no connection, or no broker has yet taken over from one that is away."""
_RETRIABLE = _AWAY | {
    KafkaError._WAIT_CACHE,
    KafkaError._QUEUE_FULL,
    KafkaError._RETRY,
    KafkaError._PURGE_INFLIGHT,
    KafkaError._PURGE_QUEUE,
    KafkaError._DESTROY,  # another thread has replaced the client that this call waited for
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.ELECTION_NOT_NEEDED,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
    KafkaError.FETCH_SESSION_ID_NOT_FOUND,
    KafkaError.INVALID_FETCH_SESSION_EPOCH,
}
_OLD_LEADER = frozenset(
    {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH}
)
_NOT_FOUND = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.INCONSISTENT_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
_NOT_ALLOWED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_RIGHTS = {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: TRANSACTIONS,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: IDEMPOTENT,
}
"""Errors that name the missing right."""
_NO_ENTRY = frozenset(
    {
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
    }
)
_WRONG = frozenset(
    {
        KafkaError._INVALID_ARG,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_RECORD,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_REPLICA_ASSIGNMENT,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_REQUEST,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_DELETION_DISABLED,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
    }
)
_DAMAGED = frozenset({KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION})
_FENCED = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, 90})  # 90: PRODUCER_FENCED
_BROKEN_OFF = ("transport failure", "isconnect", "imed out", "onnection reset", "onnection closed")
"""Words of the client for a connection that ended while it was made: a refusal is not certain then."""
_WAITED = frozenset({KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT_QUEUE})


class ClientErrors:
    """The errors that a client reports in the background: connections that fail, certificates that are refused.
    Thread-safe.

    It is the client's `error_cb`; a call that times out quotes the last report.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Keep an error. One that names the reason of a refusal is not replaced by one without a reason."""
        with self._lock:
            if self._last is None or self._last.code() not in _NO_ENTRY or error.code() in _NO_ENTRY:
                self._last = error

    @property
    def last(self) -> KafkaError | None:
        with self._lock:
            return self._last

    def forget(self) -> None:
        """Called after a success."""
        self._last = None

    def check(self, doing: str, options: KafkaOptions) -> None:
        """Raise SystemRefusedError if the brokers have refused to let the client in: it would only try again."""
        last = self.last
        if last is not None and _is_refusal(last):
            raise _no_entry(last, doing, options)

    @property
    def why(self) -> str:
        """The last report, as the end of a sentence."""
        last = self.last
        return "" if last is None else f"; the client reported: {last.str()}"


def kafka_error(error: BaseException) -> KafkaError | None:
    found = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return found if isinstance(found, KafkaError) else None


def is_fenced(error: KafkaError) -> bool:
    """True if the brokers refuse this producer because another one has its transactional id now, or because they ended
    its transaction."""
    return error.code() in _FENCED


def is_late(error: KafkaException) -> bool:
    found = kafka_error(error)
    return found is not None and found.code() in _WAITED


def leader_is_old(error: KafkaException) -> bool:
    """True if a partition has another leader, or another term of its leader, than the client knows of."""
    found = kafka_error(error)
    return found is not None and found.code() in _OLD_LEADER


def is_not_found(error: KafkaError) -> bool:
    return error.code() in _NOT_FOUND


def is_of_group(error: KafkaError) -> bool:
    """True if the brokers refuse a consumer group. The client asks for the coordinator of its group, although
    partitions are assigned by hand and nothing is committed for a group: no right on a group is needed."""
    return error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def away(doing: str, options: KafkaOptions, reported: ClientErrors, *, within_s: float | None = None) -> PenstockError:
    """The error for brokers that did not answer in time, or do not let the client in."""
    last = reported.last
    if last is not None and _is_refusal(last):
        return _no_entry(last, doing, options)
    limit = options.timeout_s if within_s is None else within_s
    return SystemAwayError(f"{doing}: the brokers at {options.servers} did not answer within {limit:g} s{reported.why}")


def _is_refusal(error: KafkaError) -> bool:
    if error.code() == KafkaError.SASL_AUTHENTICATION_FAILED:
        return True
    return error.code() in _NO_ENTRY and not any(each in error.str() for each in _BROKEN_OFF)


def _no_entry(error: KafkaError, doing: str, options: KafkaOptions) -> SystemRefusedError:
    return SystemRefusedError(
        f"{doing}: {error.str()} ({error.name()}). The brokers at {options.servers} do not let the client in: correct "
        f"`systems.{options.system}.consumer.*` and `.producer.*`: `security.protocol`, `ssl.*`, `sasl.*`"
    )


def explain(
    error: KafkaException | KafkaError,
    doing: str,
    options: KafkaOptions,
    reported: ClientErrors | None = None,
    right: Right | None = None,
) -> PenstockError:
    """The error of Penstock for one of Kafka.

    Args:
        doing: the failure, such as "the topic `kafka.flights` could not be read".
        reported: the errors that the client reported in the background.
        right: the right that is missing if the error is a refusal for want of one.
    """
    found = error if isinstance(error, KafkaError) else kafka_error(error)
    if found is None:
        return PenstockError(f"{doing}: {error}")
    last = None if reported is None or found.code() not in _WAITED | {KafkaError._TRANSPORT} else reported.last
    if last is not None and _is_refusal(last):
        found = last
    code = found.code()
    text = f"{doing}: {found.str()} ({found.name()})"
    if code in _NO_ENTRY:
        return _no_entry(found, doing, options) if _is_refusal(found) else _not_now(found, text, options, last)
    if code in _NOT_ALLOWED:
        needed = _RIGHTS.get(code, right)
        return SystemRefusedError(
            f"{text}. {'Grant the user the right' if needed is None else needed.missing(options)}"
        )
    if code in _NOT_FOUND:
        return NotFoundError(text)
    if code in _WRONG:
        return _not_now(found, text, options, last) if _is_of_brokers_away(found) else SystemRefusedError(text)
    if code in _DAMAGED:
        return CorruptError(text)
    if code in _RETRIABLE or found.retriable():
        return _not_now(found, text, options, last)
    return PenstockError(text)


def _is_of_brokers_away(error: KafkaError) -> bool:
    """True if a replication factor is refused because brokers have not reported to the controller for a while. It
    fences them until they do; there is no code for that."""
    return error.code() == KafkaError.INVALID_REPLICATION_FACTOR and "fenced" in error.str()


def is_away(error: KafkaError | None) -> bool:
    return error is not None and error.code() in _AWAY


def _not_now(error: KafkaError, text: str, options: KafkaOptions, last: KafkaError | None) -> RetryableError:
    why = "" if last is None else f"; the client reported: {last.str()}"
    if error.code() not in _AWAY | _NO_ENTRY:
        return RetryableError(f"{text}: the brokers at {options.servers} refuse it for now{why}")
    limit = f" within {options.timeout_s:g} s" if error.code() in _WAITED else ""
    return SystemAwayError(f"{text}: the brokers at {options.servers} did not answer{limit}{why}")
