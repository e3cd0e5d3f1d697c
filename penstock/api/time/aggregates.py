"""Declared aggregates of a window's messages. Their states are plain values, which a window can merge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from math import nan
from numbers import Real
from typing import Any, TypeAlias

from penstock.base.wording import whole_number
from penstock.errors import ConfigError

Of: TypeAlias = Callable[[Any], Any]
"""Selects the aggregated part of a message's value."""

Add: TypeAlias = Callable[[Any, Any, int], Any]
"""As `Aggregate.add`."""


METHODS = ("of", "add", "one", "merge", "result", "to_json", "from_json")
"""The functions that an aggregate consists of."""


def _itself(value: Any) -> Any:
    return value


def is_whole_value(of: Of) -> bool:
    """True if an aggregate takes the message's value itself."""
    return of is _itself


def adder(aggregate: Aggregate) -> Add:
    """A function equal to the aggregate's `add`, with fewer calls for the plainest ones."""
    make: Callable[[Aggregate], Add] | None = vars(type(aggregate)).get("_plain_add")  # a subclass has another `one`
    return aggregate.add if make is None else make(aggregate)


def form_by_column(kind: type[Aggregate]) -> str:
    """The function, as `module:function`, that makes the aggregate's form by column for values of an Arrow type. Empty:
    its values are added one at a time, as those of a subclass are."""
    found: str = vars(kind).get("_by_column", "")
    return found


@dataclass(frozen=True, slots=True)
class Aggregate(ABC):
    """An aggregate of messages: a state that takes them one at a time, and a result. Values that are None do not count.

    Subclass it for an aggregate of your own. Its states consist of numbers, texts, bytes, decimals, times, lists,
    tuples, dicts, sets and counters, and come back as they were. A state with other objects is refused when it is
    stored, unless `to_json` and `from_json` convert it.

    Example:
        >>> class Product(ps.Aggregate):
        ...     def one(self, x, time_ms):
        ...         return x
        ...
        ...     def merge(self, first, second):
        ...         return first * second
        >>> product = Product(of=lambda trip: trip["factor"])
        >>> product.add(product.add(None, {"factor": 6}, 0), {"factor": 7}, 1)
        42
    """

    of: Of = _itself
    """Selects the aggregated part of a message's value; by default the value itself."""

    def __post_init__(self) -> None:
        of: object = self.of
        if not callable(of):
            name = type(self).__name__
            raise ConfigError(
                f"{name}({of!r}): `of` is a function of a message's value, as {name}(lambda trip: trip['delay'])"
            )

    def add(self, state: Any, value: Any, time_ms: int) -> Any:
        """The state with one more message.

        Args:
            state: the state so far; None at first. It may be changed, and is not used again.
            value: the message's value.
            time_ms: the message's time, in epoch milliseconds.
        """
        x = self.of(value)
        if x is None:
            return state
        one = self.one(x, time_ms)
        return one if state is None else self.merge(state, one)

    @abstractmethod
    def one(self, x: Any, time_ms: int) -> Any:
        """The state of one message.

        Args:
            x: the result of `of` for it, not None.
            time_ms: the message's time, in epoch milliseconds.
        """

    @abstractmethod
    def merge(self, first: Any, second: Any) -> Any:
        """The state of the messages of two states.

        Args:
            first: the state of those that came first.
            second: the state of the others.
        """

    def result(self, state: Any) -> Any:
        """The value that a pane shows.

        Args:
            state: the state; None if no value counted.
        """
        return state

    def to_json(self, state: Any) -> Any:
        """The state as a JSON value.

        Args:
            state: the state; None if no value counted.
        """
        return state

    def from_json(self, stored: Any) -> Any:
        """The state from its JSON value.

        Args:
            stored: the result of `to_json`.
        """
        return stored


_EXACT = Context(prec=1000)


def _started(x: Any) -> Any:
    """A value that comes first: 0.0 for -0.0, as if it were added to 0. So it does not matter which of them came."""
    return x + 0.0 if type(x) is float else x


def _added(total: Any, x: Any) -> Any:
    return _EXACT.add(total, x) if type(x) is Decimal and type(total) in (int, Decimal) else total + x


