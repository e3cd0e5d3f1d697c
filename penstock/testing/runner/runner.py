"""Runs an application in one process without Spark, with the runtime code of a real job."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.api.requests import DrainMode
from penstock.api.ssp import SystemStream
from penstock.application.application import Application
from penstock.base.retry import SYSTEM_CLOCK
from penstock.base.wording import listed
from penstock.drain.driver import Drain
from penstock.drain.requests import write_drain_notification
from penstock.errors import ConfigError
from penstock.graph.serdes import store_place
from penstock.graph.stores import StoreSpec
from penstock.host.process import marked_interrupts
from penstock.repartition.placement import Rule
from penstock.state.engines.engine import Content, Engine
from penstock.state.stores.timed_entries import live_view
from penstock.tables.driver import Tables
from penstock.testing.in_process import InProcessDriver
from penstock.testing.runner.checks import Cuts, Outputs, RandomCut, in_every_cut, outputs_of
from penstock.testing.runner.home import RunnerHome
from penstock.testing.runner.inputs import RunnerInputs
from penstock.testing.runner.sides import catch_up, check_pushed, side_content
from penstock.testing.runner.streams import OutputMessage, read_part


class TestRunner(RunnerInputs):
    """A whole job in the test's process, with streams in memory, for tests of applications.

    It runs the code of a real job without Spark: run loop, containers, checkpoints and state backends. It also finds
    mistakes that a run would not show: a value of a store that was changed without a `put` (UnwrittenChangeError), or
    was put although its key had another `put` meanwhile (StaleValueError), and a message's value that an operator
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
        streams: Sequence[str] = (),
        cuts: int = 0,
    ) -> None:
        """Make the job and its streams, which are empty.

        Args:
            app: the application.
            partitions: how many partitions each stream has, and how many tasks the job has.
            dead_letter: the stream for messages that fail, as `task.dead.letter.stream`.
            broadcast_inputs: partitions that every task reads, as `task.broadcast.inputs`: `"local.rates#[0-1]"`.
            config: the keys that tasks find in `context.config`. The runner itself uses only `job.name`,
                `task.window.ms`, `streams.<id>.idle.ms`, `streams.<id>.samza.bootstrap`, `streams.<id>.samza.priority`
                and the keys about side inputs and exactly-once outputs.
                Messages of an exactly-once output appear when `commit` is called, as they do for readers of a real job.
            streams: further streams, `system.stream`, for inputs that are patterns.
            cuts: on so many more jobs, the test runs with inputs that are cut into random batches, the same ones in
                each run of the test. Any call raises CutsDifferError once an output of one of them has other messages,
                in whatever order. `output`, `store` and `dead_letters` are of the job that
                the test describes.

        Raises:
            ConfigError: the application, the configuration or `broadcast_inputs` is wrong; or the application cannot be
                pickled, as a real job needs it to be.
        """
        self._cuts = None
        now_ms = SYSTEM_CLOCK.now_ms()

        def begin(runner: TestRunner, cut: RandomCut | None) -> TestRunner:
            home = RunnerHome(app.name, partitions, dead_letter, broadcast_inputs, config, streams, now_ms, cut)
            runner._begin(app, home)
            return runner

        begin(self, None)
        if cuts:
            self._cuts = Cuts(lambda cut: begin(object.__new__(type(self)), cut), TestRunner._outputs, cuts)

    def _begin(self, app: Application, home: RunnerHome) -> None:
        self._cuts = None
        self._home = home
        self._clock = self._home.clock
        self._job = self._home.job(app)
        self._driver: InProcessDriver | None = self._home.driver(self._job)
        self._started = False
        self._drained = False
        self.dead_letters = 0
        """The number of messages in the dead-letter stream."""

    @in_every_cut
    def run(self, *, batch_messages: int | None = None) -> TestRunner:
        """Process all messages that the inputs hold. Returns the runner.

        Args:
            batch_messages: the most messages that a batch has; each batch has at least one from every partition that
                has messages. None for one batch. `batch_messages=1` finds state that a task keeps in its fields.

        Raises:
            UserCodeError: the application raised, or a message did not decode. The batch was not applied.
            UnwrittenChangeError, StaleValueError, ChangedMessageError: the application makes a mistake that only a
                restart or another operator would show (see the class). The error is the reason of a UserCodeError,
                unless the application catches it.
        """
        return self._run_marked(batch_messages)

    def _run_marked(self, batch_messages: int | None = None) -> TestRunner:
        with marked_interrupts():
            self._run(batch_messages)
        return self

    def _run(self, batch_messages: int | None) -> None:
        driver = self._running()
        catch_up(driver, self._job.graph)
        driver.loop.parts.of(Tables).settle()
        self._job.feed.messages = batch_messages or sys.maxsize
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

    @in_every_cut
    def advance_time(self, ms: int) -> TestRunner:
        """Let time pass, and process everything that is then due. Returns the runner.

        The batch time begins at the wall clock when the runner is made, and does not advance otherwise.

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
        return self._run_marked()

    @in_every_cut
    def advance_watermark(self, to_ms: int) -> TestRunner:
        """Raise the watermark of every operator, as later messages would, and process everything that is then due.
        Returns the runner.

        Args:
            to_ms: the watermark, in epoch milliseconds. A watermark that is already higher stays.

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
        self._job.feed.watermark = max(self._job.feed.watermark, to_ms)
        return self._run_marked()

    @in_every_cut
    def end_inputs(self) -> TestRunner:
        """End the inputs: after what they hold, everything that waits for event time fires. Returns the runner.

        The watermark is then at the end of time: whatever an input gets in the same run is late. To continue after the
        end, start another run with `commit().crash().restore()`. In that run, event time begins again, and the inputs
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
        self._job.feed.ending = True
        return self._run_marked()

    @in_every_cut
    def drain(self, operators: Sequence[str] = ()) -> TestRunner:
        """Drain the job and end its run: no more input is read, everything that waits for a time fires, `on_drain` is
        called, and a last checkpoint is made. Returns the runner. Call `restore` next, which starts another run.

        Args:
            operators: the ids of operators that drain alone, while the others keep what waits in them; empty: all
                drain.

        Raises:
            UserCodeError: as `run`. The job is not drained.
            ConfigError: the application has no such operator.

        Example:
            >>> app = ps.StreamApplication("visits")
            >>> visits = app.input("local.visits").window(ps.Windows.count(10, aggregates={"n": ps.Count()}))
            >>> _ = visits.map(lambda pane: [pane.firing, pane.message["n"]]).send_to(app.output("local.counts"))
            >>> runner = TestRunner(app).input("local.visits", [("N1", 1), ("N1", 2)]).run().drain()
            >>> [message.value for message in runner.output("local.counts")]
            [['drain', 2]]
        """
        driver = self._running()
        known = [op.id for op in driver.job.topology.graph.operators]
        if strangers := set(operators).difference(known):
            raise ConfigError(f"there is no operator {listed(sorted(strangers))}; the application has {listed(known)}")
        mode = DrainMode.OPERATORS if operators else DrainMode.DEFAULT
        write_drain_notification(driver.job.objects, driver.job.paths, mode, operators=tuple(operators))
        driver.loop.parts.of(Drain).ask()
        self._run_marked()
        driver.loop.finish()
        self._crash()
        self._drained = True
        return self

    @in_every_cut
    def commit(self) -> TestRunner:
        """Make a checkpoint of everything that was processed, and wait until it is complete. Returns the runner.

        `crash` and `restore` go back to it. A commit that the application asks for (`coordinator.commit()`) makes a
        checkpoint too, which is complete when `run` returns.
        """
        self._running().loop.commit()
        return self

    @in_every_cut
    def crash(self) -> TestRunner:
        """End the job as a kill does. Only the last checkpoint and the streams remain. Returns the runner.

        Unlike a kill, it closes the application's tasks. Call `restore` next; input can be added before.
        """
        return self._crash()

    def _crash(self) -> TestRunner:
        driver, self._driver = self._running(), None
        driver.close()
        self._home.mistakes.clear()
        return self

    @in_every_cut
    def restore(self, app: Application | None = None) -> TestRunner:
        """Start the job again after `crash` or `drain`, at the stores and positions of the last checkpoint. Returns
        the runner.

        The next `run` reads the messages after the checkpoint again, and writes their outputs a second time, as at any
        restart of a job (at least once). After a checkpoint in which the stream has ended or the run has drained, event
        time begins again.

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
        job = self._job if app is None else self._home.job(app)
        job.feed.watermark, job.feed.ending = self._job.feed.watermark, self._job.feed.ending
        self._driver, self._job = self._home.driver(job), job
        self._started = self._drained = False
        record = self._running().job.start.restore_from
        if record is not None and record.is_closed:
            self._job.feed.begin_again()
        return self

    @in_every_cut
    def repartition(self, tasks: int, rules: Mapping[str, Rule] | None = None) -> TestRunner:
        """Give the job another number of tasks after `crash` or `drain`, and move its state to them, as `penstock state
        repartition` does. Returns the runner. Call `restore` next; before it, `push` the tables again.

        Args:
            tasks: the new number of tasks, at least that of the partitions of streams (`partitions`).
            rules: as those of the command, by store.

        Raises:
            ConfigError: the job has neither crashed nor drained, or cannot have this number of tasks.
            IncompatibleError: it is not known which task owns an entry of a store. The runner is as before.

        Example:
            >>> app = ps.StreamApplication("visits")
            >>> visits = app.input("local.visits").partition_by(lambda visit: visit["user"])
            >>> total = visits.reduce(lambda a, b: {**b, "n": a["n"] + b["n"]}, id="total")
            >>> _ = total.send_to(app.output("local.totals"))
            >>> visit = {"user": "ann", "n": 2}
            >>> runner = TestRunner(app, partitions=2).input("local.visits", [visit]).run().commit().crash()
            >>> runner = runner.repartition(8).restore().input("local.visits", [visit]).run()
            >>> [message.value["n"] for message in runner.output("local.totals")]
            [2, 4]
            >>> runner.close()
        """
        if self._driver is not None:
            raise ConfigError("repartition() follows crash() or drain(): this job is running")
        self._job = self._home.repartition(self._job, tasks, rules or {})
        return self

    def output(self, stream: str) -> list[OutputMessage]:
        """All messages of an output, in the order of partitions and offsets.

        Args:
            stream: the output, `system.stream`, or the dead-letter stream, whose messages are bytes.

        Raises:
            NotFoundError: there is no such stream in this test.
            SerdeError: the output's serdes do not read a key or a value, as after a change of them.
        """
        return self._home.streams.messages(SystemStream.parse(stream), self._job.graph)

    def store(self, name: str, *, task: int | None = None) -> dict[Any, Any]:
        """The content of a store as a dict, as a batch would see it now.

        Args:
            name: the store.
            task: the number of one task; None for all tasks together. If several tasks hold a key, as with broadcast
                inputs, the dict has the value of the last of these tasks.

        Raises:
            ConfigError: the application has no such store, or there is no run: call `restore` after `crash` or `drain`.
            SerdeError: the store's serdes do not read a key or a value.
        """
        if not any(spec.name == name for spec in self._job.graph.stores):
            raise ConfigError(f"`{name}` is not a store of application `{self._job.graph.name}`")
        job = self._running().job
        # The serdes of the run, which know how values from before were written.
        spec = next(spec for spec in job.topology.graph.stores if spec.name == name)
        tasks = job.settings.tasks
        place, found = store_place(name), {}
        for number in range(tasks):
            if task in {None, number}:
                for key_bytes, value in self._entries(number, spec).scan(None, None):
                    key = read_part(place, "key", spec.key_serde, key_bytes)
                    found[key] = read_part(place, "value", spec.value_serde, value, key)
        return found

    def close(self) -> None:
        """Close the application's tasks, and delete the streams and checkpoints."""
        driver, self._driver, self._drained = self._driver, None, False
        if driver is not None:
            driver.close()
        self._home.release()
        if self._cuts is not None:
            self._cuts.call(TestRunner.close)

    def _outputs(self) -> Outputs:
        return outputs_of(self._job.graph, self._home.streams.systems)

    def _running(self) -> InProcessDriver:
        """The driver, with an open epoch."""
        if self._driver is None and self._drained:
            raise ConfigError("this run has drained and ended: restore() starts the next one")
        if self._driver is None:
            raise ConfigError("the job has crashed or is closed: call restore() after crash()")
        if not self._started:
            check_pushed(self._job.graph, self._job.tables)
            self._driver.loop.start()
            self._started = True
        return self._driver

    def _engine(self, task: int, store: str) -> Engine:
        return self._running().fleet.container_of(task).tasks[task].engine(store)

    def _entries(self, task: int, spec: StoreSpec) -> Content:
        driver = self._running()
        if spec.side is not None:
            return side_content(driver, self._job.graph, spec, task)
        engine = self._engine(task, spec.name)
        return engine if spec.ttl is None else live_view(engine, driver.loop.boundary.time_at(self._clock.now_ms()))
