"""Questions to systems, asked side by side."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from penstock.admin.questions import Questions, answer_or_problem
from penstock.base.retry import check_interrupt
from penstock.errors import NotFoundError, SystemAwayError


def test_one_that_hangs_delays_no_other() -> None:
    questions, hanging, released = Questions(within_s=0.2), threading.Event(), threading.Event()

    def hang() -> int:
        hanging.set()
        released.wait()
        return 0

    away = [questions.put("east", hang) for _ in range(5)]
    there = [questions.put("local", partial(int, number)) for number in range(5)]
    began = time.monotonic()
    questions.await_answers()
    assert time.monotonic() - began < 5
    released.set()
    assert hanging.is_set()
    assert [answer_or_problem(each) for each in there] == list(range(5))
    for each in away:
        with pytest.raises(SystemAwayError, match=r"the system `east` did not answer within 0\.2 s"):
            each.result()


def test_a_question_that_waits_for_nobody_ends() -> None:
    questions, ended = Questions(within_s=0.05), threading.Event()

    def ask() -> int:
        try:
            while True:
                check_interrupt("the ends could not be read")
                time.sleep(0.01)
        finally:
            ended.set()

    answer = questions.put("east", ask)
    questions.await_answers()
    assert ended.wait(30)
    assert isinstance(answer_or_problem(answer), SystemAwayError)


def test_more_questions_than_threads() -> None:
    questions = Questions()
    answers = [questions.put("local", partial(int, number)) for number in range(200)]
    questions.await_answers()
    assert [each.result() for each in answers] == list(range(200))


def test_errors_are_the_answers_of_their_own_questions() -> None:
    def ask() -> int:
        raise NotFoundError("the stream `local.a` does not exist")

    questions = Questions(within_s=None)
    failed, wrong, good = questions.put("local", ask), questions.put("local", lambda: 1 // 0), questions.put("a", int)
    questions.await_answers()
    assert str(answer_or_problem(failed)) == "the stream `local.a` does not exist"
    assert answer_or_problem(good) == 0
    with pytest.raises(ZeroDivisionError):
        answer_or_problem(wrong)
