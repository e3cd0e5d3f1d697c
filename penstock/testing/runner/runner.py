"""Runs an application in one process without Spark, with the runtime code of a real job."""

from __future__ import annotations

import shutil
import sys
import tempfile
import uuid
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.api.application import Application
from penstock.api.graph import ApplicationGraph
from penstock.api.serdes.failures import input_place
from penstock.api.ssp import SystemStream
from penstock.api.store import StoreSpec
from penstock.clock import SYSTEM_CLOCK
from penstock.config.broadcast import PartitionRange
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.config.table import BROADCAST_INPUTS
from penstock.config.values import RefusedError
from penstock.drain.utils import write_drain_notification
from penstock.driver.event_time import EventTime
from penstock.errors import ConfigError
from penstock.metadata.open import forget_memory_store, open_store
from penstock.metadata.paths import JobPaths
from penstock.plan.side_inputs import side_streams, with_side_inputs
from penstock.runtime.interrupts import marked_interrupts
from penstock.runtime.topology import plan_topology
from penstock.state.stores.expiry import Source, live_view
from penstock.testing.checked_operators import checked_graph
from penstock.testing.checked_store import CheckedStore
from penstock.testing.clock import SettableClock
from penstock.testing.in_process import InProcessDriver
from penstock.testing.pushed_tables import TablesInProcess
from penstock.testing.runner.feed import RunnerFeed
from penstock.testing.runner.sides import catch_up, check_pushed, side_content, side_stream
from penstock.testing.runner.streams import OutputMessage, StreamOfTest, StreamsOfTest


