"""The records of the checkpoint log, and their written form.

A record is one JSON object: `format`, `kind` (`claim` or `checkpoint`), `body`, and `checksum`, the SHA-256 of the
object's canonical form (keys sorted, no white space, UTF-8) without the `checksum` itself. The body has the fields of a
`Claim` or a `CheckpointRecord` by their names; one that has its default is left out, so the defaults are part of the
format. Ids, streams and partitions are their texts. What a wing keeps in a record is in its section (`sections`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
import orjson

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.documents import Count, Form, dataclass_form, decoding, each, mapping, optional, text
from penstock.checkpoint.format_9 import from_format_9
from penstock.checkpoint.id import CheckpointId
from penstock.checkpoint.sections import Section, Sections, WrittenSection
from penstock.errors import CorruptError, IncompatibleError

FORMAT = 10
OLDEST = 9
"""The oldest format that is read. 1 to 8 were written before the first release."""

T = TypeVar("T")
Detail: TypeAlias = Literal["start", "commit"]
Closing: TypeAlias = Literal["end-of-stream", "drained"]
Ended: TypeAlias = Literal["stopped"] | Closing


@dataclass(frozen=True, slots=True)
class Claim:
    """From here on the log belongs to `epoch`. `writer` is a random token by which a lost reply is recognised."""

    epoch: Count
    run_id: str
    writer: str


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One checkpoint of the whole job: all tasks, all versions, visible together.

    `kind_detail` is `start` for the checkpoint a run writes before its first batch (SEP-18), else `commit`.
    `batch` is the last batch that had ended, `batch_time_ms` the largest batch time so far. `next_offsets` has every
    (task, SSP), including those that nothing was read of. `tasks` maps a task to its serialized values by version:
    `"2"`, and `"1"` if it is configured. `stores` maps each store that is covered to its `StoreLayout`; each needs a
    usable marker in every task's V2 value.
    `ended` says how the run ended with this checkpoint; None: it did not.
    `retained` maps slots to the ids of the older checkpoints that are kept and can be restored as of this record. All
    of them were kept by the checkpoint before. None: everything that one kept, and that one.
    `ended_inputs` are the partitions that have ended: nothing waits for them.
    `reset_operators` are the operators that the start cleared: their own stores and watermarks are not those of the
    checkpoint before. In a commit, they are those that were drained alone: it covers none of their own stores.
    `lost` counts, by input partition, the offsets that were gone before the job had read them. `identities`
    distinguishes each input, changelog and exactly-once output from other streams of its name
    (`SystemAdmin.stream_identity`).
    `moved` are the input partitions whose positions were moved while the state stayed, now or before: the state has
    some of their messages twice, or not at all.
    `quiet_until` are the positions before which no output is sent, because it was sent before; empty once all are
    reached.
    `sections` has what wings keep in the record.
    """

    id: CheckpointId
    parent: CheckpointId | None
    epoch: Count
    run_id: str
    writer: str
    task_count: Count
    batch: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
    batch_time_ms: Count
    stores: Mapping[str, str]
    next_offsets: Mapping[int, Mapping[SystemStreamPartition, int]]
    tasks: Mapping[Count, Mapping[str, str]]
    kind_detail: Detail = "commit"
    partitioner: str = "murmur2"
    ended: Ended | None = None
    consumed_startpoints: tuple[str, ...] = ()
    retained: Mapping[int, CheckpointId] | None = None
    ended_inputs: tuple[SystemStreamPartition, ...] = ()
    reset_operators: tuple[str, ...] = ()
    lost: Mapping[SystemStreamPartition, int] = field(default_factory=dict)
    identities: Mapping[SystemStream, str] = field(default_factory=dict)
    moved: tuple[SystemStreamPartition, ...] = ()
    quiet_until: Mapping[int, Mapping[SystemStreamPartition, int]] = field(default_factory=dict)
    sections: Sections = field(default_factory=Sections)

    def section(self, section: Section[T]) -> T:
        """The value of a section; its default if the record has none.

        Raises:
            CorruptError: the section is damaged.
        """
        with decoding(f"section `{section.name}` of checkpoint {self.id} is damaged"):
            return self.sections.get(section)

    def having(self, section: Section[T], value: T) -> CheckpointRecord:
        """The same record with another value of a section."""
        return replace(self, sections=self.sections.having({section: value}))

    @property
    def closing(self) -> Closing | None:
        """The end at which everything that waited for time fired; None if nothing did."""
        return self.ended if self.ended == "end-of-stream" or self.ended == "drained" else None

    @property
    def drained_operators(self) -> frozenset[str]:
        """The operators that were drained alone at the end of the run."""
        return frozenset() if self.kind_detail == "start" else frozenset(self.reset_operators)

    @property
    def is_closed(self) -> bool:
        """True if everything that waited for event time has fired: no event time counts after it."""
        return self.closing is not None


