"""The results of a life in words that can be compared, outputs and the content of stores; and the findings of many.

A value is compared by what it is and not by its bytes: the entries of dicts and sets have no order, and floats are
compared to nine digits, because sums of the same numbers in another order differ in the last ones.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal, TypeAlias

from penstock.base.wording import counted

Aspect: TypeAlias = Literal["messages", "set", "last", "entries"]
"""A part of a result that is compared: all messages of an output, each as often as it comes; which ones there are; the
last value of each key; the entries of a store."""
_LONGEST = 200
_WORDS: Mapping[Aspect, str] = {
    "messages": "how often each message comes",
    "set": "which messages there are",
    "last": "the last value of each key",
    "entries": "the entries",
}


@dataclass(frozen=True, slots=True)
class Results:
    """The results of one life.

    Attributes:
        outputs: stream → its messages as (key, value), in the order of partitions and offsets.
        stores: store → entry → its value.
    """

    outputs: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    stores: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Results:
        """From its form as JSON."""
        return cls({name: [(k, v) for k, v in own] for name, own in found["outputs"].items()}, found["stores"])

    def aspect(self, what: Aspect, name: str) -> Any:
        """A part of the result, which is equal in lives that agree in it."""
        if what == "entries":
            return self.stores.get(name, {})
        messages = self.outputs.get(name, ())
        if what == "messages":
            return Counter(messages)
        return set(messages) if what == "set" else {key: value for key, value in messages if key != "None"}


@dataclass(frozen=True, slots=True)
class Reference:
    """The result of a life without any fault, and what of it such lives agree in.

    Attributes:
        results: of the first such life.
        compared: what all of them agree in, as (aspect, name): what the inputs alone decide.
        unsettled: what they differ in, each with a difference in words.
    """

    results: Results
    compared: Sequence[tuple[Aspect, str]]
    unsettled: Mapping[tuple[Aspect, str], str]

    @classmethod
    def of(cls, lives: Sequence[Results], exactly_once: Set[str]) -> Reference:
        first = lives[0]
        wanted: list[tuple[Aspect, str]] = [("entries", name) for name in sorted(first.stores)]
        for name in sorted(first.outputs):
            kinds: tuple[Aspect, ...] = ("messages", "last") if name in exactly_once else ("set", "last")
            wanted += [(kind, name) for kind in kinds]
        unsettled = dict[tuple[Aspect, str], str]()
        for each in wanted:
            other = next((life for life in lives[1:] if life.aspect(*each) != first.aspect(*each)), None)
            if other is not None:
                unsettled[each] = _unequal(first.aspect(*each), other.aspect(*each))
        return cls(first, [each for each in wanted if each not in unsettled], unsettled)

    def broken(self, found: Results) -> list[str]:
        """Where a life with faults differs, in words."""
        faults = []
        for kind, name in self.compared:
            before, after = self.results.aspect(kind, name), found.aspect(kind, name)
            if before != after:
                what = "store" if kind == "entries" else "output"
                faults.append(f"{what} `{name}`: {difference(before, after)}")
        return faults

    def notes(self, partitions: int) -> list[str]:
        """Say which parts are not compared, and why."""
        if not self.unsettled:
            return []
        found = [
            f"{_WORDS[kind]} of {'store' if kind == 'entries' else 'output'} `{name}` ({differs})"
            for (kind, name), differs in self.unsettled.items()
        ]
        causes = ["the sizes of batches", "time", "random numbers", "what the code keeps outside of its stores"]
        advice = ""
        if partitions > 1:
            causes.insert(1, "the order between partitions")
            advice = ". With `--partitions 1`, in a test with `partitions=1`, that order is always the same"
        text = (
            f"not compared: {', '.join(found)}. Lives without any fault differ in it, so that the inputs alone do not"
        )
        return [f"{text} decide it: {', '.join(causes[:-1])} or {causes[-1]} may{advice}"]


def _unequal(one: Any, other: Any) -> str:
    """The first difference between two parts of results of lives without faults."""
    if isinstance(one, dict) and not isinstance(one, Counter):
        key = min(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
        return f"{_cut(key)} is {_side(one, key)} and {_side(other, key)}"
    if isinstance(one, Counter):
        message = min(each for each in one.keys() | other.keys() if one[each] != other[each])
        return f"{_message(message)} comes {one[message]} and {counted(other[message], 'time')}"
    return f"{_message(min(one ^ other))} is in one of them only"


def difference(before: Any, after: Any) -> str:
    """Where two parts of results differ. The first is that of the life without faults."""
    if isinstance(before, dict) and not isinstance(before, Counter):
        keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        key = keys[0]
        more = f", and {counted(len(keys) - 1, 'other difference')}" if len(keys) > 1 else ""
        return f"{_cut(key)} is {_side(after, key)}, and {_side(before, key)} without faults{more}"
    lost, more_of = before - after, after - before
    parts = []
    for found, what in ((lost, "missing"), (more_of, "too many" if isinstance(before, Counter) else "not among them")):
        if found:
            one = min(found)
            count = sum(found.values()) if isinstance(found, Counter) else len(found)
            parts.append(f"{count} {'is' if count == 1 else 'are'} {what}, such as {_message(one)}")
    return "of the messages without faults, " + "; ".join(parts)


def first_difference(one: Results, other: Results) -> str | None:
    """The first message or entry that differs between two lives, in words; None if none does."""
    for name in sorted(one.outputs.keys() | other.outputs.keys()):
        pairs = zip_longest(one.outputs.get(name, ()), other.outputs.get(name, ()))
        for number, (a, b) in enumerate(pairs):
            if a != b:
                return f"message {number} of output `{name}` is {_message(a)} and {_message(b)}"
    for name in sorted(one.stores.keys() | other.stores.keys()):
        a_store, b_store = one.stores.get(name, {}), other.stores.get(name, {})
        for key in sorted(a_store.keys() | b_store.keys()):
            if a_store.get(key) != b_store.get(key):
                return f"in store `{name}`, {_cut(key)} is {_side(a_store, key)} and {_side(b_store, key)}"
    return None


def _side(found: Mapping[str, str], key: str) -> str:
    return _cut(found[key]) if key in found else "not there"


def _message(message: tuple[str, str] | None) -> str:
    return "none" if message is None else f"key {_cut(message[0])} with value {_cut(message[1])}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def text_of(value: Any) -> str:
    """A value in words: equal values have equal ones, whatever the order of their parts was.

    Example:
        >>> text_of({"b": 0.1 + 0.2, "a": {3, 1, 2}})
        "{'a': {1, 2, 3}, 'b': 0.3}"
    """
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{text_of(key)}: {text_of(each)}" for key, each in value.items())) + "}"
    if isinstance(value, Set):
        return "{" + ", ".join(sorted(map(text_of, value))) + "}"
    if isinstance(value, list | tuple):
        shape = "()" if isinstance(value, tuple) else "[]"
        return shape[0] + ", ".join(map(text_of, value)) + shape[1]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _parts(value, (each.name for each in dataclasses.fields(value)))
    if names := getattr(value, "__struct_fields__", None):
        return _parts(value, names)
    if "__repr__" not in {name for kind in type(value).__mro__[:-1] for name in vars(kind)}:  # it would have an address
        return _parts(value, sorted(getattr(value, "__dict__", ())))
    return repr(value)


def _parts(value: Any, names: Iterable[str]) -> str:
    own = ", ".join(f"{name}={text_of(getattr(value, name))}" for name in names)
    return f"{type(value).__qualname__}({own})"


_STORY = 30


@dataclass(frozen=True, slots=True)
class FailedLife:
    """A life in which something was broken.

    Attributes:
        seed: its seed, which lives it again; 0 for a life without faults.
        broken: what does not hold, in words.
        story: the last events of the life.
        traceback: that of the user's code, if it raised, or of the simulation.
        decisions: how many decisions are other than the mildest, in the shrunk life or else in this one.
        shrunk: a life with fewer faults that is broken as well; None if none was found.
        told: the messages that came late or twice, in words.
    """

    seed: int
    broken: Sequence[str]
    story: Sequence[str] = ()
    traceback: str = ""
    decisions: int = 0
    shrunk: FailedLife | None = None
    told: Sequence[str] = ()

    def __str__(self) -> str:
        shown = self.shrunk or self
        title = f"seed {self.seed} is broken" if self.seed else "the job fails without any fault"
        if not self.seed and all(each.startswith("invariant ") for each in self.broken):
            title = "an invariant does not hold, without any fault"
        lines = [title, *(f"  {each}" for each in self.broken)]
        if self.shrunk and list(self.shrunk.broken) != list(self.broken):
            lines += ["with fewer faults:", *(f"  {each}" for each in self.shrunk.broken)]
        if shown.traceback:
            lines += ["", shown.traceback.rstrip(), ""]
        if shown.told:
            lines += ["what came late or twice:", *(f"  {each}" for each in shown.told)]
        if shown.story:
            fewer = ""
            if self.shrunk:
                left = counted(shown.decisions, "decision")
                fewer = f"; {left} left" if shown.decisions else "; the kill at the end is enough"
            lines += [f"what happened (simulated seconds{fewer}):", *(f"  {each}" for each in shown.story[-_STORY:])]
        return "\n".join(lines)


@dataclass(slots=True)
class SimulationReport:
    """The findings of a simulation.

    Attributes:
        lives: how many lives with faults there were.
        faults: kind of fault → how often it came.
        seconds: how long it took.
        failure: the first life that is broken.
        failures: how many lives were broken until the simulation stopped.
        errors: what is wrong without any fault, such as results that differ from one life to the next.
        notes: what else is worth knowing: what was not compared, and calls that are not the same in each life.
    """

    lives: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    failure: FailedLife | None = None
    failures: int = 0
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """True if nothing is broken."""
        return self.failure is None and not self.errors

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} {count:,}" for kind, count in self.faults.most_common() if count)
        parts = [*(f"note: {each}" for each in self.notes), *(f"error: {each}" for each in self.errors)]
        if self.failure is not None:
            parts.append(str(self.failure))
        held = "everything holds" if self.holds else "something is broken"
        broken = f", {self.failures} of them broken" if self.failures else ""
        lives = f"{lives_in_words(self.lives)}{broken}, in {self.seconds:.1f} s"
        parts.append(f"{held}: {lives}. Faults: {faults or 'none'}")
        return "\n".join(parts)


def lives_in_words(count: int) -> str:
    """So many lives."""
    return f"{count:,} {'life' if count == 1 else 'lives'}"


class SimulationFailedError(AssertionError):
    """Something is broken in a life of the job. `report` says what, and which seed shows it.

    Example:
        >>> from penstock.testing import simulate
        >>> app = ps.StreamApplication("miles")
        >>> _ = app.input("local.trips").map(lambda trip: trip["miles"]).send_to(app.output("local.miles"))
        >>> try:
        ...     simulate(app, {"local.trips": [{"miles": 5}, {}]}, seeds=1, processes=1)
        ... except SimulationFailedError as error:
        ...     print(error.report.failure.broken[0])
        KeyError: 'miles', in operator `map-1`, at stream `local.trips` partition 1 offset 0 key None
    """

    def __init__(self, report: SimulationReport) -> None:
        """Make the error of a report.

        Args:
            report: what was found.
        """
        self.report = report
        super().__init__(str(report))
