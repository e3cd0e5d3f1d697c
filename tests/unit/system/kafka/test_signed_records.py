"""Signatures of Penstock's own records in Kafka, as somebody meets them who may write to its topics without the key."""

from __future__ import annotations

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.base.secrets import RootKeys
from penstock.config.load import load_config
from penstock.errors import ConfigError, FencedError, IncompatibleError
from penstock.system.base import Progress, WriterIdentity
from penstock.system.kafka.fences import OwnersTopic
from penstock.system.kafka.job_topic import (
    HEADER,
    Headers,
    JobTopic,
    RecordSigner,
    fence_key,
    fence_record,
    producer_key,
    producer_record,
)
from penstock.system.kafka.job_topic import progress_record as progress
from penstock.system.kafka.options import parse_options
from penstock.system.kafka.system import KafkaSystem
from penstock.system.registry import open_systems

KEY, OTHER = "k" * 32, "o" * 32
OURS, THEIRS, NOBODY = RecordSigner(RootKeys(KEY)), RecordSigner(RootKeys(OTHER)), RecordSigner()
HERE = SystemStreamPartition("kafka", "out", 3)
CLAIM = b"owner/id/1"


def claim_of(owner: str) -> bytes:
    return b'{"format":1,"stream":"s","owner":"%s"}' % owner.encode()


def put(
    state: JobTopic | OwnersTopic, record: tuple[bytes, bytes | None], signer: RecordSigner = OURS, topic: str = ""
) -> None:
    state.add(*record, signer.headers(topic or state.topic, *record))


def job_topic(signer: RecordSigner = OURS) -> JobTopic:
    """A fence, a producer, and progress, all genuine."""
    state = JobTopic("t", signer)
    for record in (fence_record(3), producer_record("t-1", 3), progress(HERE, Progress(7, 1))):
        put(state, record)
    return state


FORGED: dict[str, tuple[tuple[bytes, bytes | None], Headers]] = {}
for _name, _record in {
    "fence": fence_record(9),
    "no fence": (fence_key(3), None),
    "producer": producer_record("t-2", 1),
    "no producer": (producer_key("t-1"), None),
    "progress": progress(HERE, Progress(8, 0)),
    "no progress": (progress(HERE, Progress(8, 0))[0], None),
    "progress that is no JSON": (progress(HERE, Progress(8, 0))[0], b"no json"),
}.items():
    _signed = OURS.headers("t", *_record)
    _mac = _signed[0][1]
    assert isinstance(_mac, bytes)
    FORGED |= {
        f"{_name}: unsigned": (_record, None),
        f"{_name}: another key": (_record, THEIRS.headers("t", *_record)),
        f"{_name}: from another topic": (_record, OURS.headers("t2", *_record)),
        f"{_name}: from another key": (_record, OURS.headers("t", b"fence/4", _record[1])),
        f"{_name}: of another value": (_record, OURS.headers("t", _record[0], b"")),
        f"{_name}: a wrong bit": (_record, [(HEADER, _mac[:-1] + bytes([_mac[-1] ^ 1]))]),
        f"{_name}: cut": (_record, [(HEADER, _mac[:-1])]),
        f"{_name}: null": (_record, [(HEADER, None)]),
        f"{_name}: two": (_record, [(HEADER, _mac), (HEADER, _mac)]),
    }


@pytest.mark.attack
@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_record_changes_nothing_and_is_told(kind: str) -> None:
    state, (record, headers) = job_topic(), FORGED[kind]
    state.add(*record, headers)
    known = job_topic()
    assert (state.fences, state.producers, state.progress) == (known.fences, known.producers, known.progress)
    state.check_fence(WriterIdentity("w", 3), "kafka")
    state.check_known([("out", 3)], "kafka")
    assert "1 that Penstock has not written" in state.foreign.take()


@pytest.mark.attack
@pytest.mark.parametrize("kind", [kind for kind in FORGED if "progress" in kind])
def test_nothing_is_published_where_a_forged_record_may_have_replaced_progress(kind: str) -> None:
    """As after a compaction, which keeps the last record of a key, whoever wrote it."""
    state, (record, headers) = JobTopic("t", OURS), FORGED[kind]
    put(state, fence_record(3))
    state.add(*record, headers)
    state.check_known([("out", 2), ("other", 3)], "kafka")
    with pytest.raises(IncompatibleError, match=r"progress/out/3.*readers could get messages twice.*delete it"):
        state.check_known([("out", 3)], "kafka")
    put(state, progress(HERE, Progress(9, 0)))
    state.check_known([("out", 3)], "kafka")
    assert state.progress == {("out", 3): Progress(9, 0)}


