"""The operators of a stream that keep messages: windows, and joins with streams and tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from penstock.api.serdes import Json, Serde
from penstock.api.ssp import SystemStream
from penstock.api.store import Table
from penstock.api.time.firing import Panes, WindowPane
from penstock.api.time.windows import Aggregates, Window
from penstock.application.column_operators import ColumnOperators
from penstock.base.wording import Duration
from penstock.errors import ConfigError
from penstock.graph.aggregation import check_aggregates, serde_of_rows, window_aggregates, window_definition
from penstock.graph.event_time import JoinKind, JoinSide, Keep, Order, join_definition, join_of, stores_of
from penstock.graph.serdes import join_place
from penstock.graph.specs import JoinSpec, TableJoinKind, TableJoinSpec, TemporalJoinSpec, WindowSpec

if TYPE_CHECKING:
    from penstock.application.message_stream import MessageStream

T = TypeVar("T")
U = TypeVar("U")


class WindowsAndJoins(ColumnOperators, Generic[T]):
    """The part of `MessageStream` that keeps messages in stores, and looks into tables."""

    def _changed(self) -> dict[str, Any]:
        raise NotImplementedError

    @overload
    def window(
        self,
        window: Window,
        *,
        rows: Literal[False] = False,
        order: Order | None = None,
        id: str | None = None,
        renamed_from: str | None = None,
    ) -> MessageStream[WindowPane[Any, Any]]: ...

    @overload
    def window(
        self,
        window: Window,
        *,
        rows: Literal[True],
        order: Order | None = None,
        id: str | None = None,
        renamed_from: str | None = None,
    ) -> MessageStream[dict[str, Any]]: ...

    def window(
        self,
        window: Window,
        *,
        rows: bool = False,
        order: Order | None = None,
        id: str | None = None,  # noqa: A002
        renamed_from: str | None = None,
    ) -> MessageStream[Any]:
        """Group messages into windows, and emit a pane when a window fires, as Samza's `window`.

        Args:
            window: the kind of window; make one with `Windows`.
            rows: True to emit each pane as a row: `start_ms` and `end_ms` of the window, in epoch milliseconds, and the
                aggregates. If the window is computed by column, its panes then stay in columns.
            order: "event-time" for messages in the order of their event times, as in `process`; for windows that
                depend on it, such as those with `emit="each"`. A message that is late for the order is late for the
                window.
            id: the operator's stable name. Its store is named after it.
            renamed_from: the id that the operator had when its state was made, if it has another one now. Its stores
                keep that name.

        Raises:
            ConfigError: `window` is not a window, `late_to` is not an output of the application, or an aggregate does
                not fit the type of its column; `rows` is True, and the window has no aggregates, counts messages, or
                has an aggregate of the name of another column; or `order` is given for a window of processing time or
                with allowed lateness.

        Example:
            >>> app = ps.StreamApplication("visits")
            >>> counts = app.input("local.visits").window(ps.Windows.count(2, aggregates={"visits": ps.Count()}))
            >>> _ = counts.map(lambda pane: pane.message["visits"]).send_to(app.output("local.visits-in-twos"))
            >>> runner = TestRunner(app).input("local.visits", [("N1", 1), ("N2", 1), ("N1", 1)]).run()
            >>> [(message.key, message.value) for message in runner.output("local.visits-in-twos")]
            [('N1', 2)]
        """
        if not isinstance(window, Window):
            raise ConfigError(f"window() takes a window of `Windows`, not {window!r}")
        if window.late_to is not None:
            self._declared.check_output(window.late_to)
        if order is not None and (window.time == "processing" or window.allowed_lateness_ms):
            raise ConfigError(
                'window(): order="event-time" is for windows of event time without allowed lateness: a message comes '
                "in its order only if it is not late"
            )
        if isinstance(window.contents, Aggregates):
            check_aggregates(window.contents.by_name, self._operator.value_serde, "window()")
        by_column = window_aggregates(window, self._operator.value_serde)
        panes = serde_of_rows(window, by_column) if rows else Panes()

        def make(i: str) -> WindowSpec:
            op = self._operator
            definition = window_definition(window, op.key_serde, op.value_serde, by_column)
            store = self._declared.own_store(i, ".window", "window", definition, by_column=by_column is not None)
            ordering = self._declared.ordering(i, [op], order, window.late_to if order else None)
            same = {**self._same(), "value_serde": panes, "stores": (store, *stores_of(ordering)), "ordering": ordering}
            return WindowSpec(id=i, window=window, message_serde=op.value_serde, rows=rows, **same)

        return self._next("window", id, make, renamed_from)

    def join(
        self,
        right: MessageStream[Any],
        function: Callable[[Any, Any], U],
        *,
        within_ms: Duration | tuple[Duration, Duration],
        kind: JoinKind = "inner",
        keep: Keep = "all",
        late_to: SystemStream | None = None,
        order: Order | None = None,
        value: Serde[Any] | None = None,
        id: str | None = None,  # noqa: A002
        renamed_from: str | None = None,
    ) -> MessageStream[U]:
        """Join each message of this stream, the left one, with the messages of another that have the same key and are
        close in event time.

        A result has the key, and the later of the two times as its timestamp. Both streams must be partitioned alike by
        the same keys: put `partition_by` before, on both sides.

        Args:
            right: the other stream, of the same application. It may be this one.
            function: called as `function(left value, right value)`; returns the value of the result. The value of a
                missing partner is None. It must not change its arguments.
            within_ms: (before, after): a left message at time t has its partners from t - before to t + after, both
                included, in milliseconds. One number counts for both.
            kind: "inner" for pairs only. "left", "right" and "outer" also emit messages without a partner, of the left
                stream, the right one or both, once no partner can come any more. The timestamp of such a result is the
                latest time that a partner could have had.
            keep: "all" joins each message with all of its partners. "newest" keeps, for each key and stream, only the
                message with the highest time. It joins a message with that of the other stream, if this one is within
                the bounds.
            late_to: the output for late messages. Without it, they are counted and dropped.
            order: "event-time" for the messages of both streams in the order of their event times, as in `process`. The
                results of keep="newest" then do not depend on the order in which messages come.
            value: the serde of the results; by default `Json`.
            id: the operator's stable name. Its store is named after it.
            renamed_from: the id that the operator had when its state was made, if it has another one now. Its stores
                keep that name.

        Raises:
            ConfigError: an argument is wrong, or the keys of the two streams have different serdes.

        Example:
            >>> app = ps.StreamApplication("clicks")
            >>> shown = app.input("local.shown").partition_by(lambda page: page["user"])
            >>> clicked = app.input("local.clicked").partition_by(lambda click: click["user"])
            >>> pairs = shown.join(clicked, lambda page, click: [page["page"], click["at"]], within_ms=(0, 5_000))
            >>> _ = pairs.send_to(app.output("local.pairs"))
            >>> runner = TestRunner(app).input("local.shown", [{"user": "u", "page": 7}], timestamp=1_000)
            >>> for at in (3_000, 6_000, 6_001):
            ...     runner = runner.input("local.clicked", [{"user": "u", "at": at}], timestamp=at)
            >>> [(message.value, message.timestamp) for message in runner.run().output("local.pairs")]
            [([7, 3000], 3000), ([7, 6000], 6000)]
        """
        if not isinstance(right, WindowsAndJoins) or right._declared is not self._declared:
            raise ConfigError(f"join() takes a stream of the same application, not {right!r}")
        if not callable(function):
            raise ConfigError(f"join() takes a function of a left and a right value, not {function!r}")
        join = join_of(within_ms, kind, keep, late_to)
        if late_to is not None:
            self._declared.check_output(late_to)
        sides = [JoinSide(op.id, op.key_serde, op.value_serde) for op in (self._operator, right._operator)]
        left, other = sides
        if left.key_serde.name != other.key_serde.name:
            raise ConfigError(
                f"the keys of `{left.source}` are written by the serde `{left.key_serde.name}` and those of "
                f"`{other.source}` by `{other.key_serde.name}`: equal keys would have different bytes, and would not "
                "meet. Give both sides the same one: .partition_by(..., key=...)"
            )

        def make(i: str) -> JoinSpec:
            definition = join_definition(join, left.key_serde, left.value_serde, other.value_serde)
            store = self._declared.own_store(i, ".join", "join", definition)
            sources = {op.id: op for op in (self._operator, right._operator)}
            ordering = self._declared.ordering(i, list(sources.values()), order, late_to if order else None)
            return JoinSpec(
                id=i,
                upstream=tuple(dict.fromkeys(side.source for side in sides)),
                key_serde=left.key_serde,
                value_serde=join_place(f"operator `{i}`").serde("value", value, Json()),
                stores=(store, *stores_of(ordering)),
                ordering=ordering,
                join=join,
                function=function,
                left=left,
                right=other,
            )

        return self._next("join", id, make, renamed_from)

    def join_table(
        self,
        table: Table,
        function: Callable[[T, Any], U] | None = None,
        *,
        columns: Sequence[str] = (),
        kind: TableJoinKind = "inner",
        as_of: bool = False,
        late_to: SystemStream | None = None,
        id: str | None = None,  # noqa: A002
        renamed_from: str | None = None,
    ) -> MessageStream[U]:
        """Join each message with the value that a table has for its key, as Samza's `join` with a table.

        A message sees everything that came to the table before it in the same task. The order of messages that come to
        different operators in one batch is not specified.

        With `as_of=True` a message is joined with the value that its key had at the message's event time: the join is
        temporal. The message waits in a store until the watermarks of the stream and of all streams that write the
        table are above that time. Messages are then joined in the order of their times and keys.

        Args:
            table: what `app.table(...)` returned.
            function: called as `function(message's value, table's value)`. It returns the value that follows, and must
                change neither of them in place. None if there are `columns`.
            columns: columns of the table that are added to those of the message, for many messages at once. The stream
                and the table have schemas (`ps.Columns`), and the table is filled from outside.
            kind: what happens to a message for whose key the table has no value, or that has no key. "inner" drops it;
                with "left" the function gets None as the table's value.
            as_of: join with the value as of the message's event time. The table must have history.
            late_to: with `as_of`, the output for messages below the watermark. Without it, they are counted as
                `late-dropped`.
            id: the operator's stable name. The store of a temporal join is named after it.
            renamed_from: the id that the operator had when its state was made, if it has another one now. Its stores
                keep that name.

        Raises:
            ConfigError: the table is of another application, its keys have another serde than those of the stream,
                or `as_of` does not fit it.

        Example:
            >>> app = ps.StreamApplication("seats")
            >>> planes = app.table("planes")
            >>> _ = app.input("local.planes").send_to(planes)
            >>> trips = app.input("local.trips").join_table(planes, lambda miles, seats: [miles, seats], kind="left")
            >>> _ = trips.send_to(app.output("local.trips-with-seats"))
            >>> runner = TestRunner(app, partitions=1).input("local.planes", [("N1", 180)]).run()
            >>> runner = runner.input("local.trips", [("N1", 1400), ("N2", 90)]).run()
            >>> [message.value for message in runner.output("local.trips-with-seats")]
            [[1400, 180], [90, None]]

            >>> app = ps.StreamApplication("prices")
            >>> rates = app.table("rates", history_ms=3_600_000)
            >>> _ = app.input("local.rates").send_to(rates)
            >>> prices = app.input("local.orders").join_table(rates, lambda price, rate: price * rate, as_of=True)
            >>> _ = prices.send_to(app.output("local.prices"))
            >>> runner = TestRunner(app).input("local.orders", [("EUR", 100)], timestamp=5_000)
            >>> runner = runner.input("local.rates", [("EUR", 2)], timestamp=1_000)
            >>> runner = runner.input("local.rates", [("EUR", 3)], timestamp=9_000).end_inputs()
            >>> [(message.value, message.timestamp) for message in runner.output("local.prices")]
            [(200, 5000)]
        """
        self._declared.check_table(table, self._operator, "join_table()")
        if columns:
            if function is not None or as_of or late_to is not None:
                raise ConfigError("join_table(): with columns= there is no function, no as_of and no late_to")
            return self._join_columns(table, columns, kind, id)
        if not callable(function):
            raise ConfigError(f"join_table() takes a function of two values, not {function!r}")
        if kind not in ("inner", "left"):
            raise ConfigError(f'join_table(): kind is "inner" or "left", not {kind!r}')
        if as_of:
            return self._join_as_of(table, function, kind, late_to, id, renamed_from)
        if table.history_ms is not None:
            raise ConfigError(
                f"join_table(): table `{table.name}` has history (history_ms): join it with as_of=True, or declare a "
                "second table without history"
            )
        if late_to is not None:
            raise ConfigError("join_table(): late_to is for as_of=True, where a message can be late")
        return self._next(
            "join_table",
            id,
            lambda i: TableJoinSpec(
                id=i, stores=(table.name,), table=table.name, function=function, kind=kind, **self._changed()
            ),
        )

    def _join_as_of(
        self,
        table: Table,
        function: Callable[[Any, Any], Any],
        kind: TableJoinKind,
        late_to: SystemStream | None,
        op_id: str | None,
        renamed_from: str | None,
    ) -> MessageStream[Any]:
        if table.history_ms is None:
            self._declared.check_written(table, "join_table(..., as_of=True): such a table has no versions, because ")
            raise ConfigError(
                f"join_table(): as_of=True needs the versions of table `{table.name}`: declare it with "
                f'app.table("{table.name}", ..., history_ms=...)'
            )
        if late_to is not None:
            self._declared.check_output(late_to)
        op = self._operator

        def make(i: str) -> TemporalJoinSpec:
            definition = f"as-of({op.key_serde.name},{op.value_serde.name})"
            store = self._declared.own_store(i, ".join", "temporal-join", definition)
            return TemporalJoinSpec(
                id=i,
                stores=(table.name, store),
                table=table.name,
                function=function,
                kind=kind,
                message_serde=op.value_serde,
                late_to=late_to,
                **self._changed(),
            )

        return self._next("join_table", op_id, make, renamed_from)
