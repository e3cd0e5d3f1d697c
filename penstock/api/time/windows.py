"""Windows: parts of a stream that are reduced to panes, as Samza's Windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, TypedDict, Unpack

from penstock.api.serdes import Json, Serde
from penstock.api.serdes.base import given_serde
from penstock.api.ssp import SystemStream
from penstock.api.time.aggregates import METHODS, Aggregate
from penstock.api.time.firing import Trigger, given_trigger
from penstock.base.application_code import Callback, methods
from penstock.base.wording import Duration, listed, milliseconds, whole_number
from penstock.errors import ConfigError

TimeDomain: TypeAlias = Literal["event", "processing"]
"""The time that counts: that of the messages, or that of the batches."""


Emit: TypeAlias = Literal["on-time", "each"]
"""When a sliding window emits: once, when it is complete, or with each message."""


# The shapes of windows.


@dataclass(frozen=True, slots=True)
class WindowShape:
    """When windows begin and end. A new shape answers here, and has a class that runs it: nothing else knows it."""

    node: ClassVar[str] = ""
    """The class that runs it, as `module:Class`; see `penstock.runtime.operators.window`."""
    column_node: ClassVar[str] = ""
    """The class that runs it where its aggregates are computed by column; empty: they never are."""
    counts: ClassVar[bool] = False
    """Its windows have a number of messages, and no span of time."""
    shares_messages: ClassVar[bool] = False
    """Each of its windows is made of messages that others have as well: all messages are kept until it fires."""
    merges: ClassVar[bool] = False
    """Two of its windows may become one."""
    order_matters: ClassVar[str] = ""
    """The reason why its results depend on the order in which the messages of a key come; empty if they do not."""


@dataclass(frozen=True, slots=True)
class Fixed(WindowShape):
    """Spans of one size that begin at regular intervals."""

    node = "penstock.runtime.windows.fixed:FixedNode"
    column_node = "penstock.runtime.windows.columns:ColumnWindowNode"

    size_ms: int
    every_ms: int
    offset_ms: int


@dataclass(frozen=True, slots=True)
class Session(WindowShape):
    """Spans that grow with each message, and end when none came for a time."""

    node = "penstock.runtime.windows.by_message:SessionNode"
    merges = True

    gap_ms: int


@dataclass(frozen=True, slots=True)
class Counting(WindowShape):
    """A fixed number of messages."""

    node = "penstock.runtime.windows.by_message:CountingNode"
    counts = True
    order_matters = "a window has the messages that came one after the other"

    messages: int


@dataclass(frozen=True, slots=True)
class Sliding(WindowShape):
    """A span of this size that ends with a message."""

    node = "penstock.runtime.windows.by_message:SlidingNode"
    shares_messages = True

    size_ms: int


@dataclass(frozen=True, slots=True)
class Running(WindowShape):
    """A span of this size that ends with a message, for each message as it comes."""

    node = "penstock.runtime.windows.by_message:RunningNode"
    shares_messages = True
    order_matters = "each message is counted with those that came before it"

    size_ms: int


# The contents of a window.


@dataclass(frozen=True, slots=True)
class Fold:
    """One value that takes each message in turn."""

    initial: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any] | None

    def callbacks(self) -> Iterator[Callback]:
        yield Callback("the function that makes the fold's initial value", self.initial)
        yield Callback("the fold's function", self.add)
        yield Callback("the function that merges two values of the fold", self.merge)


@dataclass(frozen=True, slots=True)
class Aggregates:
    """Several declared aggregates."""

    by_name: Mapping[str, Aggregate]

    def callbacks(self) -> Iterator[Callback]:
        for each in self.by_name.values():
            yield from methods(each, METHODS)


@dataclass(frozen=True, slots=True)
class Messages:
    """All values, in the order they came in."""

    def callbacks(self) -> Iterator[Callback]:
        yield from ()


Contents: TypeAlias = Fold | Aggregates | Messages


@dataclass(frozen=True, slots=True)
class Window:
    """A kind of window. Make one with `Windows`."""

    shape: WindowShape
    time: TimeDomain
    contents: Contents
    value: Serde[Any]
    """The serde of a fold's value."""
    keyed: bool
    early: Trigger | None
    late: Trigger | None
    accumulating: bool
    allowed_lateness_ms: int
    late_to: SystemStream | None

    @property
    def keeps_messages(self) -> bool:
        """True if all messages are kept until it fires: sliding windows share messages; sessions merge, and a fold may
        not say how."""
        contents = self.contents
        unmerged = isinstance(contents, Fold) and contents.merge is None and self.shape.merges
        return self.shape.shares_messages or unmerged or isinstance(contents, Messages)


