"""Fencing: after a newer epoch has taken over, no transaction of an older one commits.

penstock/system/kafka/README.md, "Writing to Kafka", has the argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from contextvars import copy_context

from confluent_kafka import KafkaException, Producer

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import FencedError, NotFoundError
from penstock.system.base import WriterIdentity
from penstock.system.kafka.client import open_producer
from penstock.system.kafka.errors import ClientErrors, explain
from penstock.system.kafka.options.options import KafkaOptions
from penstock.system.kafka.own_topics import job_log
from penstock.system.kafka.own_topics.job_topic import (
    JobTopic,
    fence_key,
    fence_record,
    job_topic,
    new_transactional_id,
    producer_key,
    producer_record,
    progress_record,
)

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
            job_log.put(options, topic, [(producer_key(transactional_id), None)])  # it has written nothing
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
