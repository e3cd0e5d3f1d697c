"""Inputs that a test gives its `TestRunner`: messages of inputs and side inputs, and versions of pushed tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from penstock.api.messages import HeadersLike
from penstock.testing.runner.checks import Cuts, in_every_cut
from penstock.testing.runner.home import RunnerHome, RunnerJob
from penstock.testing.runner.sides import side_stream
from penstock.testing.runner.streams import StreamOfTest


class RunnerInputs:
    """The part of `TestRunner` that takes what the job reads."""

    dead_letters: int
    _cuts: Cuts[Any] | None
    _home: RunnerHome
    _job: RunnerJob

    @in_every_cut
    def input(
        self,
        stream: str,
        values: Iterable[Any],
        *,
        partition: int | None = None,
        timestamp: int = 0,
        headers: HeadersLike = (),
        raw: bool = False,
    ) -> Self:
        """Append messages to an input. Returns the runner.

        Args:
            stream: the input, `system.stream`.
            values: for each message its value, or a tuple (key, value).
            partition: where the messages go. By default a message goes to the partition of its key; messages without
                a key go to the partitions in turn.
            timestamp: of each message, in epoch milliseconds.
            headers: of each message: a mapping from name to value, or pairs of them.
            raw: values, and keys of tuples, are bytes as another program wrote them, such as bytes that the input's
                serde does not read. None is no key, or no value.

        Raises:
            ConfigError: the application does not read the stream.
            SerdeError: a key or a value does not fit the input's serdes.
            TypeError: with `raw`, a key or a value is neither bytes nor None.

        Example:
            >>> app = ps.StreamApplication("trips")
            >>> _ = app.input("local.trips").map(lambda trip: trip["miles"]).send_to(app.output("local.miles"))
            >>> runner = TestRunner(app, dead_letter="local.dead")
            >>> runner = runner.input("local.trips", [b'{"miles": 5}', b"no JSON"], raw=True).run()
            >>> [message.value for message in runner.output("local.miles")], runner.dead_letters
            ([5], 1)
            >>> runner.close()
        """
        found = StreamOfTest.of_input(self._job.graph, stream, raw=raw)
        self._home.streams.append(found, values, partition, timestamp, headers)
        return self

    @in_every_cut
    def side_input(
        self,
        stream: str,
        values: Iterable[Any],
        *,
        partition: int | None = None,
        timestamp: int = 0,
        headers: HeadersLike = (),
    ) -> Self:
        """Append messages to a side input. Returns the runner.

        All batches of the next `run` see their effect on the stores. If the stream is also an input of the application,
        it is read as one, too.

        Args:
            stream: the side input, `system.stream`.
            values: for each message its value, or a tuple (key, value). A value of None deletes the key, unless a
                processor makes something else of it.
            partition: where the messages go. By default a message goes to the partition of its key; messages without
                a key go to the partitions in turn.
            timestamp: of each message, in epoch milliseconds.
            headers: of each message, as for `input`.

        Raises:
            ConfigError: no store of the application has this side input.
            SerdeError: a key or a value does not fit the side input's serdes.

        Example:
            >>> app = ps.StreamApplication("names")
            >>> airlines = app.table("airlines", value=ps.String(), side_inputs=["local.airlines"])
            >>> flights = app.input("local.flights").join_table(airlines, lambda flight, name: [flight, name])
            >>> _ = flights.send_to(app.output("local.named"))
            >>> runner = TestRunner(app).side_input("local.airlines", [("UA", "United"), ("DL", "Delta")])
            >>> runner = runner.input("local.flights", [("UA", 1), ("DL", 2)]).run()
            >>> runner = runner.side_input("local.airlines", [("UA", "United Airlines"), ("DL", None)])
            >>> runner = runner.input("local.flights", [("UA", 3), ("DL", 4)]).run()
            >>> sorted(message.value for message in runner.output("local.named"))
            [[1, 'United'], [2, 'Delta'], [3, 'United Airlines']]
            >>> runner.close()
        """
        self._home.streams.append(side_stream(self._job.graph, stream), values, partition, timestamp, headers)
        return self

    @in_every_cut
    def push(self, table: str, rows: Iterable[Mapping[str, Any]]) -> Self:
        """Publish a version of a pushed table. Returns the runner.

        All batches of the next `run` read it instead of the previous version. It must pass the table's `check`. The
        table's path and format play no part.

        Args:
            table: the name of the table or store.
            rows: all rows of the version, each a mapping from column to value.

        Raises:
            ConfigError: the application has no such pushed table; or the rows are not a version of it: two have the
                same key, a column is missing, values of a column have different types, something does not fit the
                table's serdes, or the table's `check` refuses it.

        Example:
            >>> app = ps.StreamApplication("years")
            >>> planes = app.table("planes", value=ps.Integer(), pushed=ps.PushedTable("/planes", "tail", "year"))
            >>> flights = app.input("local.flights").join_table(planes, lambda flight, year: [flight, year])
            >>> _ = flights.send_to(app.output("local.aged"))
            >>> runner = TestRunner(app).push("planes", [{"tail": "N14", "year": 1999}])
            >>> runner = runner.input("local.flights", [("N14", 1)]).run()
            >>> runner = runner.push("planes", [{"tail": "N14", "year": 2004}])
            >>> runner = runner.input("local.flights", [("N14", 2)]).run()
            >>> [message.value for message in runner.output("local.aged")]
            [[1, 1999], [2, 2004]]
            >>> runner.close()
        """
        self._job.tables.push(table, rows)
        return self