class WindowOptions(TypedDict, total=False):
    """The options of all kinds of windows; see `Windows`."""

    time: TimeDomain
    fold: tuple[Any, ...] | None
    aggregates: Mapping[str, Aggregate] | None
    value: Serde[Any] | None
    keyed: bool
    early: Trigger | None
    late: Trigger | None
    accumulating: bool
    allowed_lateness_ms: Duration
    late_to: SystemStream | None


class Windows:
    """Makes the windows that `MessageStream.window` takes.

    A window combines the messages of each key, and emits the result as a `WindowPane` when the window is complete: when
    the watermark passes its end (`time="event"`), when the batch time does (`time="processing"`), or when it has the
    given number of messages (`count`). A complete window's pane has the firing "on-time", and its timestamp is the last
    millisecond of the window.

    Durations are milliseconds, texts such as "10s", "5min", "2h" and "1d", or timedeltas. All windows take the same
    options:

    * `time`: "event" for the messages' timestamps, "processing" for the batch time.
    * `fold`: (initial value, function of it and a message's value). An initial value that can change in place, such as
      a list, is given as a function that makes it. A third element, a function, merges two values. Sessions with it
      keep the merged value; others keep all messages until they fire.
    * `aggregates`: the `Aggregate`s of the messages, by name, instead of a fold. With neither, a pane has the list of
      all values.
    * `value`: the serde of the fold's value; by default `Json`.
    * `keyed`: False for one window of the whole task, whatever the keys are; its panes have no key.
    * `early`: a trigger that fires panes before the window is complete.
    * `late`: a trigger that fires panes afterwards, within the allowed lateness; by default each batch that has late
      messages of the window fires one.
    * `accumulating`: whether a pane covers all messages of the window, or only those since the previous pane.
    * `allowed_lateness_ms`: how long a window is kept after it is complete, in event time.
    * `late_to`: the output for messages that come later than that. Without it, they are counted and dropped.

    Example:
        >>> app = ps.StreamApplication("visits")
        >>> visits = app.input("local.visits").window(ps.Windows.count(2, fold=(0, lambda total, n: total + n)))
        >>> _ = visits.map(lambda pane: [pane.key, pane.message]).send_to(app.output("local.totals"))
        >>> runner = TestRunner(app).input("local.visits", [("N1", 3), ("N2", 5), ("N1", 4)]).run()
        >>> [message.value for message in runner.output("local.totals")]
        [['N1', 7]]
    """

    @staticmethod
    def tumbling(size_ms: Duration, *, offset_ms: Duration = 0, **options: Unpack[WindowOptions]) -> Window:
        """Windows that follow each other.

        Args:
            size_ms: the length of a window.
            offset_ms: how long after the epoch the first one begins.
            options: see `Windows`.

        Raises:
            ConfigError: an option does not fit.

        Example:
            >>> ps.Windows.tumbling(60_000, aggregates={"visits": ps.Count()}).shape
            Fixed(size_ms=60000, every_ms=60000, offset_ms=0)
        """
        size = milliseconds("size_ms", size_ms)
        return _window("tumbling", Fixed(size, size, _offset(offset_ms) % size), options)

    @staticmethod
    def hopping(
        size_ms: Duration, every_ms: Duration, *, offset_ms: Duration = 0, **options: Unpack[WindowOptions]
    ) -> Window:
        """Windows that overlap, so that a message can belong to several.

        Args:
            size_ms: the length of a window.
            every_ms: how long after each other they begin, at most `size_ms`.
            offset_ms: how long after the epoch the first one begins.
            options: see `Windows`.

        Raises:
            ConfigError: an option does not fit.

        Example:
            >>> ps.Windows.hopping(60_000, 15_000).shape
            Fixed(size_ms=60000, every_ms=15000, offset_ms=0)
        """
        size, every = milliseconds("size_ms", size_ms), milliseconds("every_ms", every_ms)
        if every > size:
            raise ConfigError(f"windows of {size} ms that begin every {every} ms would leave messages out")
        return _window("hopping", Fixed(size, every, _offset(offset_ms) % every), options)

    @staticmethod
    def session(gap_ms: Duration, **options: Unpack[WindowOptions]) -> Window:
        """Windows that hold messages of a key that follow each other closely.

        Args:
            gap_ms: a window ends when no message of its key has come for this long.
            options: see `Windows`.

        Raises:
            ConfigError: an option does not fit.

        Example:
            >>> ps.Windows.session(6 * 3_600_000).shape
            Session(gap_ms=21600000)
        """
        return _window("session", Session(milliseconds("gap_ms", gap_ms)), options)

    @staticmethod
    def sliding(size_ms: Duration, *, emit: Emit = "on-time", **options: Unpack[WindowOptions]) -> Window:
        """Windows that end with a message, and hold it and the messages of its key that are less than `size_ms` older.

        There is a window for each time at which a key has messages. It takes its messages in the order of their times,
        and fires once, on time. A message that comes when its own window is already complete gets none; it is in the
        windows of later messages that are not complete yet. If there can be no such window, the message is late. These
        windows are exact but costly: each pane reads all messages of its span.

        With `emit="each"`, each message has its pane at once: the messages of its span that have come before it, and
        itself, however batches are cut. The pane has the message's own timestamp and offset. A message is late if it is
        `size_ms` or more behind the watermark. A store keeps messages for twice that long.

        Args:
            size_ms: the length of a window.
            emit: "on-time": once for each time, when no message of it can come any more. "each": with each message.
            options: see `Windows`; there are no triggers and no allowed lateness, and a pane has all messages.

        Raises:
            ConfigError: an option does not fit.

        Example:
            >>> app = ps.StreamApplication("logins")
            >>> minute = ps.Windows.sliding(60_000, aggregates={"failed": ps.Count()})
            >>> failed = app.input("local.failed").window(minute, id="minute")
            >>> _ = failed.map(lambda pane: pane.message["failed"]).send_to(app.output("local.counts"))
            >>> runner = TestRunner(app)
            >>> for time_ms in (0, 30_000, 60_000):
            ...     _ = runner.input("local.failed", [("N1", "no")], timestamp=time_ms)
            >>> [message.value for message in runner.run().end_inputs().output("local.counts")]
            [1, 2, 2]
        """
        if emit not in ("on-time", "each"):
            raise ConfigError(f'emit={emit!r}: a sliding window emits "on-time" or with "each" message')
        given = {name for name in ("early", "late", "allowed_lateness_ms") if options.get(name)}
        if given or not options.get("accumulating", True):
            raise ConfigError(
                "a sliding window fires once, on time, with all messages of its span: leave out "
                f"{', '.join(sorted(given)) or 'accumulating=False'}"
            )
        shape = Running if emit == "each" else Sliding
        return _window("sliding", shape(milliseconds("size_ms", size_ms)), options)

    @staticmethod
    def count(messages: int, **options: Unpack[WindowOptions]) -> Window:
        """Windows of a given number of messages of a key. The last ones are complete when the stream ends.

        Args:
            messages: how many, at least 1.
            options: see `Windows`.

        Raises:
            ConfigError: an option does not fit.

        Example:
            >>> ps.Windows.count(100).shape
            Counting(messages=100)
        """
        return _window("count", Counting(whole_number("messages", messages, "messages")), options)


