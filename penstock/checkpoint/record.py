"""The records of the checkpoint log, their written form, and labels. Pure.

A record is one JSON object: `format`, `kind` (`claim`, `checkpoint` or `label`), `body`, and `checksum`, the SHA-256 of
the object's canonical form (keys sorted, no white space, UTF-8) without the `checksum` itself. The body has the fields
of a `Claim`, a `CheckpointRecord` or a `Label` by their names; one that has its default is left out, so the defaults
are part of the format. Ids, streams and partitions are their texts. What a wing keeps in a record is in its section
(`sections`). In format 9, before there were sections, every field of every wing was a field of the record.

A checkpoint has an id (SEP-28, `CheckpointId`), and the layout of each store as a text, which a start compares with
the application. An epoch begins with an `Origin`: a checkpoint, and the stores that are restored from it.

A label is a name that keeps a checkpoint beyond `task.checkpoint.retained`, and a separate record (`Label`), so that it
can be set while a driver runs. The next checkpoint takes over all labels that hold, in its section `labels`, and
retains their checkpoints. So the last checkpoint and the labels behind it are enough to know them all. A label before
the last checkpoint that this one did not take over never held: it was put into a slot that had been freed, or its
checkpoint was lost.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
import orjson

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.documents import Count, Form, dataclass_form, decoding, each, mapping, optional, text
from penstock.checkpoint.sections import Section, Sections, WrittenSection
from penstock.errors import ConfigError, CorruptError, IncompatibleError

_SECTIONS_OF_9 = {
    "drain": {"drains": "answered"},
    "outbox": {"outbox": "objects", "unpublished": "unpublished", "keepers": "keepers", "publisher": "publisher"},
    "query": {"offered": "offered"},
    "streams": {"intermediate": "streams", "intermediate_layout": "layouts"},
    "time": {"event_times": "event_times", "watermarks": "watermarks"},
}
"""Section → field of the record → field of the section."""
_NEEDED_OF_9 = _SECTIONS_OF_9.keys() - {"drain"}
_MOVED_SINCE_9 = {field for own in _SECTIONS_OF_9.values() for field in own}


def from_format_9(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of the present format that says what a body of format 9 says."""
    sections = {
        name: {"fields": fields, "needed": name in _NEEDED_OF_9}
        for name, own in _SECTIONS_OF_9.items()
        if (fields := {now: body[before] for before, now in own.items() if before in body})
    }
    return {name: value for name, value in body.items() if name not in _MOVED_SINCE_9} | {"sections": sections}


_ID_FORM = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
_NANOS = 1_000_000


@dataclass(frozen=True, slots=True, order=True)
class CheckpointId:
    """Written `<epoch millis>-<nanos % 1000000>` without padding, as Samza does; compared as two numbers."""

    millis: int
    nanos: int

    def __str__(self) -> str:
        return f"{self.millis}-{self.nanos}"

    @classmethod
    def parse(cls, text: str) -> CheckpointId:
        """Read the written form. Raises ConfigError if the text has another one."""
        match = _ID_FORM.fullmatch(text)
        if match is None:
            raise ConfigError(f"`{text}` is not a checkpoint id, which looks like `1614147487244-33577`")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def next_after(cls, last: CheckpointId | None, now_ms: int, nanos: int) -> CheckpointId:
        """An id for now, and at least one millisecond after `last`, however far the clock went back.

        `now_ms` is the wall clock in epoch milliseconds, `nanos` any counter of nanoseconds.
        """
        millis = now_ms if last is None else max(now_ms, last.millis + 1)
        return cls(millis, nanos % _NANOS)


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
    def streams(self) -> frozenset[SystemStream]:
        """The streams that it has positions in."""
        return frozenset(ssp.system_stream for own in self.next_offsets.values() for ssp in own)

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