class TestRunner:
    """A whole job in the test's process, with streams in memory, for tests of applications.

    It runs the code of a real job without Spark: run loop, containers, checkpoints and state backends. It also finds
    mistakes that a run would not show: values of a store that were changed without a `put` (UnwrittenChangeError), or
    put although their key had another `put` meanwhile (StaleValueError), and values of messages that an operator
    changed in place (ChangedMessageError).

    Example:
        >>> class Count(ps.StreamTask):
        ...     def init(self, context):
        ...         self.flights = context.store("flights")
        ...
        ...     def process(self, envelope, collector, coordinator):
        ...         self.flights[envelope.key] = self.flights.get(envelope.key, 0) + 1
        >>> app = ps.TaskApplication("count", Count)
        >>> app.store("flights")
        >>> app.input("local.trips")
        >>> runner = TestRunner(app).input("local.trips", [("N1", None), ("N1", None)]).run().commit()
        >>> runner.input("local.trips", [("N1", None)]).run().store("flights")
        {'N1': 3}
        >>> runner.crash().restore().store("flights")
        {'N1': 2}
        >>> runner.run().store("flights")
        {'N1': 3}
        >>> runner.close()
    """

    __test__ = False  # not a test case, whatever pytest thinks of its name

    def __init__(
        self,
        app: Application,
        *,
        partitions: int = 2,
        dead_letter: str | None = None,
        broadcast_inputs: str | Sequence[str] = (),
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Make the job and its streams, which are empty.

        Args:
            app: the application.
            partitions: how many partitions each stream has, and how many tasks the job has.
            dead_letter: the stream for messages that fail, as `task.dead.letter.stream`.
            broadcast_inputs: partitions that every task reads, as `task.broadcast.inputs`: `"local.rates#[0-1]"`.
            config: the keys that tasks find in `context.config`. The runner itself uses `job.name`,
                `task.window.ms` and what the keys say of side inputs only.

        Raises:
            ConfigError: the application, the configuration or `broadcast_inputs` is wrong.
        """
        self._mistakes: list[AssertionError] = []
        self._name = app.name
        self._given = config
        self._dead = SystemStream.parse(dead_letter) if dead_letter else None
        self._broadcast_inputs = broadcast_inputs
        self._partitions = partitions
        self._root, self._folder = f"memory://{uuid.uuid4().hex}", Path(tempfile.mkdtemp(prefix="penstock-test-"))
        self._release = weakref.finalize(self, _release, self._root, self._folder)
        self._streams = StreamsOfTest(partitions)
        self._clock = SettableClock(SYSTEM_CLOCK.now_ms())
        self._graph: ApplicationGraph
        self._config: JobConfig
        self._task_config: Mapping[str, str]
        self._feed: RunnerFeed
        self._tables: TablesInProcess
        self._use(app)
        self._driver: InProcessDriver | None = self._new_driver()
        self._started = False
        self._drained = False
        self.dead_letters = 0
        """How many messages went to the dead-letter stream."""

    def input(
        self, stream: str, values: Iterable[Any], *, partition: int | None = None, timestamp: int = 0
    ) -> TestRunner:
        """Append messages to an input. Returns the runner.

        Args:
            stream: the input, `system.stream`.
            values: for each message its value, or a tuple (key, value).
            partition: where the messages go. By default a message goes to the partition of its key; messages without
                a key go to the partitions in turn.
            timestamp: of each message, in epoch milliseconds.

        Raises:
            ConfigError: the application does not read the stream.
            SerdeError: a key or a value does not fit the input's serdes.
        """
        name = SystemStream.parse(stream)
        spec = next((op for op in self._graph.inputs if op.stream == name), None)
        if spec is None:
            raise ConfigError(f"`{stream}` is not an input of application `{self._graph.name}`")
        found = StreamOfTest(name, input_place(name), spec.key_serde, spec.value_serde)
        self._streams.append(found, values, partition, timestamp)
        return self

    def side_input(
        self, stream: str, values: Iterable[Any], *, partition: int | None = None, timestamp: int = 0
    ) -> TestRunner:
        """Append messages to a side input. Returns the runner.

        The next `run` sees what they make of the stores, in all its batches. A stream that is an input of the
        application as well is also read as one.

        Args:
            stream: the side input, `system.stream`.
            values: for each message its value, or a tuple (key, value). A value of None deletes the key, unless a
                processor makes something else of it.
            partition: where the messages go. By default a message goes to the partition of its key; messages without
                a key go to the partitions in turn.
            timestamp: of each message, in epoch milliseconds.

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
        self._streams.append(side_stream(self._graph, stream), values, partition, timestamp)
        return self

    def push(self, table: str, rows: Iterable[Mapping[str, Any]]) -> TestRunner:
        """Publish a version of a pushed table. Returns the runner.

        The next `run` reads it in all of its batches, instead of the version before. The table's path, format and
        `check` play no part.

        Args:
            table: the name of the table or store.
            rows: all rows of the version, each a mapping from column to value.

        Raises:
            ConfigError: the application has no such pushed table; or the rows are not a version of it: two have the
                same key, a column is missing, or something does not fit the table's serdes.

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
        self._tables.push(table, rows)
        return self

    def run(self, *, batch_messages: int | None = None) -> TestRunner:
        """Process all messages that the inputs hold. Returns the runner.

        Args:
            batch_messages: how many messages a batch has at most; each has at least one of every partition that has
                messages. None for one batch. `batch_messages=1` finds state that a task keeps in its fields.

        Raises:
            UserCodeError: the application raised, or a message did not decode. The batch was not applied.
            UnwrittenChangeError, StaleValueError, ChangedMessageError: the application makes a mistake that only a
                restart or another operator would show (see the class). It is the reason of a UserCodeError unless the
                application catches it.
        """
        with marked_interrupts():
            self._run(batch_messages)
        return self

    def _run(self, batch_messages: int | None) -> None:
        driver = self._running()
        catch_up(driver, self._graph)
        driver.loop.await_tables()
        self._feed.messages = batch_messages or sys.maxsize
        finished = False
        while not finished:
            before = driver.board.last
            try:
                finished = driver.loop.step()
            except BaseException:
                driver.fleet.drop_attempts()
                raise
            if (last := driver.board.last) is not None and last is not before:
                self.dead_letters += last.dead_letters
        driver.loop.await_commit()

    def advance_time(self, ms: int) -> TestRunner:
        """Let time pass, and process what is due then. Returns the runner.

        The batch time stands still otherwise: it begins with the wall clock when the runner is made.

        Args:
            ms: how much time, in milliseconds.

        Raises:
            UserCodeError: as `run`.

        Example:
            >>> app = ps.StreamApplication("visits")
            >>> visits = app.input("local.visits").window(ps.Windows.tumbling(60_000, time="processing"))
            >>> _ = visits.map(lambda pane: pane.message).send_to(app.output("local.lists"))
            >>> runner = TestRunner(app).input("local.visits", [("N1", 1), ("N1", 2)]).run()
            >>> runner.output("local.lists")
            []
            >>> [message.value for message in runner.advance_time(60_000).output("local.lists")]
            [[1, 2]]
        """
        self._clock.advance(ms / 1000)
        return self.run()

    def advance_watermark(self, to_ms: int) -> TestRunner:
        """Raise the watermark of every operator, as messages of later times would, and process what is due then.
        Returns the runner.

        Args:
            to_ms: the watermark, in epoch milliseconds. One that is higher already stays.

        Raises:
            UserCodeError: as `run`.

        Example:
            >>> app = ps.StreamApplication("visits")
            >>> visits = app.input("local.visits").window(ps.Windows.tumbling(60_000, aggregates={"n": ps.Count()}))
            >>> _ = visits.map(lambda pane: pane.message["n"]).send_to(app.output("local.counts"))
            >>> runner = TestRunner(app).input("local.visits", [("N1", 1), ("N1", 2)], timestamp=5_000).run()
            >>> [message.value for message in runner.advance_watermark(60_000).output("local.counts")]
            [2]
        """
        self._feed.watermark = max(self._feed.watermark, to_ms)
        return self.run()

    def end_inputs(self) -> TestRunner:
        """End the inputs: after what they hold, everything that waits for event time fires. Returns the runner.

        The watermark is then at the end of time: whatever an input gets in the same run is late. To go on after the
        end, start another run with `commit().crash().restore()`. In that one event time begins again, and the inputs
        have not ended.

        Raises:
            UserCodeError: as `run`.

        Example:
            >>> app = ps.StreamApplication("visits")
            >>> visits = app.input("local.visits").window(ps.Windows.count(10, aggregates={"n": ps.Count()}))
            >>> _ = visits.map(lambda pane: pane.message["n"]).send_to(app.output("local.counts"))
            >>> runner = TestRunner(app).input("local.visits", [("N1", 1), ("N1", 2)]).end_inputs()
            >>> [message.value for message in runner.output("local.counts")]
            [2]
        """
        self._feed.ending = True
        return self.run()

    def drain(self) -> TestRunner:
        """Drain the job and end its run: no more input is read, everything that waits for time fires, `on_drain` is
        called, and a last checkpoint is made. Returns the runner. Call `restore` next, which starts another run.

        Raises:
            UserCodeError: as `run`. The job is not drained.

        Example:
            >>> app = ps.StreamApplication("visits")
            >>> visits = app.input("local.visits").window(ps.Windows.count(10, aggregates={"n": ps.Count()}))
            >>> _ = visits.map(lambda pane: [pane.firing, pane.message["n"]]).send_to(app.output("local.counts"))
            >>> runner = TestRunner(app).input("local.visits", [("N1", 1), ("N1", 2)]).run().drain()
            >>> [message.value for message in runner.output("local.counts")]
            [['drain', 2]]
        """
        driver = self._running()
        write_drain_notification(driver.job.objects, driver.job.paths)
        driver.loop.ask_to_drain()
        self.run()
        driver.loop.finish()
        self.crash()
        self._drained = True
        return self

    def commit(self) -> TestRunner:
        """Make a checkpoint of everything that was processed, and wait until it is complete. Returns the runner.

        `crash` and `restore` go back to it. A commit that the application asks for (`coordinator.commit()`) makes a
        checkpoint too, which is complete when `run` returns.
        """
        self._running().loop.commit()
        return self

    def crash(self) -> TestRunner:
        """End the job as a kill does. Only the last checkpoint and the streams remain. Returns the runner.

        Unlike a kill, it closes the application's tasks. Call `restore` next; input can be added before.
        """
        driver, self._driver = self._running(), None
        driver.close()
        self._mistakes.clear()
        return self

    def restore(self, app: Application | None = None) -> TestRunner:
        """Start the job again after `crash` or `drain`, at the stores and positions of the last checkpoint. Returns
        the runner.

        The next `run` reads the messages behind the checkpoint again, and writes their outputs a second time, as at
        any restart of a job (at least once). Behind a checkpoint in which the stream has ended or the run has drained,
        event time begins again.

        Args:
            app: a changed application, which the job runs from now on, whatever its name is. None for the same one.

        Raises:
            ConfigError: the job has neither crashed nor drained, or the changed application is wrong.
            IncompatibleError: the changed application does not fit the last checkpoint. The runner is as before: call
                `restore` again, with an application that fits.

        Example:
            >>> def visits(size):
            ...     app = ps.StreamApplication("visits")
            ...     panes = app.input("local.visits").window(ps.Windows.count(size, aggregates={"n": ps.Count()}))
            ...     _ = panes.map(lambda pane: pane.message["n"]).send_to(app.output("local.counts"))
            ...     return app
            >>> runner = TestRunner(visits(10)).input("local.visits", [("N1", 1)] * 3).run().drain()
            >>> runner = runner.restore(visits(2)).input("local.visits", [("N1", 1)] * 3).run()
            >>> [message.value for message in runner.output("local.counts")]
            [3, 2]
            >>> runner.close()
        """
        if self._driver is not None:
            raise ConfigError("restore() follows crash() or drain(): this job is running")
        feed = self._feed
        before = self._graph, self._config, self._task_config, feed, self._tables
        try:
            if app is not None:
                self._use(app)
                self._feed.watermark, self._feed.ending = feed.watermark, feed.ending
            self._driver = self._new_driver()
        except BaseException:
            self._graph, self._config, self._task_config, self._feed, self._tables = before
            raise
        self._started = self._drained = False
        record = self._running().job.start.restore_from
        if record is not None and record.is_closed:
            self._feed.begin_again()
        return self

    def output(self, stream: str) -> list[OutputMessage]:
        """All messages of an output, in the order of partitions and offsets.

        Args:
            stream: the output, `system.stream`, or the dead-letter stream, whose messages are bytes.

        Raises:
            NotFoundError: there is no such stream in this test.
        """
        return self._streams.messages(SystemStream.parse(stream), self._graph)

    def store(self, name: str, *, task: int | None = None) -> dict[Any, Any]:
        """The content of a store as a dict, as a batch would see it now.

        Args:
            name: the store.
            task: the number of one task; None for all tasks together. Of a key that several tasks hold, as with
                broadcast inputs, the dict has the value of the last task.

        Raises:
            ConfigError: the application has no such store, or no run is there: call `restore` after `crash` or `drain`.
        """
        spec = next((s for s in self._graph.stores if s.name == name), None)
        if spec is None:
            raise ConfigError(f"`{name}` is not a store of application `{self._graph.name}`")
        tasks = self._running().job.settings.tasks
        return {
            spec.key_serde.from_bytes(key): spec.value_serde.from_bytes(value)
            for number in range(tasks)
            if task in {None, number}
            for key, value in self._entries(number, spec).scan(None, None)
        }

    def close(self) -> None:
        """Close the application's tasks, and delete the streams and checkpoints."""
        driver, self._driver, self._drained = self._driver, None, False
        if driver is not None:
            driver.close()
        self._release()

    def _use(self, app: Application) -> None:
        """Make what drivers run this application with, and the streams that it needs."""
        loaded = load_config(overrides=self._given, default_job_name=self._name)
        graph = checked_graph(with_side_inputs(app.graph(), loaded), self._mistakes)
        plan_topology(graph, self._dead)  # refuses what cannot run before any stream is made
        config = _driver_config(graph, loaded, self._root, self._folder, self._dead, self._broadcast_inputs)
        outputs = [spec.stream for spec in graph.outputs] + ([self._dead] if self._dead else [])
        streams = [*(op.stream for op in graph.sources), *outputs, *sorted(side_streams(graph))]
        changelogs = {config.store(spec.name).changelog.system for spec in graph.written_stores}
        self._streams.make(streams, sorted(changelogs))
        self._graph = graph
        self._config = config
        self._task_config = loaded.for_tasks()
        self._feed = RunnerFeed(lambda: self._streams.ends(graph), graph, EventTime.of(graph, config), self._clock)
        paths = JobPaths(config.job.name, config.job.id)
        self._tables = TablesInProcess(open_store(self._root), paths, graph, self._partitions)

    def _new_driver(self) -> InProcessDriver:
        driver = InProcessDriver(
            self._graph,
            self._config,
            open_store(self._root),
            self._streams.systems,
            containers=1,
            layers=(CheckedStore,),
            task_config=self._task_config,
            feed=self._feed,
            published=self._tables,
            clock=self._clock,
        )
        driver.fleet.at = self._check
        return driver

    def _running(self) -> InProcessDriver:
        """The driver, with an open epoch."""
        if self._driver is None and self._drained:
            raise ConfigError("this run has drained and ended: restore() starts the next one")
        if self._driver is None:
            raise ConfigError("the job has crashed or is closed: call restore() after crash()")
        if not self._started:
            check_pushed(self._graph, self._tables)
            self._driver.loop.start()
            self._started = True
        return self._driver

    def _check(self, step: str) -> None:
        """Raise the application's first mistake before a batch is applied."""
        if step == "end" and self._mistakes:
            raise self._mistakes.pop(0)

    def _engine(self, task: int, store: str) -> Engine:
        return self._running().fleet.container_of(task).tasks[task].engine(store)

    def _entries(self, task: int, spec: StoreSpec) -> Source:
        driver = self._running()
        if spec.side is not None:
            return side_content(driver, self._graph, spec, task)
        engine = self._engine(task, spec.name)
        return engine if spec.ttl is None else live_view(engine, driver.loop.boundary.time_at(self._clock.now_ms()))


def _driver_config(
    graph: ApplicationGraph,
    given: JobConfig,
    root: str,
    folder: Path,
    dead_letter: SystemStream | None,
    broadcast_inputs: str | Sequence[str],
) -> JobConfig:
    """The configuration of a job in memory. It commits only when asked to, and retries nothing."""
    keys: dict[str, object] = {
        "job.name": given.job.name,
        "task.window.ms": given.task.window_ms,
        "job.root": root,
        "job.logged.store.base.dir": str(folder),
        "job.retry.max": 0,
        "task.commit.ms": 0,
        **{key: value for key, value in given.flat().items() if key.startswith("side.inputs.")},
        **{f"stores.{spec.name}.factory": "memory" for spec in graph.stores},
    }
    config = load_config(overrides=keys, environ={})
    task = replace(config.task, dead_letter_stream=dead_letter, broadcast_inputs=_broadcast(broadcast_inputs))
    return replace(config, task=task)


def _release(root: str, folder: Path) -> None:
    forget_memory_store(root)
    shutil.rmtree(folder, ignore_errors=True)


def _broadcast(inputs: str | Sequence[str]) -> tuple[PartitionRange, ...]:
    if not inputs:
        return ()
    try:
        return BROADCAST_INPUTS.kind.parse(inputs if isinstance(inputs, str) else tuple(inputs))
    except RefusedError as error:
        raise ConfigError(f"broadcast_inputs: expected {BROADCAST_INPUTS.kind.expected} ({error})") from error
