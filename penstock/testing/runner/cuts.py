"""The same test on several jobs, whose inputs fall into different batches: all must have the same outputs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.batch import TaskSsp
from penstock.batch.portions import Portion
from penstock.graph.specs import ApplicationGraph
from penstock.system.base import OffsetRange, System

P = ParamSpec("P")
Message: TypeAlias = tuple[bytes | None, int, str]
"""The value, timestamp and headers of a message."""
Outputs: TypeAlias = Mapping[tuple[SystemStream, bytes | None], Counter[Message]]
"""The messages by output and key."""

_SHOWN = 12
_LONGEST = 200


class CutsDifferError(AssertionError):
    """An output depends on how the messages of the inputs fall into batches, which no job promises.

    Example:
        >>> class Longest(ps.BatchProcessor):
        ...     def process(self, batch, collector):
        ...         collector.emit(batch.keys[:1], batch.values[:1])  # one message of each batch
        >>> import pyarrow as pa
        >>> app = ps.StreamApplication("longest")
        >>> trips = app.input("local.trips", value=ps.Columns(pa.schema({"miles": pa.int64()})))
        >>> _ = trips.process_batch(Longest).send_to(app.output("local.longest"))
        >>> runner = TestRunner(app, cuts=5).input("local.trips", [{"miles": miles} for miles in range(9)])
        >>> try:
        ...     runner.run()
        ... except CutsDifferError as error:
        ...     print(error)
        output `local.longest` depends on how messages fall into batches: ...
        >>> runner.close()
    """


@dataclass
class RandomCut:
    """Cuts what the inputs hold into random batches."""

    seed: int
    sizes: list[int] = field(default_factory=list)
    """The messages of each batch."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - a test, not a secret

    def __call__(self, portions: Mapping[TaskSsp, Portion]) -> Mapping[TaskSsp, Portion]:
        """Some messages of some of the portions: at least one message, if there are any."""
        rng, found = self._random, dict[TaskSsp, Portion]()
        for at, portion in portions.items():
            held = min(portion.messages, portion.offsets.end - portion.offsets.start)
            if (count := rng.choice((0, 1, rng.randint(0, held), held))) > 0:
                found[at] = replace(portion, messages=count)
        if portions and not found:
            at = rng.choice(sorted(portions))
            found[at] = replace(portions[at], messages=1)
        if found:
            self.sizes.append(sum(portion.messages for portion in found.values()))
        return found

    def __str__(self) -> str:
        some = ", ".join(map(str, self.sizes[:_SHOWN])) + (", ..." if len(self.sizes) > _SHOWN else "")
        return f"in batches of {some or 'no'} messages"


class CutRunner(Protocol):
    """A `TestRunner`, as other jobs of its test see it."""

    dead_letters: int
    _cuts: Cuts[Any] | None


R = TypeVar("R", bound=CutRunner)


class Cuts(Generic[R]):
    """The other jobs of a test: the same application and calls, with inputs that are cut at random."""

    def __init__(self, make: Callable[[RandomCut], R], outputs: Callable[[R], Outputs], count: int) -> None:
        """`make` makes the runner for a cut. Each number of a cut gives the same batches in each run of the test."""
        self._outputs = outputs
        self._cuts = [RandomCut(seed) for seed in range(count)]
        self._runners = [make(cut) for cut in self._cuts]

    def call(self, method: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Call the method of each of the other runners."""
        for runner in self._runners:
            method(runner, *args, **kwargs)

    def fails_too(self, error: Exception, method: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Call a method that fails for the test's own runner. Raises CutsDifferError if it does not for another."""
        for cut, runner in zip(self._cuts, self._runners, strict=True):
            try:
                method(runner, *args, **kwargs)
            except type(error):
                continue
            raise CutsDifferError(f"in one batch the test fails, and {cut} it does not") from error

    def compare(self, runner: R) -> None:
        """Raise CutsDifferError if another job has other outputs than the test's own runner."""
        own, dead_letters = self._outputs(runner), runner.dead_letters
        for cut, runner in zip(self._cuts, self._runners, strict=True):
            other = self._outputs(runner)
            for stream, key in sorted(own.keys() | other.keys(), key=lambda at: (str(at[0]), at[1] or b"")):
                _compare(stream, key, own.get((stream, key), Counter()), other.get((stream, key), Counter()), cut)
            if dead_letters != runner.dead_letters:
                raise CutsDifferError(
                    f"the number of dead letters depends on how messages fall into batches: it is {dead_letters} in "
                    f"one batch, and {runner.dead_letters} {cut}"
                )


def in_every_cut(
    method: Callable[Concatenate[R, P], R],
) -> Callable[Concatenate[R, P], R]:
    """The method calls itself for the other jobs of the test as well, and compares the outputs."""

    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._cuts is None:
            return method(self, *args, **kwargs)
        given = [list(each) if isinstance(each, Iterator) else each for each in args]
        try:
            method(self, *given, **kwargs)  # type: ignore[arg-type]
        except Exception as error:
            self._cuts.fails_too(error, method, *given, **kwargs)
            raise
        self._cuts.call(method, *given, **kwargs)
        self._cuts.compare(self)
        return self

    update_wrapper(call, method)
    return call


def outputs_of(graph: ApplicationGraph, systems: Mapping[str, System]) -> Outputs:
    """All messages of the outputs, without their order: that in which a join finds its pairs, for example, is not
    specified."""
    found: dict[tuple[SystemStream, bytes | None], Counter[Message]] = {}
    for name in (spec.stream for spec in graph.outputs):
        system = systems[name.system]
        for partition, ends in system.admin().offsets(name.stream).items():
            ssp = SystemStreamPartition(name.system, name.stream, partition)
            for chunk in system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 4096):
                for _, timestamp, key, value, *headers in chunk:
                    found.setdefault((name, key), Counter())[value, timestamp, repr(headers)] += 1
    return found


def _compare(
    stream: SystemStream, key: bytes | None, own: Counter[Message], other: Counter[Message], cut: RandomCut
) -> None:
    if own == other:
        return
    of_key = "without a key" if key is None else f"of key {_shown(key)}"
    only = [
        f"its message {_message(min(found, key=repr))} {of_key} is there only {where}"
        for found, where in ((own - other, f"in one batch, and not {cut}"), (other - own, f"{cut}, and not in one"))
        if found
    ]
    raise CutsDifferError(
        f"output `{stream}` depends on how messages fall into batches: {'; '.join(only)}. "
        'If the application depends on the order of messages or timers, declare order="event-time"; if it keeps '
        "anything of a message in a field, keep it in a store"
    )


def _message(message: Message) -> str:
    return f"{_shown(message[0])} at {message[1]}"


def _shown(data: bytes | None) -> str:
    text = "None" if data is None else repr(data.decode("utf-8", "backslashreplace"))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