@dataclass(frozen=True, slots=True)
class Label:
    """From here on `name` is a name of the checkpoint in `slot`, which is kept as long as it has one. Without a
    checkpoint, the name is taken off.

    Anybody may append one, while a driver runs: it says nothing about who owns the job. `writer` is a random token by
    which a lost reply is recognised. `made_ms` is the time of the command, in epoch milliseconds.
    """

    name: str
    writer: str
    made_ms: Count
    checkpoint: CheckpointId | None = None
    slot: Count = 0


Record: TypeAlias = Claim | CheckpointRecord | Label


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
    "label": dataclass_form(Label, checkpoint=optional(_ID)),
}
_KINDS: Mapping[type[Record], str] = {Claim: "claim", CheckpointRecord: "checkpoint", Label: "label"}


def encode_record(record: Record) -> bytes:
    """The written form: the same bytes for equal records."""
    kind = _KINDS[type(record)]
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


@dataclass(frozen=True, slots=True)
class Origin:
    """A checkpoint, and the stores that are restored from it. All others begin empty, each backend with a base."""

    record: CheckpointRecord | None = None
    """The next checkpoint is made on top of it. None: there is no checkpoint."""
    cleared: bool = False
    """True if the checkpoint counts, but no store is restored."""
    emptied: frozenset[str] = frozenset()
    """Stores of the checkpoint that begin empty."""

    @property
    def restored(self) -> tuple[str, ...]:
        """The stores that are restored."""
        if self.record is None or self.cleared:
            return ()
        return tuple(store for store in self.record.stores if store not in self.emptied)


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")
_LATEST = re.compile(r"latest(?:-([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class Labelled:
    """The checkpoint that a label names, its slot, and the time at which the label was set, in epoch milliseconds.
    `writer` distinguishes it from a label of the same name that was set before or since."""

    checkpoint: CheckpointId
    slot: Count
    made_ms: Count
    writer: str


@dataclass(frozen=True, slots=True)
class LabelsSection:
    """The labels that hold as of a checkpoint, by name."""

    names: Mapping[str, Labelled] = field(default_factory=dict)


LABELS = Section(
    "labels",
    LabelsSection,
    dataclass_form(
        LabelsSection,
        names=mapping(Form(str), dataclass_form(Labelled, checkpoint=text(CheckpointId.parse))),
    ),
    needed=True,
)


def check_name(name: str) -> None:
    """Raises ConfigError if it cannot be the name of a label. `latest` and `latest-1` are checkpoints by themselves."""
    if _NAME.fullmatch(name) is None or name.startswith("latest"):
        raise ConfigError(
            f"`{name}` cannot be a label: a label has up to 64 letters, digits, `.`, `_` and `-`, begins with a "
            "letter, and does not begin with `latest`"
        )


def behind_latest(text: str) -> int | None:
    """The number of checkpoints between the latest one and the one that `latest` or `latest-N` names; None for any
    other text."""
    match = _LATEST.fullmatch(text)
    return None if match is None else int(match[1] or 0)


def labels(records: Mapping[int, Record]) -> dict[str, Labelled]:
    """The labels that hold at the end of a log, by name: those of the last checkpoint, and what was set and taken off
    since."""
    found: dict[str, Labelled] = {}
    since: list[Label] = []
    for slot in sorted(records, reverse=True):
        record = records[slot]
        if isinstance(record, CheckpointRecord):
            found = dict(record.section(LABELS).names)
            break
        if isinstance(record, Label):
            since.append(record)
    for label in reversed(since):
        if label.checkpoint is None:
            found.pop(label.name, None)
        else:
            found[label.name] = Labelled(label.checkpoint, label.slot, label.made_ms, label.writer)
    return found


def taking_over(
    record: CheckpointRecord, names: Mapping[str, Labelled], retained: Mapping[int, CheckpointId]
) -> CheckpointRecord:
    """The record that takes the labels over and retains their checkpoints, as far as the log still retains those."""
    held = {name: each for name, each in names.items() if retained.get(each.slot) == each.checkpoint}
    made = record.having(LABELS, LabelsSection(held))
    if record.retained is None:
        return made
    return replace(made, retained={**record.retained, **{each.slot: each.checkpoint for each in held.values()}})