def _window(kind: str, shape: WindowShape, options: WindowOptions) -> Window:
    known = list(WindowOptions.__annotations__)
    if unknown := [name for name in options if name not in known]:
        raise ConfigError(
            f"Windows.{kind}() has no argument `{unknown[0]}`: leave it out. Its options are {listed(known)}"
        )
    return _with_options(shape, **options)


def _with_options(
    shape: WindowShape,
    *,
    time: TimeDomain = "event",
    fold: tuple[Any, ...] | None = None,
    aggregates: Mapping[str, Aggregate] | None = None,
    value: Serde[Any] | None = None,
    keyed: bool = True,
    early: Trigger | None = None,
    late: Trigger | None = None,
    accumulating: bool = True,
    allowed_lateness_ms: Duration = 0,
    late_to: SystemStream | None = None,
) -> Window:
    if time not in ("event", "processing"):
        raise ConfigError(f'time={time!r}: a window goes by "event" or by "processing" time')
    lateness_ms = milliseconds("allowed_lateness_ms", allowed_lateness_ms, least=0)
    for name, trigger in (("early", early), ("late", late)):
        if trigger is not None:
            given_trigger(f"{name}=", trigger)
    for name, flag in (("keyed", keyed), ("accumulating", accumulating)):
        if type(flag) is not bool:
            raise ConfigError(f"{name}={flag!r}: expected True or False")
    if (lateness_ms or late or late_to) and (time == "processing" or shape.counts):
        raise ConfigError(
            "only windows of event time have late messages: leave out allowed_lateness_ms=, late= and late_to="
        )
    if late is not None and not lateness_ms:
        raise ConfigError(
            "late= never fires, because a window without allowed_lateness_ms takes no late messages: give "
            "allowed_lateness_ms=, or leave late= out"
        )
    contents = _contents(fold, aggregates)
    serde = _value_serde(value, contents)
    return Window(shape, time, contents, serde, keyed, early, late, accumulating, lateness_ms, late_to)