def _with_nan(stored: Any) -> Any:
    """A stored state with NaN for its nulls. Earlier versions wrote null for NaN and the infinities; which of them it
    was is lost, and NaN lets no later result look as if it were known."""
    return stored if stored is None or None not in stored else [nan if each is None else each for each in stored]


def _mean_of(total: Any, count: int) -> Any:
    """The mean. One of decimals has four more digits behind the point; half a digit is rounded away from zero."""
    if type(total) is not Decimal or not total.is_finite():
        return total / count
    unit = Decimal((0, (1,), int(total.as_tuple().exponent) - 4))
    return _EXACT.divide(total, count).quantize(unit, ROUND_HALF_UP, _EXACT)


class Count(Aggregate):
    """The number of values; without `of`, of messages."""

    _by_column = "penstock.columns.aggregates:count_fold"

    def one(self, x: Any, time_ms: int) -> Any:
        return 1

    def merge(self, first: Any, second: Any) -> Any:
        return first + second

    def result(self, state: Any) -> Any:
        return state or 0

    def _plain_add(self) -> Add:
        of = self.of

        def add(state: Any, value: Any, time_ms: int) -> Any:
            return state if of(value) is None else 1 if state is None else state + 1

        def add_each(state: Any, value: Any, time_ms: int) -> Any:
            return state if value is None else 1 if state is None else state + 1

        return add_each if of is _itself else add


class Sum(Aggregate):
    """The sum of the values; 0 if there is none."""

    _by_column = "penstock.columns.aggregates:sum_fold"

    def one(self, x: Any, time_ms: int) -> Any:
        return _started(x)

    def merge(self, first: Any, second: Any) -> Any:
        return _added(first, second)

    def result(self, state: Any) -> Any:
        if type(state) is int and not -(1 << 63) <= state < 1 << 64:
            raise OverflowError(f"the sum {state} does not fit into 64 bits")
        return 0 if state is None else state

    def _plain_add(self) -> Add:
        of = self.of

        def add(state: Any, value: Any, time_ms: int) -> Any:
            x = of(value)
            return state if x is None else _started(x) if state is None else _added(state, x)

        return add


class Min(Aggregate):
    """The smallest value; None if there is none. NaN counts only where there is nothing else."""

    _by_column = "penstock.columns.aggregates:least_fold"

    def one(self, x: Any, time_ms: int) -> Any:
        return _started(x)

    def merge(self, first: Any, second: Any) -> Any:
        return second if second < first or first != first else first


class Max(Aggregate):
    """The largest value; None if there is none. NaN counts only where there is nothing else."""

    _by_column = "penstock.columns.aggregates:greatest_fold"

    def one(self, x: Any, time_ms: int) -> Any:
        return _started(x)

    def merge(self, first: Any, second: Any) -> Any:
        return second if second > first or first != first else first


class Mean(Aggregate):
    """The arithmetic mean of the values; None if there is none."""

    _by_column = "penstock.columns.aggregates:mean_fold"

    def one(self, x: Any, time_ms: int) -> Any:
        return [_started(x), 1]

    def merge(self, first: Any, second: Any) -> Any:
        return [_added(first[0], second[0]), first[1] + second[1]]

    def result(self, state: Any) -> Any:
        return None if state is None else _mean_of(state[0], state[1])

    def from_json(self, stored: Any) -> Any:
        return _with_nan(stored)

    def _plain_add(self) -> Add:
        of = self.of

        def add(state: Any, value: Any, time_ms: int) -> Any:
            x = of(value)
            return state if x is None else [_started(x), 1] if state is None else [_added(state[0], x), state[1] + 1]

        return add


class Variance(Aggregate):
    """The sample variance of the values; None if there are fewer than two.

    Example:
        >>> app = ps.StreamApplication("delays")
        >>> delays = app.input("local.delays").aggregate({"variance": ps.Variance()})
        >>> _ = delays.map(lambda row: row["variance"]).send_to(app.output("local.variance"))
        >>> runner = TestRunner(app).input("local.delays", [("UA", 1), ("UA", 2), ("UA", 3)]).run()
        >>> [message.value for message in runner.output("local.variance")]
        [1.0]
    """

    _by_column = "penstock.columns.aggregates:variance_fold"

    def one(self, x: Any, time_ms: int) -> Any:
        value = float(x)
        return [1, value, value - value]  # which is NaN for an infinity

    def merge(self, first: Any, second: Any) -> Any:
        n, mean, m2 = first
        more, other, more_m2 = second
        total, delta = n + more, other - mean
        return [total, mean + delta * more / total, m2 + more_m2 + delta * delta * n * more / total]

    def result(self, state: Any) -> Any:
        return None if state is None or state[0] < 2 else state[2] / (state[0] - 1)

    def from_json(self, stored: Any) -> Any:
        return _with_nan(stored)