Record: TypeAlias = Claim | CheckpointRecord


_ID = text(CheckpointId.parse)
_STREAM = text(SystemStream.parse)
_SSP = text(SystemStreamPartition.parse)
_TASK = _SLOT = Form(Count)
_WRITTEN = mapping(Form(str), dataclass_form(WrittenSection))
_SECTIONS = Form(
    _WRITTEN.plain, lambda sections: _WRITTEN.write(sections.written), lambda found: Sections(_WRITTEN.read(found))
)
_FORMS: Mapping[str, Form] = {
    "claim": dataclass_form(Claim),
    "checkpoint": dataclass_form(
        CheckpointRecord,
        id=_ID,
        parent=optional(_ID),
        next_offsets=mapping(_TASK, mapping(_SSP, Form(Count))),
        retained=optional(mapping(_SLOT, _ID)),
        ended_inputs=each(_SSP),
        lost=mapping(_SSP, Form(Count)),
        identities=mapping(_STREAM, Form(str)),
        moved=each(_SSP),
        quiet_until=mapping(_TASK, mapping(_SSP, Form(Count))),
        sections=_SECTIONS,
    ),
}


def encode_record(record: Record) -> bytes:
    """The written form: the same bytes for equal records."""
    kind = "claim" if isinstance(record, Claim) else "checkpoint"
    document = {"format": FORMAT, "kind": kind, "body": _FORMS[kind].encode(record)}
    return _canonical(document | {"checksum": _checksum(document)})


def decode_record(data: bytes, key: str) -> Record:
    """Read a record; `key` names it in errors.

    Raises:
        CorruptError: the bytes are damaged; a record is never skipped, so go back with `--from` or repair the object.
        IncompatibleError: another version of Penstock wrote it, in another format.
    """
    document = _parse(data, key)
    written, form = document["format"], _FORMS.get(document["kind"])
    if not OLDEST <= written <= FORMAT or form is None:
        instead = "set a new `job.id` to begin without state: it was written before the first release"
        advice = f"Run the version that wrote it, or {instead if written < OLDEST else 'a newer one'}"
        raise IncompatibleError(
            f"record `{key}` is a `{document['kind']}` of format {written}; this Penstock reads "
            f"{' and '.join(_FORMS)} of formats {OLDEST} to {FORMAT}. {advice}"
        )
    fits = f"record `{key}` has a checksum that fits but"
    with decoding(f"{fits} a body that does not"):
        body = document["body"]
        is_older = written < FORMAT and form is _FORMS["checkpoint"] and isinstance(body, dict)
        record: Record = form.decode(from_format_9(body) if is_older else body)
    if isinstance(record, CheckpointRecord):
        for section in record.sections.declared():
            with decoding(f"{fits} a section `{section.name}` that does not"):
                record.sections.get(section)
    return record


def _parse(data: bytes, key: str) -> dict[str, Any]:
    """The document with its checksum verified and its `format` and `kind` of the right types."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise CorruptError(f"record `{key}` is damaged: {len(data)} bytes that are not JSON ({error})") from error
    if not isinstance(document, dict):
        raise CorruptError(f"record `{key}` is damaged: it is not a JSON object")
    found = document.pop("checksum", None)
    with decoding(f"record `{key}` is damaged"):
        expected = _checksum(document)
    if found != expected:
        raise CorruptError(f"record `{key}` is damaged: its checksum is `{found}`, its content has `{expected}`")
    if type(document.get("format")) is not int or not isinstance(document.get("kind"), str):
        raise CorruptError(f"record `{key}` names no format and kind")
    return document


def _canonical(document: Mapping[str, object]) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def _checksum(document: Mapping[str, object]) -> str:
    return "sha256:" + hashlib.sha256(_canonical(document)).hexdigest()