def _value_serde(value: Serde[Any] | None, contents: Contents) -> Serde[Any]:
    if value is None:
        return Json()
    serde = given_serde(value, "value=: the serde of the fold's value", "fold=..., value={serde}")
    if not isinstance(contents, Fold):
        raise ConfigError(
            "value= is the serde of a fold's value, and this window has no fold: give fold=, or leave it out"
        )
    return serde


def _contents(fold: tuple[Any, ...] | None, aggregates: Mapping[str, Aggregate] | None) -> Contents:
    if fold is not None and aggregates is not None:
        raise ConfigError("a window has a fold or aggregates, not both")
    if aggregates is not None:
        return _aggregates(aggregates)
    if fold is None:
        return Messages()
    if not isinstance(fold, tuple | list) or not 2 <= len(fold) <= 3 or not all(map(callable, fold[1:])):
        raise ConfigError(f"fold=(initial, function) or fold=(initial, function, merge), not {fold!r}")
    initial, add, *merge = fold
    return Fold(_maker(initial), add, merge[0] if merge else None)


def _aggregates(given: Mapping[str, Aggregate]) -> Contents:
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(
            f'aggregates are Count(), Sum(of), ... by name, as aggregates={{"visits": ps.Count()}}, not {given!r}'
        )
    for name, each in given.items():
        if not isinstance(name, str) or not isinstance(each, Aggregate):
            raise ConfigError(f"aggregates are Count(), Sum(of), ... by name, not {name!r}: {each!r}")
    return Aggregates(dict(given))


def _maker(initial: Any) -> Callable[[], Any]:
    if callable(initial):
        maker: Callable[[], Any] = initial
        return maker
    if isinstance(initial, (list, dict, set, bytearray)):
        raise ConfigError(
            f"the fold begins with {initial!r}, which every window would share: give a function, list or dict"
        )
    return lambda: initial


def _offset(offset_ms: Duration) -> int:
    return milliseconds("offset_ms", offset_ms, least=-(2**60))
