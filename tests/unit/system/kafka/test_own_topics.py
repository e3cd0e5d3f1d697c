"""Records in Penstock's own Kafka topics that somebody else has written."""

from __future__ import annotations

import pytest

from penstock.errors import CorruptError, FencedError
from penstock.system.base import WriterIdentity
from penstock.system.kafka.fences import OwnersTopic
from penstock.system.kafka.job_topic import JobTopic, fence_record, producer_record

pytestmark = pytest.mark.attack

FORGED = (None, b"", b"{}", b"not json", b'{"format":true}', b"\xff", b'{"format":1,"stream":7,"owner":null}')


@pytest.mark.parametrize(
    "key", [b"fence/", b"fence/x", b"fence/-1", b"fence/1e9", b"fence/" + b"9" * 5_000, b"fence/\xff"]
)
@pytest.mark.parametrize("value", FORGED)
def test_a_fence_that_does_not_parse_fences_nobody(key: bytes, value: bytes | None) -> None:
    state = JobTopic("t")
    state.add(*fence_record(3))
    state.add(key, value)
    state.check_fence(WriterIdentity("w", 3), "kafka")
    assert state.fences == {3}
    assert "1 that Penstock has not written, the last one under the key b'fence/" in state.foreign.take()
    assert state.foreign.take() == ""


def test_a_fence_further_ahead_than_any_job_comes_fences_nobody() -> None:
    state = JobTopic("t")
    for epoch in (3, 4, 999_999_999_999):
        state.add(*fence_record(epoch))
    state.check_fence(WriterIdentity("w", 4), "kafka")
    assert "no job comes to epoch 999999999999: this one is in 4" in state.foreign.take()
    with pytest.raises(FencedError, match="epoch 4 has taken over"):
        state.check_fence(WriterIdentity("w", 3), "kafka")


@pytest.mark.parametrize("value", [each for each in FORGED if each is not None])
def test_a_producer_that_does_not_parse_is_an_error(value: bytes) -> None:
    """Left out, it could write on when another epoch has taken over."""
    state = JobTopic("t")
    key, _ = producer_record("t-1", 3)
    with pytest.raises(CorruptError, match="is damaged"):
        state.add(key, value)


@pytest.mark.parametrize("value", [each for each in FORGED if each is not None])
def test_a_claim_that_does_not_parse_is_nobodys(value: bytes) -> None:
    state = OwnersTopic()
    state.add(b"owner/id/1", value)
    state.add(b"owner/id/2", b'{"format":1,"stream":"s","owner":"job a-1"}')
    state.add(b"\xff", b"")
    state.add(b"owner/\xff", value)
    assert state.owner("id") == "job a-1"
    assert state.streams() == ["s"]
    assert "2 that Penstock has not written" in state.foreign.take()


@pytest.mark.parametrize("later", [None, b'{"format":1,"stream":"s","owner":"stranger"}', b"no json"])
def test_no_later_record_takes_a_claim_back_or_replaces_it(later: bytes | None) -> None:
    state = OwnersTopic()
    state.add(b"owner/id/1", b'{"format":1,"stream":"s","owner":"job a-1"}')
    state.add(b"owner/id/1", later)
    state.add(b"owner/id/2", b'{"format":1,"stream":"s","owner":"stranger"}')
    assert state.owner("id") == "job a-1"


def test_a_claim_of_a_newer_version_is_a_matter_of_its_topic() -> None:
    state = OwnersTopic()
    state.add(b"owner/id/1", b'{"format":2}')
    state.add(b"owner/id/2", b'{"format":1,"stream":"s","owner":"job a-1"}')
    state.add(b"owner/other/1", b'{"format":1,"stream":"s","owner":"job a-1"}')
    assert state.owner("id") == "a job of a newer Penstock"
    assert state.owner("other") == "job a-1"


def test_a_flood_is_one_message_of_bounded_length() -> None:
    state = OwnersTopic()
    for number in range(10_000):
        state.add(b"owner/id/%d" % number + b"x" * 1_000, b"[" * 1_000)
    said = state.foreign.take()
    assert said.startswith("10000 that")
    assert len(said) < 1_000
