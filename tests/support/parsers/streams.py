"""Messages of streams that Penstock itself writes. Others may write to their topics, too."""

from __future__ import annotations

import penstock as ps
from penstock.errors import FailedMessage
from penstock.runtime.messages.stored import decode_dead_letter, encode_dead_letter, read_user_messages
from penstock.system.base import Progress
from penstock.system.kafka.fences import OwnersTopic
from penstock.system.kafka.job_topic import JobTopic, fence_record, producer_record, progress_record
from tests.support.parsers.parser import SSP, Parser

FAILED = FailedMessage("local.trips", 0, 7, "k", "task", "ValueError: no", "")


def read_topic(topic: JobTopic | OwnersTopic, data: bytes) -> None:
    key, _, value = data.partition(b"\n")
    topic.add(key, value or None)


TOPIC_RECORDS = [fence_record(3), producer_record("t-1", 4), progress_record(SSP, Progress(1, 2))]
STREAMS = {
    "dead letter": Parser(decode_dead_letter, [encode_dead_letter(FAILED, b"k", b"\xff", repartitioned=True)]),
    "intermediate stream": Parser(
        lambda d: read_user_messages([(0, 1, None, d)]),
        [ps.IntermediateMessageSerde(ps.Json()).to_bytes(each) for each in (ps.DrainMessage("r"), {"a": 1})],
    ),
    "job topic": Parser(lambda d: read_topic(JobTopic("t"), d), [b"\n".join(each) for each in TOPIC_RECORDS]),
    "owners topic": Parser(
        lambda d: read_topic(OwnersTopic(), d), [b'owner/id/claim\n{"format":1,"stream":"s","owner":"o"}']
    ),
}
