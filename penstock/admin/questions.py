"""Questions to systems: several at once, and within one time limit.

One of them is how many of the messages that checkpoints have for exactly-once outputs are published.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Protocol, TypeVar

from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import interruptible
from penstock.config.model import JobConfig
from penstock.errors import PenstockError, SystemAwayError
from penstock.facts import Column
from penstock.outbox.wing import UnpublishedObjects
from penstock.system.base import Progress
from penstock.system.contract.definition import QUERY_SYSTEM
from penstock.system.registry import open_system

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
ANSWERS_S = 5.0
"""The time limit of somebody who looks at a job."""
_AT_ONCE = 32
_END_S = 1.0
"""Threads whose answers are too late get so long to end. Only then does the process that asked end."""


class Answer(Protocol[V_co]):
    """The answer to a question, once the questions are answered."""

    def result(self) -> V_co:
        """The answer. Raises the error that came instead."""


class Questions:
    """Asks systems side by side, on threads of its own, so that one that is away does not delay the others.

    Args:
        within_s: the time limit of `await_answers` for all questions together, in seconds; None: the systems have their
            own limits.

    Example:
        >>> questions = Questions()
        >>> answers = [questions.put("local", lambda: 7), questions.put("local", lambda: 8)]
        >>> questions.await_answers()
        >>> [answer.result() for answer in answers]
        [7, 8]
    """

    def __init__(self, within_s: float | None = ANSWERS_S) -> None:
        self._within_s = within_s
        self._waiting: deque[Callable[[], None]] = deque()
        self._asked: list[tuple[str, Future[Any]]] = []
        self._is_over = threading.Event()

    def put(self, system: str, ask: Callable[[], V]) -> Answer[V]:
        """Add a question to a system. Its answer is there once `await_answers` has returned.

        Args:
            system: the system's name, for the error.
            ask: the question. Called on another thread, by one thread alone.
        """
        answer: Future[V] = Future()

        def run() -> None:
            with suppress(InvalidStateError):  # it comes too late
                try:
                    answer.set_result(ask())
                except BaseException as error:
                    answer.set_exception(error)

        self._waiting.append(run)
        self._asked.append((system, answer))
        return answer

    def await_answers(self) -> None:
        """Ask everything, and wait for all answers. What has none in time is a SystemAwayError."""
        # A thread that an unresponsive system holds must not keep the process from ending.
        count = min(_AT_ONCE, len(self._waiting))
        threads = [threading.Thread(target=self._work, name="question", daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        deadline = None if self._within_s is None else time.monotonic() + self._within_s
        for system, answer in self._asked:
            if not _is_done(answer, deadline):
                self._is_over.set()
                with suppress(InvalidStateError):
                    answer.set_exception(
                        SystemAwayError(f"the system `{system}` did not answer within {self._within_s:g} s")
                    )
        end = time.monotonic() + _END_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _work(self) -> None:
        with interruptible(self._is_over):
            while not self._is_over.is_set():
                try:
                    run = self._waiting.popleft()
                except IndexError:
                    return
                run()


def answer_or_problem(answer: Answer[V]) -> V | PenstockError:
    """The answer of a question, or the error that it has instead.

    Example:
        >>> questions = Questions()
        >>> answer = questions.put("local", lambda: 7)
        >>> questions.await_answers()
        >>> answer_or_problem(answer)
        7
    """
    try:
        return answer.result()
    except PenstockError as error:
        return error


def _is_done(answer: Future[Any], deadline: float | None) -> bool:
    try:
        answer.exception(None if deadline is None else max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        return False
    return True


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
