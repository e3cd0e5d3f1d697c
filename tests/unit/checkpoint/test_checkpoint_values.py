"""Checkpoint ids, Samza's values, and the written form of log records, against golden files that never change."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.time.firing import END_OF_TIME, NO_WATERMARK
from penstock.batch.batch import QUERY, OfferedBatch, QuerySection
from penstock.batch.watermarks import TIME, TimeSection
from penstock.checkpoint import record as record_module
from penstock.checkpoint.record import (
    CheckpointId,
    CheckpointRecord,
    Claim,
    Label,
    Record,
    decode_record,
    encode_record,
)
from penstock.checkpoint.sections import Section, Sections, SectionValues
from penstock.checkpoint.streams import STREAMS, IntermediateStream, StreamsSection, WrittenRanges
from penstock.checkpoint.task_values import Checkpoint, CheckpointV1, CheckpointV2
from penstock.checkpoint.task_versions import format_of, markers_of
from penstock.drain.requests import DRAIN, DrainSection
from penstock.errors import ConfigError, CorruptError, IncompatibleError
from penstock.job.paths import JobPaths, versioned_name
from penstock.outbox.wing import OUTBOX, OutboxObject, OutboxSection, OutputPart, UnpublishedObjects
from tests.support.tools.places import GOLDEN

SSP = SystemStreamPartition
ID = CheckpointId(1614147487244, 33577)

V1 = CheckpointV1(
    {
        SSP("kafka", "orders", 0): "42",
        SSP("kafka", "orders-changelog", 3): "1614147487244-33577:1017",
        SSP("local", "my.dotted.stream", 11): None,
    }
)
V2 = CheckpointV2(
    ID,
    {SSP("kafka", "orders", 0): "42", SSP("local", "my.dotted.stream", 11): "7"},
    {
        "changelog-files": {"counts": '{"version":3,"epoch":2}'},
        "org.apache.samza.storage.KafkaChangelogStateBackendFactory": {
            "counts": '{"version":1,"changelog-ssp":{"system":"kafka","stream":"orders-changelog","partition":3},'
            '"changelog-offset":"1017"}',
            "windows": "marker é",
        },
    },
)
CHECKPOINTS: list[Checkpoint] = [V1, V2]
CLAIM = Claim(epoch=3, run_id="run-é", writer="00ff")
RECORD = CheckpointRecord(
    id=ID,
    parent=CheckpointId(1614147480000, 1),
    epoch=3,
    run_id="run-é",
    writer="00ff",
    task_count=11,
    batch=17,
    batch_time_ms=1614147487000,
    stores={"counts": "process-1 string json"},
    next_offsets={0: {SSP("kafka", "orders", 0): 42}, 10: {SSP("local", "my.dotted.stream", 10): 0}},
    tasks={
        0: {
            "1": "{}",
            "2": '{"checkpoint-id":"1614147487244-33577","input-offsets":{"kafka.orders.0":"41"},'
            '"state-checkpoint-markers":{"blob":{"counts":"index-9"}},"version":2}',
        },
        10: {},
    },
    ended="drained",
    consumed_startpoints=("4f7c",),
)
RETAINING = replace(
    RECORD,
    ended=None,
    retained={12: CheckpointId(1614147480000, 1)},
    ended_inputs=(SSP("local", "my.dotted.stream", 10),),
)
TIMES = TimeSection(
    {0: {SSP("kafka", "orders", 0): -1500}, 10: {SSP("local", "my.dotted.stream", 10): 1614147486000}},
    {"input-1": -1500, "windows": END_OF_TIME},
)
UNREAD = (
    WrittenRanges(15, -1500, {0: ((7, 9), (12, 20))}),
    WrittenRanges(17, 1614147486000, {0: ((20, 21),), 10: ((3, 4),)}),
)
BETWEEN, EMPTY_STREAM = SystemStream("kafka", "trips-by-tail"), SystemStream("local", "my.dotted.stream")
OWN = OutboxObject(
    "sums/1/outbox/3-0000001-0",
    0,
    1234,
    "ab" * 32,
    {SSP("kafka", "out", 0): OutputPart(2, 700), SSP("local", "my.dotted.stream", 1): OutputPart(1, 0)},
)
OLDER = OutboxObject("sums/1/outbox/2-0000000-1", 1, 10, "01" * 32, {SSP("kafka", "out", 1): OutputPart(1, 5)})
STREAMS_BETWEEN = StreamsSection(
    {
        BETWEEN: IntermediateStream(2, -2000, {0: 7, 10: 3}, UNREAD),
        EMPTY_STREAM: IntermediateStream(1, NO_WATERMARK, {0: 0}),
    },
    {BETWEEN: "by-tail string json", EMPTY_STREAM: "by-n bytes bytes"},
)
VALUES: SectionValues = {
    DRAIN: DrainSection(("9c3f0b6e-2c1d-4d8e-9f3a-5b7c1e2d3f40",)),
    OUTBOX: OutboxSection((OWN,), (UnpublishedObjects(11, (OLDER,)),), ("kafka", "local"), "sums-1-0123456789ab"),
    QUERY: QuerySection(OfferedBatch("ab" * 32, has_output=False, schema="n bigint")),
    STREAMS: STREAMS_BETWEEN,
    TIME: TIMES,
}
WHOLE = replace(
    RETAINING,
    kind_detail="start",
    partitioner="another",
    ended="drained",
    retained={1: CheckpointId(1614147400000, 7), 12: CheckpointId(1614147480000, 1)},
    reset_operators=("hours", "trips"),
    lost={SSP("kafka", "in", 3): 17},
    identities={SystemStream("kafka", "in"): "b2f1"},
    moved=(SSP("kafka", "in", 3),),
    quiet_until={0: {SSP("kafka", "orders", 0): 21}},
    sections=Sections.of(VALUES),
)
"""A record without a default in any field."""
BARE = replace(RECORD, ended=None, consumed_startpoints=())
OPTIONAL = {each.name: getattr(WHOLE, each.name) for each in fields(CheckpointRecord) if not getattr(BARE, each.name)}


def test_golden_v1() -> None:
    text = (GOLDEN / "checkpoint-v1.json").read_text()
    assert CheckpointV1.decode(text) == V1
    assert V1.encode() == text


def test_golden_v2() -> None:
    text = (GOLDEN / "checkpoint-v2.json").read_text()
    assert CheckpointV2.decode(text) == V2
    assert V2.encode() == text


LABEL = Label("before-deploy", "0123456789abcdef0123456789abcdef", 1614147487300, CheckpointId(1614147487244, 33577), 4)


LATER: dict[Section[Any], dict[str, Any]] = {TIME: {"inputs": {"input-1": SystemStream("kafka", "orders")}}}
"""The fields that are newer than the golden files."""


@pytest.mark.parametrize(("name", "record"), [("log-record", WHOLE), ("log-claim", CLAIM), ("log-label", LABEL)])
def test_golden_log_records(name: str, record: Record) -> None:
    data = (GOLDEN / f"{name}-format10.json").read_bytes()
    assert decode_record(data, "k") == record
    assert encode_record(record) == data


@pytest.mark.parametrize(("name", "record"), [("log-record", WHOLE), ("log-claim", CLAIM)])
def test_golden_log_records_of_the_format_before(name: str, record: Claim | CheckpointRecord) -> None:
    """They are equal records, down to the written form of their sections."""
    assert decode_record((GOLDEN / f"{name}-format9.json").read_bytes(), "k") == record


def test_the_golden_log_record_has_every_field_and_section() -> None:
    body = orjson.loads((GOLDEN / "log-record-format10.json").read_bytes())["body"]
    assert body.keys() == {each.name for each in fields(CheckpointRecord)}
    assert sorted(body["sections"]) == ["drain", "outbox", "query", "streams", "time"]
    for section, value in VALUES.items():
        names = {each.name for each in fields(value)} - LATER.get(section, {}).keys()
        assert body["sections"][section.name]["fields"].keys() == names


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_field_is_left_out_where_it_has_its_default(name: str) -> None:
    record = replace(BARE, **{name: OPTIONAL[name]})
    assert decode_record(encode_record(record), "k") == record
    body = orjson.loads(encode_record(record))["body"]
    assert body.keys() & OPTIONAL.keys() == {name}


@pytest.mark.parametrize("section", VALUES, ids=lambda each: each.name)
def test_a_section_and_its_fields_are_left_out_where_they_have_their_defaults(section: Section[Any]) -> None:
    for each in fields(section.default):
        if each.name == "streams":
            continue  # not without a layout
        own = LATER.get(section, {}).get(each.name, getattr(VALUES[section], each.name))
        value = replace(section.default, **{each.name: own})
        record = BARE.having(section, value)
        assert decode_record(encode_record(record), "k") == record
        written = orjson.loads(encode_record(record))["body"]["sections"]
        assert (written.keys(), written[section.name]["fields"].keys()) == ({section.name}, {each.name})
        assert record.having(section, section.default) == BARE
    assert "sections" not in orjson.loads(encode_record(BARE))["body"]


@pytest.mark.parametrize("written", [9, 10])
def test_an_intermediate_stream_without_a_layout_is_damage(written: int) -> None:
    document = orjson.loads((GOLDEN / f"log-record-format{written}.json").read_bytes())
    if written == 9:
        document["body"]["intermediate_layout"] = {}
    else:
        document["body"]["sections"]["streams"]["fields"]["layouts"] = {}
    with pytest.raises(
        CorruptError, match=r"section `streams` that does not: .*no layout of the intermediate stream `"
    ):
        decode_record(sealed(document), "k")


@pytest.mark.parametrize("written", [9, 10])
def test_damage_in_a_section_says_which(written: int) -> None:
    document = orjson.loads((GOLDEN / f"log-record-format{written}.json").read_bytes())
    own = document["body"] if written == 9 else document["body"]["sections"]["outbox"]["fields"]
    own["unpublished"][0]["slot"] = "eleven"
    where = r"\$\.unpublished\[0\]\.slot"
    with pytest.raises(CorruptError, match=rf"record `k` .* a section `outbox` that does not: .*{where}"):
        decode_record(sealed(document), "k")


def sealed(document: dict[str, Any]) -> bytes:
    """The document with a checksum that fits."""
    document.pop("checksum", None)
    return orjson.dumps(document | {"checksum": record_module._checksum(document)})


def test_v1_ignores_outer_keys_and_key_buckets() -> None:
    fields = '"system":"s","stream":"t","partition":"1","keyBucket":"-1","offset":"5"'
    assert CheckpointV1.decode(f'{{"x":{{{fields}}}}}') == CheckpointV1({SSP("s", "t", 1): "5"})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"x":null}',
        '{"x":{"system":"s","stream":"t","partition":"1"}}',
        '{"x":{"system":"s","stream":null,"partition":"1","offset":"5"}}',
        '{"x":{"system":"s","stream":"t","partition":"one","offset":"5"}}',
        '{"x":{"system":"s","stream":"t","partition":"1","offset":5}}',
    ],
)
def test_damaged_v1_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptError, match="V1"):
        CheckpointV1.decode(text)


def test_v2_ignores_unknown_properties_and_key_buckets() -> None:
    text = '{"checkpoint-id":"1-2","input-offsets":{"s.a.b.3.-1":"5"},"state-checkpoint-markers":{},"later":1}'
    assert CheckpointV2.decode(text) == CheckpointV2(CheckpointId(1, 2), {SSP("s", "a.b", 3): "5"}, {})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"checkpoint-id":"1-2","input-offsets":{}}',
        '{"checkpoint-id":null,"input-offsets":{},"state-checkpoint-markers":{}}',
        '{"checkpoint-id":"1-2","input-offsets":null,"state-checkpoint-markers":{}}',
        '{"checkpoint-id":"1-2","input-offsets":{},"state-checkpoint-markers":null}',
        '{"checkpoint-id":"1-2","input-offsets":{"s.t.0":null},"state-checkpoint-markers":{}}',
        '{"checkpoint-id":"1-2","input-offsets":{"s.t":"1"},"state-checkpoint-markers":{}}',
        '{"checkpoint-id":"1-2","input-offsets":{},"state-checkpoint-markers":{"f":{"s":null}}}',
        '{"checkpoint-id":"12","input-offsets":{},"state-checkpoint-markers":{}}',
    ],
)
def test_damaged_v2_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptError, match="V2"):
        CheckpointV2.decode(text)


def test_v2_refuses_null_offsets_as_samza_does() -> None:
    value = replace(V2, input_offsets={SSP("s", "t", 0): None})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=r"s\.t\.0"):
        value.encode()


def test_ids_compare_as_numbers_and_round_trip() -> None:
    assert CheckpointId.parse("9-10") > CheckpointId.parse("9-9")
    assert CheckpointId.parse("10-0") > CheckpointId.parse("9-999999")
    assert str(CheckpointId.parse("1614147487244-33577")) == "1614147487244-33577"


@pytest.mark.parametrize("text", ["", "-", "1", "1-", "-1-2", "1-2-3", "a-b", " 1-2", "1-2\n", "1-²"])
def test_malformed_ids(text: str) -> None:
    with pytest.raises(ConfigError, match="1614147487244-33577"):
        CheckpointId.parse(text)


@given(st.integers(0, 2**45), st.integers(0, 999_999), st.integers(0, 2**45), st.integers(0, 2**62))
def test_the_next_id_is_a_millisecond_later_whatever_the_clock(ms: int, nanos: int, now: int, counter: int) -> None:
    last = CheckpointId(ms, nanos)
    after = CheckpointId.next_after(last, now, counter)
    assert after.millis >= max(last.millis + 1, now)
    assert after.nanos == counter % 1_000_000
    assert CheckpointId.next_after(None, now, counter) == CheckpointId(now, counter % 1_000_000)


names = st.text("abc.-_é", min_size=1)
ssps = st.builds(SSP, st.text("abc-_", min_size=1), names, st.integers(0, 10_000))


@given(st.dictionaries(ssps, st.text()), st.dictionaries(st.text(), st.dictionaries(st.text(), st.text())))
def test_v2_round_trips(offsets: dict[SSP, str], state: dict[str, dict[str, str]]) -> None:
    value = CheckpointV2(ID, offsets, state)
    assert CheckpointV2.decode(value.encode()) == value


@given(st.dictionaries(ssps, st.none() | st.text()))
def test_v1_round_trips(offsets: dict[SSP, str | None]) -> None:
    assert CheckpointV1.decode(CheckpointV1(offsets).encode()) == CheckpointV1(offsets)


@given(st.dictionaries(st.integers(0, 99), st.dictionaries(ssps, st.integers(0, 2**63 - 1))))
def test_records_round_trip(next_offsets: dict[int, dict[SSP, int]]) -> None:
    record = replace(RECORD, next_offsets=next_offsets, parent=None, ended=None, retained={})
    assert decode_record(encode_record(record), "k") == record


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    data = encode_record(CLAIM)
    damaged = [data[:size] for size in range(len(data))]
    damaged += [
        data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] for at in range(len(data)) for bit in range(8)
    ]
    for bad in damaged:
        with pytest.raises(CorruptError, match="some/key"):
            decode_record(bad, "some/key")


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({"format": 8}, "or set a new `job.id` to begin without state"),
        ({"format": 1, "kind": "claim"}, "or set a new `job.id` to begin without state"),
        ({"format": 11}, "or a newer one"),
        ({"kind": "later"}, "or a newer one"),
    ],
)
def test_another_format_is_incompatible_not_corrupt(change: dict[str, Any], advice: str) -> None:
    data = sealed(orjson.loads(encode_record(RECORD)) | change)
    with pytest.raises(IncompatibleError, match=f"some/key.*this Penstock reads .* of formats 9 to 10.* {advice}"):
        decode_record(data, "some/key")


def test_markers_come_from_the_v2_value() -> None:
    assert markers_of(RECORD, 0) == {"blob": {"counts": "index-9"}}
    assert markers_of(RECORD, 10) == markers_of(RECORD, 99) == {}


def test_every_key_of_a_job() -> None:
    paths = JobPaths("flights", "1")
    assert paths.uid == "flights-1/uid"
    assert paths.checkpoint(12) == "flights-1/checkpoints/00000000000000000012.json"
    assert paths.slot_of(paths.checkpoint(12)) == 12
    assert paths.slot_of("flights-1/checkpoints/12.json") is None
    assert paths.slot_of("other-1/checkpoints/00000000000000000012.json") is None
    assert paths.lease == "flights-1/metadata/lease/driver"
    assert paths.delta("counts", 3, 12, 2) == "flights-1/state/counts/3/12.2.delta"
    assert paths.snapshot("counts", 3, 12, 2) == "flights-1/state/counts/3/12.2.zip"
    assert versioned_name(paths.delta("counts", 3, 12, 2)) == (12, 2, "delta")
    assert versioned_name("flights-1/state/counts/3/012.2.delta") is None


@given(st.text(min_size=1, max_size=20))
def test_any_text_is_a_metadata_key(key: str) -> None:
    paths = JobPaths("flights", "1")
    path = paths.metadata("startpoints", key)
    assert path.count("/") == 3
    assert paths.metadata_key("startpoints", path) == key


@pytest.mark.parametrize(
    ("name", "job_id"), [("", "1"), ("a/b", "1"), ("a", "1-2"), ("..", "1"), ("a", ""), ("a b", "1")]
)
def test_job_names_that_could_meet_another_jobs_keys(name: str, job_id: str) -> None:
    with pytest.raises(ConfigError):
        JobPaths(name, job_id)


def test_both_versions_are_checkpoints() -> None:
    """SEP-28's common type: whoever has one need not know its version to read it."""
    assert [checkpoint.version for checkpoint in CHECKPOINTS] == [1, 2]
    for checkpoint in CHECKPOINTS:
        decode = CheckpointV1.decode if checkpoint.version == 1 else CheckpointV2.decode
        assert decode(checkpoint.encode()) == checkpoint
        assert checkpoint.offsets[SSP("kafka", "orders", 0)] == "42"
    with pytest.raises(ConfigError, match="no checkpoint version 3"):
        format_of(3)