class First(Aggregate):
    """The value of the earliest message by its time; of messages of the same time, that of the one that came first."""

    _by_column = "penstock.columns.aggregates:first_fold"

    def one(self, x: Any, time_ms: int) -> Any:
        return [time_ms, x]

    def merge(self, first: Any, second: Any) -> Any:
        return second if second[0] < first[0] else first

    def result(self, state: Any) -> Any:
        return None if state is None else state[1]


class Last(Aggregate):
    """The value of the latest message by its time; of messages of the same time, that of the one that came last."""

    _by_column = "penstock.columns.aggregates:last_fold"

    def one(self, x: Any, time_ms: int) -> Any:
        return [time_ms, x]

    def merge(self, first: Any, second: Any) -> Any:
        return first if second[0] < first[0] else second

    def result(self, state: Any) -> Any:
        return None if state is None else state[1]


class Distinct(Aggregate):
    """The number of different values. Every value is kept until the window ends; they must be texts or numbers."""

    def add(self, state: Any, value: Any, time_ms: int) -> Any:
        x = self.of(value)
        if x is not None:
            state = {} if state is None else state
            state[_one_nan(x)] = None
        return state

    def one(self, x: Any, time_ms: int) -> Any:
        return {_one_nan(x): None}

    def merge(self, first: Any, second: Any) -> Any:
        return {**first, **second}

    def result(self, state: Any) -> Any:
        return 0 if state is None else len(state)

    def to_json(self, state: Any) -> Any:
        return None if state is None else list(state)

    def from_json(self, stored: Any) -> Any:
        return None if stored is None else dict.fromkeys(map(_one_nan, stored))


def _one_nan(x: Any) -> Any:
    """The value, or the one NaN: each NaN equals no other, and a dict would keep as many as there are objects."""
    return _NAN if isinstance(x, Real) and x != x else x


_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class TopN(Aggregate):
    """The values with the greatest ranks, as a list, the greatest first; of equal ranks, the one that came first.

    Args:
        of: selects the value that is kept of a message's value.
        n: how many values are kept.
        by: the rank of such a value, a number or a text; by default the value itself. NaN ranks below all others.

    Raises:
        ConfigError: `n` is not positive, or `by` is no function.

    Example:
        >>> longest = ps.TopN(n=2, by=lambda trip: trip["miles"])
        >>> state = None
        >>> for trip in ({"miles": 90}, {"miles": 1400}, {"miles": 700}):
        ...     state = longest.add(state, trip, 0)
        >>> longest.result(state)
        [{'miles': 1400}, {'miles': 700}]
    """

    n: int = 10
    by: Of = _itself

    def __post_init__(self) -> None:
        of: object = self.of
        by: object = self.by
        if type(of) is int:
            raise ConfigError(f"TopN({of}): the number of values is `n`. Write TopN(n={of})")
        Aggregate.__post_init__(self)
        if not callable(by):
            raise ConfigError(f"TopN(by={by!r}): `by` is a function of the value that is kept")
        whole_number("TopN: n", self.n, "values")

    def one(self, x: Any, time_ms: int) -> Any:
        return [[self.by(x), x]]

    def merge(self, first: Any, second: Any) -> Any:
        both = [*first, *second]
        both.sort(key=_rank, reverse=True)  # equal ones keep their order
        return both[: self.n]

    def result(self, state: Any) -> Any:
        return [x for _, x in state or ()]

    def from_json(self, stored: Any) -> Any:
        return stored if stored is None else [*map(_with_nan, stored)]


def _rank(ranked: Any) -> Any:
    rank = ranked[0]
    return (rank == rank, rank)  # NaN, which has no order, comes below all others
