"""Results of lives, and how their differences are told."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.testing.simulation.results import Reference, Results, first_difference, text_of


@dataclass
class Point:
    x: float
    tags: set[str]


class Plain:
    def __init__(self) -> None:
        self.b, self.a = 2, 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"x", "y", "z"}, {"z", "y", "x"}),
        (0.1 + 0.2, 0.3),
        (Point(0.1 + 0.2, {"a", "b"}), Point(0.3, {"b", "a"})),
        (Plain(), Plain()),
        ([{"a": (1, 2)}], [{"a": (1, 2)}]),
    ],
)
def test_equal_values_have_equal_words(one: object, other: object) -> None:
    assert text_of(one) == text_of(other)


@pytest.mark.parametrize(("one", "other"), [([1, 2], [2, 1]), ((1,), [1]), ("1", 1), (None, "None"), (0.1, 0.11)])
def test_other_values_have_other_words(one: object, other: object) -> None:
    assert text_of(one) != text_of(other)


CALM = Results({"out": [("'a'", "1"), ("'a'", "2"), ("None", "7")]}, {"s": {"'a'": "2", "'b'": "1"}})


def test_an_output_that_is_not_exactly_once_may_repeat_messages() -> None:
    again = Results({"out": [("'a'", "1"), ("'a'", "1"), ("'a'", "2"), ("None", "7")]}, CALM.stores)
    assert Reference.of([CALM, CALM], set()).broken(again) == []
    (found,) = Reference.of([CALM, CALM], {"out"}).broken(again)
    assert found == "output `out`: of the messages without faults, 1 is too many, such as key 'a' with value 1"


def test_a_difference_is_named() -> None:
    found = Results({"out": [("'a'", "2"), ("'a'", "1")]}, {"s": {"'a'": "3"}})
    assert Reference.of([CALM], set()).broken(found) == [
        "store `s`: 'a' is 3, and 2 without faults, and 1 other difference",
        "output `out`: of the messages without faults, 1 is missing, such as key None with value 7",
        "output `out`: 'a' is 1, and 2 without faults",
    ]


def test_what_calm_lives_differ_in_is_not_compared() -> None:
    other = Results({"out": [("'a'", "3"), ("'a'", "2"), ("None", "7")]}, CALM.stores)
    reference = Reference.of([CALM, other], set())
    assert reference.broken(Results({"out": [("'a'", "2")]}, CALM.stores)) == []
    assert list(reference.unsettled) == [("set", "out")]
    differs = "key 'a' with value 1 is in one of them only"
    (note,) = reference.notes(2)
    assert note.startswith(f"not compared: which messages there are of output `out` ({differs}). ")
    assert "the order between partitions" in note
    assert "the order between partitions" not in reference.notes(1)[0]
    assert len(reference.broken(Results({"out": [("'a'", "3")]}, {}))) == 2


@pytest.mark.parametrize(
    ("outputs", "stores", "differs"),
    [
        ([("'a'", "1"), ("'a'", "2"), ("None", "7"), ("None", "7")], {}, "key None with value 7 comes 1 and 2 times"),
        ([("'a'", "2"), ("'a'", "1"), ("None", "7")], {}, "'a' is 2 and 1"),
        (CALM.outputs["out"], {"'a'": "2"}, "'b' is 1 and not there"),
    ],
)
def test_what_is_not_compared_has_a_difference(
    outputs: list[tuple[str, str]], stores: dict[str, str], differs: str
) -> None:
    other = Results({"out": outputs}, {"s": stores or CALM.stores["s"]})
    assert list(Reference.of([CALM, CALM, other], {"out"}).unsettled.values()) == [differs]


def test_the_first_difference_of_two_lives() -> None:
    assert first_difference(CALM, CALM) is None
    changed = Results({"out": [("'a'", "1"), ("'a'", "3")]}, CALM.stores)
    text = "message 1 of output `out` is key 'a' with value 2 and key 'a' with value 3"
    assert first_difference(CALM, changed) == text
    emptied = Results(CALM.outputs, {"s": {"'b'": "1"}})
    assert first_difference(CALM, emptied) == "in store `s`, 'a' is 2 and not there"
