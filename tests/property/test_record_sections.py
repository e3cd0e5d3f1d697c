"""Records with any sections, also those of wings that are not here."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.batch import QUERY, OfferedBatch, QuerySection
from penstock.batch.watermarks import TIME, TimeSection
from penstock.checkpoint.record import CheckpointRecord, Claim, decode_record, encode_record
from penstock.checkpoint.sections import Section, Sections, SectionValues, WrittenSection
from penstock.checkpoint.streams import STREAMS, IntermediateStream, StreamsSection, WrittenRanges
from penstock.checkpoint.task_versions import refuse_unknown
from penstock.drain.requests import DRAIN, DrainSection
from penstock.errors import IncompatibleError
from penstock.outbox.wing import OUTBOX, OutboxObject, OutboxSection, OutputPart, UnpublishedObjects
from penstock.wing import known_sections
from tests.support.stores.checkpoints import checkpoint

OURS: tuple[Section[Any], ...] = (DRAIN, OUTBOX, QUERY, STREAMS, TIME)
LARGEST = 2**63 - 1
RECORD = checkpoint(Claim(3, "run-é", "00ff"), 5)
counts = st.integers(0, LARGEST)
times = st.integers(-LARGEST - 1, LARGEST)
texts = st.text(st.characters(codec="utf-8"))
names = st.text("ab-_", min_size=1, max_size=3)
streams = st.builds(SystemStream, names, st.text("ab.-", min_size=1, max_size=4))
ssps = st.builds(SystemStreamPartition, names, names, st.integers(0, 9))


def few(keys: st.SearchStrategy[Any], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(keys, values, max_size=3)


def tuples(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(values, max_size=3).map(tuple)


objects = st.builds(
    OutboxObject,
    st.text("ab/", min_size=1),
    counts,
    counts,
    st.text("0123456789abcdef", min_size=64, max_size=64),
    few(ssps, st.builds(OutputPart, st.integers(1, LARGEST), counts)),
)
ranges = few(counts, tuples(st.tuples(counts, counts)))
states = st.builds(
    IntermediateStream,
    st.integers(1, LARGEST),
    times,
    few(counts, counts),
    tuples(st.builds(WrittenRanges, counts, times, ranges)),
)
values: st.SearchStrategy[SectionValues] = st.fixed_dictionaries(
    {},
    optional={
        DRAIN: st.builds(DrainSection, tuples(texts)),
        OUTBOX: st.builds(
            OutboxSection,
            tuples(objects),
            tuples(st.builds(UnpublishedObjects, counts, tuples(objects))),
            tuples(texts),
            texts,
        ),
        QUERY: st.builds(QuerySection, st.none() | st.builds(OfferedBatch, texts, st.booleans(), texts)),
        STREAMS: few(streams, st.tuples(states, texts)).map(
            lambda found: StreamsSection(
                {stream: state for stream, (state, _) in found.items()},
                {stream: layout for stream, (_, layout) in found.items()},
            )
        ),
        TIME: st.builds(TimeSection, few(counts, few(ssps, times)), few(texts, times)),
    },
)
json_values = st.recursive(
    st.none() | st.booleans() | times | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
unknown = st.dictionaries(
    st.text("xyz", min_size=1, max_size=3),
    st.builds(WrittenSection, st.dictionaries(texts, json_values, max_size=3), st.booleans()),
    max_size=3,
)


@given(values, unknown)
def test_records_round_trip(given_values: SectionValues, others: dict[str, WrittenSection]) -> None:
    """A section that nobody here knows is the same again too."""
    record = replace(RECORD, sections=Sections(others).having(given_values))
    data = encode_record(record)
    found = decode_record(data, "k")
    assert isinstance(found, CheckpointRecord)
    assert found == record
    assert encode_record(found) == data
    assert encode_record(pickle.loads(pickle.dumps(found))) == data
    for section in OURS:
        assert found.section(section) == given_values.get(section, section.default)
        assert record.section(section) == given_values.get(section, section.default)
    assert found.sections.only(known_sections()) == Sections.of(given_values)


@given(values, unknown)
def test_a_record_is_refused_if_and_only_if_it_needs_what_is_not_here(
    given_values: SectionValues, others: dict[str, WrittenSection]
) -> None:
    record = replace(RECORD, sections=Sections(others).having(given_values))
    needed = sorted(name for name, each in others.items() if each.needed)
    if not needed:
        refuse_unknown(record, known_sections())
        return
    with pytest.raises(IncompatibleError) as refused:
        refuse_unknown(record, known_sections())
    assert str(record.id) in str(refused.value)
    assert all(f"`{name}`" in str(refused.value) for name in needed)
    refuse_unknown(record, [*known_sections(), *needed])


@dataclass(frozen=True, slots=True)
class Marks:
    marks: tuple[int, ...] = ()


def test_a_section_that_is_declared_later_is_read_then() -> None:
    """Nothing of it was looked at before."""
    written = WrittenSection({"marks": [1, 2], "of a later version": None})
    found = decode_record(encode_record(replace(RECORD, sections=Sections({"marks-here": written}))), "k")
    assert isinstance(found, CheckpointRecord)
    marks = Section("marks-here", Marks)
    assert found.section(marks) == Marks((1, 2))
    assert RECORD.section(marks) == Marks()
    assert orjson.loads(encode_record(found))["body"]["sections"] == {"marks-here": {"fields": written.fields}}
