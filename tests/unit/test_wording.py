"""Counts and lists in sentences."""

from __future__ import annotations

import pytest

from penstock.engine.run_view import RunView
from penstock.wording import counted, listed


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "message", "0 messages"),
        (1, "message", "1 message"),
        (2000, "entry", "2,000 entries"),
        (1, "entry", "1 entry"),
    ],
)
def test_a_count_agrees_with_its_noun(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text


def test_a_list_ends_with_and() -> None:
    assert [listed(list("abc"[:n])) for n in range(4)] == ["", "a", "a and b", "a, b and c"]


def test_a_run_of_one_message() -> None:
    view = RunView("running", done=1, total=1, rate=None, batch=None, checkpoint=None, restored_bytes=0)
    assert str(view) == "running, 1 of 1 message"
