"""Messages for exactly-once outputs in checkpoints, and how many of them are published."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from penstock.admin.questions import Answer, Questions, answer_or_problem
from penstock.api.ssp import SystemStreamPartition
from penstock.config.model import JobConfig
from penstock.errors import PenstockError
from penstock.facts import Column
from penstock.outbox.wing import UnpublishedObjects
from penstock.system.base import Progress
from penstock.system.contract.definition import QUERY_SYSTEM
from penstock.system.registry import open_system

_NAMED = Progress(sys.maxsize, 0)
"""The progress of outputs to DataFrames of a query: rows are published once a record names them."""


@dataclass(frozen=True, slots=True)
class OutboxOutput:
    """The messages of a checkpoint for one output."""

    output: Annotated[str, Column("output")]
    messages: Annotated[int, Column("messages", right=True)]
    published: Annotated[int | None, Column("published", right=True)]
    """The messages that are certainly published; None if the system could not be asked."""


Marks = Mapping[SystemStreamPartition, Progress | None]
"""The progress of publishing, by the partitions whose system answered."""


def outbox_outputs(owed: Sequence[UnpublishedObjects], marks: Marks) -> tuple[OutboxOutput, ...]:
    """By output, ascending. What is published in part only, of one object and partition, does not count. Pure.

    Args:
        owed: by record, its objects in the order of their publication.
        marks: how far publishing is; None for a partition where nothing was published.
    """
    messages: dict[str, int] = {}
    published: dict[str, int | None] = {}
    for record in owed:
        chunks: dict[SystemStreamPartition, int] = {}
        for ssp, part in ((ssp, part) for each in record.objects for ssp, part in each.parts.items()):
            name = str(ssp.system_stream)
            chunks[ssp] = chunks.get(ssp, 0) + part.chunks
            messages[name] = messages.get(name, 0) + part.messages
            before, mark = published.get(name, 0), marks.get(ssp)
            if ssp not in marks or before is None:
                published[name] = None
            else:
                is_there = mark is not None and Progress(record.slot, chunks[ssp] - 1) <= mark
                published[name] = before + (part.messages if is_there else 0)
    return tuple(OutboxOutput(name, messages[name], published[name]) for name in sorted(messages))


class AskedMarks:
    """The progress of publishing, asked of the systems with other questions. Nobody is fenced."""

    def __init__(
        self, owed: Iterable[UnpublishedObjects], publisher: str, config: JobConfig, questions: Questions
    ) -> None:
        parts = {ssp for record in owed for each in record.objects for ssp in each.parts}
        self._rows = dict.fromkeys((ssp for ssp in parts if ssp.system == QUERY_SYSTEM), _NAMED)
        self._answers: dict[str, Answer[Marks]] = {}
        for name in sorted({ssp.system for ssp in parts} - {QUERY_SYSTEM}):
            own = sorted(ssp for ssp in parts if ssp.system == name)
            self._answers[name] = questions.put(name, partial(_marks_in, name, own, publisher, config))

    def marks(self) -> Marks:
        """The marks, once the questions are answered. A system without an answer is left out."""
        found: dict[SystemStreamPartition, Progress | None] = {**self._rows}
        for answer in self._answers.values():
            marks = answer_or_problem(answer)
            if not isinstance(marks, PenstockError):
                found.update(marks)
        return found


def read_marks(owed: Iterable[UnpublishedObjects], publisher: str, config: JobConfig) -> Marks:
    """The progress of publishing. A system that does not answer is left out."""
    questions = Questions()
    asked = AskedMarks(owed, publisher, config, questions)
    questions.await_answers()
    return asked.marks()


def _marks_in(name: str, ssps: Sequence[SystemStreamPartition], publisher: str, config: JobConfig) -> Marks:
    with closing(open_system(config.system(name)).admin()) as admin:
        marks = admin.progress_of(publisher, ssps)
    return {ssp: marks.get(ssp) for ssp in ssps}
