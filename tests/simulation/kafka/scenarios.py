"""The same calls of the client on a real broker and on the model, and what each of them shows.

A scenario is a function over a bench. It makes clients, calls them, and notes what it sees. What brokers do a little
later, as writing the markers of a transaction, is noted once it is as the other bench has it, or after a time limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, Message, TopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType

from tests.simulation.kafka import cluster as model
from tests.simulation.kafka.bench import WITHIN_S, Bench, one

Scenario: TypeAlias = Callable[[Bench], None]


def a_commit(bench: Bench) -> None:
    producer = bench.producer(bench.name())
    producer.begin_transaction()
    bench.note("sent", lambda: bench.send(producer, "ab"))
    bench.note("sent to the other partition", lambda: bench.send(producer, "c", 1))
    bench.note("open", bench.ends)
    bench.note("read while it is open", bench.read)
    bench.note("read uncommitted while it is open", lambda: bench.read(committed=False))
    bench.note("commit", lambda: producer.commit_transaction(WITHIN_S))
    bench.note_later("ends", bench.ends)
    bench.note_later("ends of the other partition", lambda: bench.ends(1))
    bench.note("read", bench.read)
    bench.note("read from the marker on", lambda: bench.read(2))
    bench.note("read behind the end", lambda: bench.read(4))


def an_abort(bench: Bench) -> None:
    producer = bench.producer(bench.name())
    producer.begin_transaction()
    bench.send(producer, "ab")
    bench.note("abort", lambda: producer.abort_transaction(WITHIN_S))
    bench.note_later("ends", bench.ends)
    bench.note("read", bench.read)
    bench.note("read uncommitted", lambda: bench.read(committed=False))
    other = bench.producer()
    bench.note("a plain record", lambda: bench.send(other, "p"))
    bench.note("read both", bench.read)


def an_open_transaction_holds_others_up(bench: Bench) -> None:
    first, second = bench.producer(bench.name()), bench.producer(bench.name())
    plain = bench.producer()
    bench.send(plain, "a")
    first.begin_transaction()
    bench.send(first, "b")
    second.begin_transaction()
    bench.send(second, "c")
    bench.send(plain, "d")
    second.commit_transaction(WITHIN_S)
    bench.note_later("the second one is committed", bench.ends)
    bench.note("read", bench.read)
    bench.note("the offset at a time", lambda: bench.offset(OffsetSpec.for_timestamp(1000)))
    bench.note("no offset that is stable at a time", lambda: bench.offset(OffsetSpec.for_timestamp(1001)))
    first.abort_transaction(WITHIN_S)
    bench.note_later("the first one is aborted", bench.ends)
    bench.note("read all", bench.read)
    bench.note("a marker has a time", lambda: bench.offset(OffsetSpec.for_timestamp(1001)))


def a_fenced_producer(bench: Bench) -> None:
    name = bench.name()
    first = bench.producer(name)
    first.begin_transaction()
    bench.send(first, "a")
    second = bench.producer(name)
    bench.note_later("what was open is aborted", bench.ends)
    bench.note("the first one sends", lambda: bench.send(first, "b"))
    bench.note("it commits", lambda: first.commit_transaction(WITHIN_S))
    bench.note("it aborts", lambda: first.abort_transaction(WITHIN_S))
    bench.note("it sends again", lambda: bench.send(first, "b"))
    bench.note("it begins", first.begin_transaction)
    second.begin_transaction()
    bench.note("the second one sends", lambda: bench.send(second, "c"))
    bench.note("and commits", lambda: second.commit_transaction(WITHIN_S))
    bench.note_later("ends", bench.ends)
    bench.note("read", bench.read)


def a_commit_of_a_fenced_producer(bench: Bench) -> None:
    name = bench.name()
    first = bench.producer(name)
    first.begin_transaction()
    bench.send(first, "a")
    bench.producer(name)
    bench.note("commit", lambda: first.commit_transaction(WITHIN_S))
    bench.note_later("ends", bench.ends)
    bench.note("read", bench.read)


def a_producer_fenced_before_it_begins(bench: Bench) -> None:
    name = bench.name()
    first = bench.producer(name)
    bench.producer(name)
    first.begin_transaction()
    bench.note("sent", lambda: bench.send(first, "a"))
    bench.note("commit", lambda: first.commit_transaction(WITHIN_S))
    bench.note("ends", bench.ends)


def a_transaction_that_takes_too_long(bench: Bench) -> None:
    name = bench.name()
    producer = bench.producer(name, **{"transaction.timeout.ms": 1000, "message.timeout.ms": 1000})
    producer.begin_transaction()
    bench.note("sent", lambda: bench.send(producer, "a"))
    bench.expire(name)
    bench.note("commit", lambda: producer.commit_transaction(WITHIN_S))
    bench.note("read", bench.read)
    bench.note("ends", bench.ends)


def a_late_commit(bench: Bench) -> None:
    """A request that comes late ends the next transaction of its producer."""
    producer = bench.producer(bench.name())
    producer.begin_transaction()
    bench.send(producer, "a")
    release = bench.hold_end()
    bench.note("commit", lambda: producer.commit_transaction(WITHIN_S))
    producer.begin_transaction()
    bench.note("sent", lambda: bench.send(producer, "b"))
    release()
    bench.note_later("the second one is committed", bench.ends)
    bench.note("sent behind it", lambda: bench.send(producer, "c"))
    bench.note("commit the second one", lambda: producer.commit_transaction(WITHIN_S))
    bench.note("abort it", lambda: producer.abort_transaction(WITHIN_S))
    bench.note_later("ends", bench.ends)
    bench.note("read", bench.read)


def a_late_abort(bench: Bench) -> None:
    producer = bench.producer(bench.name())
    producer.begin_transaction()
    bench.send(producer, "a")
    release = bench.hold_end()
    bench.note("abort", lambda: producer.abort_transaction(WITHIN_S))
    producer.begin_transaction()
    bench.note("sent", lambda: bench.send(producer, "b"))
    release()
    bench.note_later("the second one is aborted", bench.ends)
    bench.note("commit the second one", lambda: producer.commit_transaction(WITHIN_S))
    bench.note_later("ends", bench.ends)
    bench.note("read", bench.read)


def a_late_commit_before_a_commit(bench: Bench) -> None:
    """Nobody notices."""
    producer = bench.producer(bench.name())
    producer.begin_transaction()
    bench.send(producer, "a")
    release = bench.hold_end()
    producer.commit_transaction(WITHIN_S)
    producer.begin_transaction()
    bench.send(producer, "b")
    release()
    bench.note_later("the second one is committed", bench.ends)
    bench.note("commit the second one", lambda: producer.commit_transaction(WITHIN_S))
    bench.note_later("ends", bench.ends)
    bench.note("read", bench.read)


def reports(bench: Bench) -> None:
    producer = bench.producer()
    for name, given in {
        "first": (bench.seen.append, None),
        "second": (None, bench.seen.append),
        "alone": (),
    }.items():
        found: list[Any] = []

        def report(error: KafkaError | None, message: Message) -> None:
            found.append(message.offset())  # noqa: B023 - called in this pass

        called = [None if each is None else report for each in given]
        more = {} if called else {"on_delivery": report}
        producer.produce(bench.topic, b"v", b"a", 0, *called, **more)
        bench.note(f"{name}: left", lambda: producer.flush(WITHIN_S))
        bench.note(f"{name}: reports", found.copy)


def calls_at_the_wrong_time(bench: Bench) -> None:
    producer = bench.producer(bench.name())
    bench.note("send", lambda: bench.send(producer, "a"))
    bench.note("commit", lambda: producer.commit_transaction(WITHIN_S))
    bench.note("abort", lambda: producer.abort_transaction(WITHIN_S))
    bench.note("begin", producer.begin_transaction)
    bench.note("begin twice", producer.begin_transaction)
    bench.note("commit nothing", lambda: producer.commit_transaction(WITHIN_S))
    bench.note("ends", bench.ends)
    bench.note("begin again", producer.begin_transaction)
    bench.note("abort nothing", lambda: producer.abort_transaction(WITHIN_S))


def deleted_records(bench: Bench) -> None:
    producer = bench.producer()
    bench.send(producer, "abcd")
    bench.note("delete", lambda: bench.delete_before(2))
    bench.note("ends", bench.ends)
    bench.note("read from the beginning", bench.read)
    bench.note("read what is left", lambda: bench.read(2))
    bench.note("delete behind the end", lambda: bench.delete_before(9))
    bench.note("delete all", lambda: bench.delete_before(-1))
    bench.note("ends again", bench.ends)
    bench.note("read nothing", lambda: bench.read(4))
    bench.note("the producer goes on", lambda: bench.send(producer, "e"))


def topics(bench: Bench) -> None:
    missing = bench.name()
    bench.note("describe", lambda: str(bench.describe(missing)))
    consumer = bench.make("Consumer", {"group.id": "g"})
    at = TopicPartition(missing, 0)
    bench.note("its ends", lambda: consumer.get_watermark_offsets(at, 5, cached=False))
    consumer.close()
    bench.note("metadata", lambda: bench.admin.list_topics(missing, timeout=5).topics[missing].error.name())
    bench.note("create again", lambda: one(bench.admin.create_topics([bench.new])))
    bench.note("delete what is not there", lambda: one(bench.admin.delete_topics([missing])))
    before = str(bench.describe().topic_id)
    bench.send(bench.producer(), "ab")
    one(bench.admin.delete_topics([bench.topic]))
    bench.note_later("deleted", lambda: str(bench.describe()))
    bench.note_later("create", lambda: one(bench.admin.create_topics([bench.new])))
    bench.note_later("another topic", lambda: str(bench.describe().topic_id) != before)
    bench.note_later("empty", bench.ends)


def settings(bench: Bench) -> None:
    resource = ConfigResource(ResourceType.TOPIC, bench.topic)
    found = one(bench.admin.describe_configs([resource]))
    for name in sorted(model._DEFAULTS.keys() - {"max.message.bytes"}):  # the broker of tests has another one
        bench.note(name, lambda name=name: found[name].value)  # type: ignore[misc]


SCENARIOS: Sequence[Scenario] = (
    a_commit,
    an_abort,
    an_open_transaction_holds_others_up,
    a_fenced_producer,
    a_commit_of_a_fenced_producer,
    a_producer_fenced_before_it_begins,
    a_late_commit,
    a_late_abort,
    a_late_commit_before_a_commit,
    reports,
    calls_at_the_wrong_time,
    deleted_records,
    topics,
    settings,
)
SLOW: Sequence[Scenario] = (a_transaction_that_takes_too_long,)