@pytest.mark.attack
def test_an_old_genuine_record_that_is_put_back_does_not_count() -> None:
    state = job_topic()
    put(state, progress(HERE, Progress(9, 4)))
    put(state, progress(HERE, Progress(7, 1)))
    assert state.progress == {("out", 3): Progress(9, 4)}


def test_genuine_records_are_replaced_and_deleted() -> None:
    state = job_topic()
    put(state, (fence_key(3), None))
    put(state, (producer_key("t-1"), None))
    assert (state.fences, state.producers) == (set(), {})
    put(state, (progress(HERE, Progress(7, 1))[0], None))
    assert state.is_empty
    assert state.foreign.take() == ""


def test_a_key_that_changes() -> None:
    both = RecordSigner(RootKeys(OTHER, KEY))
    state = job_topic(both)
    put(state, fence_record(4), THEIRS)
    put(state, fence_record(5), both)
    assert state.fences == {3, 4, 5}
    put(new := JobTopic("t", THEIRS), fence_record(5), both)
    assert new.fences == {5}
    lacks_previous = job_topic(THEIRS)
    with pytest.raises(IncompatibleError, match=r"signed with a key that this job does not have.*key\.previous"):
        lacks_previous.check_known([("out", 3)], "kafka")


def test_records_of_a_time_before_the_key_count_while_they_are_signed() -> None:
    for signer, expected in ((RecordSigner(RootKeys(KEY), takes_unsigned=True), {3}), (OURS, set())):
        state = JobTopic("t", signer)
        put(state, fence_record(3), NOBODY)
        put(state, fence_record(4), THEIRS)
        assert state.fences == expected


def test_a_job_without_its_key_is_told() -> None:
    state = JobTopic("t")
    put(state, fence_record(3), NOBODY)
    with pytest.raises(ConfigError, match=r"`t` is signed, and the configuration has no `job\.root\.key`"):
        put(state, fence_record(4))
    put(state, (b"a later kind", b""))
    with pytest.raises(FencedError):
        state.check_fence(WriterIdentity("w", 2), "kafka")


@pytest.mark.attack
@pytest.mark.parametrize("signer", [OURS, THEIRS, NOBODY], ids=["the owner", "another key", "no key"])
@pytest.mark.parametrize("value", [None, claim_of("stranger"), b"no json"])
def test_a_signed_claim_is_not_replaced_by_what_cannot_be_verified(signer: RecordSigner, value: bytes | None) -> None:
    state = OwnersTopic(signer=signer)
    put(state, (CLAIM, claim_of("job a-1")))
    put(state, (CLAIM, value), NOBODY)
    put(state, (CLAIM, value), RecordSigner(RootKeys("x" * 32)))
    state.add(CLAIM, value, OURS.headers("another topic", CLAIM, value))
    put(state, (b"owner/id/2", claim_of("stranger")), NOBODY)
    assert state.owner("id") == "job a-1"
    assert value is None or "that Penstock has not written" in state.foreign.take()


@pytest.mark.attack
def test_a_claim_that_cannot_be_verified_still_keeps_others_away() -> None:
    for writer in (THEIRS, NOBODY):
        state = OwnersTopic(signer=OURS)
        put(state, (CLAIM, claim_of("job b-1")), writer)
        put(state, (b"owner/id/2", claim_of("job a-1")))
        assert state.owner("id") == "job b-1"
        assert state.foreign.take() == ""


@pytest.mark.attack
def test_a_claim_with_a_wrong_signature_is_nobodys() -> None:
    state = OwnersTopic(signer=OURS)
    put(state, (CLAIM, claim_of("stranger")), topic="another")
    put(state, (b"owner/id/2", claim_of("job a-1")))
    assert state.owner("id") == "job a-1"


@pytest.mark.parametrize("factory", ["kafka", "penstock.system.kafka.system:KafkaSystem"])
def test_the_keys_come_from_the_configuration_and_are_not_shown(factory: str) -> None:
    given = {
        "job.name": "a",
        "job.root.key": OTHER,
        "job.root.key.previous": KEY,
        "systems.kafka.samza.factory": factory,
        "systems.kafka.consumer.bootstrap.servers": "127.0.0.1:1",
    }
    config = load_config(overrides=given, environ={})
    kafka = open_systems(config)["kafka"]
    assert isinstance(kafka, KafkaSystem)
    assert kafka.options.keys == RootKeys(OTHER, KEY)
    assert job_topic(kafka.options.signer).fences == {3}
    shown = repr(kafka) + repr(kafka.options) + repr(config.system("kafka")) + str(config.for_tasks())
    assert OTHER not in shown
    assert KEY not in shown
    assert not parse_options("kafka", {"consumer.bootstrap.servers": "127.0.0.1:1"}).signer.has_key
