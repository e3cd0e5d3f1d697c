"""Labels: names that keep a checkpoint beyond `task.checkpoint.retained`. Pure.

A label is a separate record (`Label`), so that it can be set while a driver runs. The next checkpoint takes over all
labels that hold, in its section `labels`, and retains their checkpoints. So the last checkpoint and the labels behind
it are enough to know them all. A label before the last checkpoint that this one did not take over never held: it was
put into a slot that had been freed, or its checkpoint was lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock.base.documents import Count, Form, dataclass_form, mapping, text
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Label, Record
from penstock.checkpoint.sections import Section
from penstock.errors import ConfigError

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
