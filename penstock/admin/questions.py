"""Questions to systems: several at once, and within one time limit."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from penstock.base.retry import interruptible
from penstock.errors import PenstockError, SystemAwayError

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
