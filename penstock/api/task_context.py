"""Values that a task is given beside messages: its context, the collector of its output, and its coordinator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from penstock.api.key_state import ListState, MapState, ValueState
from penstock.api.messages import HeadersLike
from penstock.api.store import KeyValueStore
from penstock.api.time.firing import TimeDomain
from penstock.metrics.registry import MetricsRegistry


class MessageCollector(ABC):
    """Takes the messages that a task produces, as Samza's MessageCollector. Valid only during the call that gets it.

    Example:
        >>> class Split(ps.StreamTask):
        ...     def process(self, envelope, collector, coordinator):
        ...         collector.emit(key=envelope.key, value=envelope.value)
        ...         if envelope.value < 0:
        ...             collector.send("negative", key=envelope.key, value=envelope.value)
        >>> app = ps.StreamApplication("split")
        >>> _ = app.output("local.negative")
        >>> _ = app.input("local.numbers").process(Split).send_to(app.output("local.all"))
        >>> runner = TestRunner(app).input("local.numbers", [("a", 1), ("a", -2)]).run()
        >>> [[message.value for message in runner.output(name)] for name in ("local.all", "local.negative")]
        [[1, -2], [-2]]
    """

    @abstractmethod
    def emit(self, *, key: Any = None, value: Any, headers: HeadersLike | None = None) -> None:
        """Pass a message to the operators that follow the task in the graph. None does in a TaskApplication: `send`.

        Args:
            key: the key, which fits the serde declared in `process(key=...)`. None for no key.
            value: the value, which fits the serde declared in `process(value=...)`.
            headers: a mapping from name to value (bytes, text or None), or pairs of them. None: those of the message
                that the task handles; a timer has none.

        Raises:
            ConfigError: no operator follows, so that the message would be lost.
            TypeError: `headers` is something else.
        """

    @abstractmethod
    def send(self, output: str, *, key: Any = None, value: Any, headers: HeadersLike | None = None) -> None:
        """Send a message to an output stream that the application declares, at least once.

        Args:
            output: the output, `system.stream`, or its stream's name alone.
            key: the key. The partition follows from its bytes by Kafka's murmur2. Without a key, the partition is the
                one with the task's number.
            value: the value.
            headers: as for `emit`. A system that has no headers, such as one of files, leaves them out.

        Raises:
            ConfigError: the application has not declared this output.
            SerdeError: the key or the value does not fit the output's serdes.
            TypeError: `headers` is something else.
        """


class TaskCoordinator(ABC):
    """Takes the task's requests to the job, as Samza's TaskCoordinator. They take effect when the batch has ended.

    Example:
        >>> class Count(ps.StreamTask):
        ...     def init(self, context):
        ...         self.count = context.store("count")
        ...
        ...     def process(self, envelope, collector, coordinator):
        ...         self.count["all"] = self.count.get("all", 0) + 1
        ...         if envelope.value == "save":
        ...             coordinator.commit()
        >>> app = ps.TaskApplication("count", Count)
        >>> app.store("count")
        >>> app.input("local.commands")
        >>> runner = TestRunner(app, partitions=1).input("local.commands", ["a", "save"]).run()
        >>> _ = runner.input("local.commands", ["b"]).run().crash().restore()
        >>> runner.store("count")
        {'all': 2}
    """

    @abstractmethod
    def commit(self) -> None:
        """Ask for a commit at the end of this batch, whatever `task.commit.ms` says."""

    @abstractmethod
    def shutdown(self) -> None:
        """Ask the job to stop after this batch, with a last commit that it waits for."""


class TaskContext(ABC):
    """The task's stores, timers, metrics and configuration, as Samza's TaskContext. `StreamTask.init` gets it.

    Example:
        >>> class Named(ps.StreamTask):
        ...     def init(self, context):
        ...         self.name = [context.job_name, context.task_name, context.config["app.unit"]]
        ...
        ...     def process(self, envelope, collector, coordinator):
        ...         collector.emit(value=self.name)
        >>> app = ps.StreamApplication("names")
        >>> _ = app.input("local.trips").process(Named).send_to(app.output("local.names"))
        >>> runner = TestRunner(app, partitions=1, config={"app.unit": "miles"}).input("local.trips", ["a"]).run()
        >>> [message.value for message in runner.output("local.names")]
        [['names', 'Partition 0', 'miles']]
    """

    @property
    @abstractmethod
    def task_name(self) -> str:
        """The task's name, `Partition i`, as Samza names it."""

    @property
    @abstractmethod
    def partition(self) -> int:
        """The task's number. The task owns the partition of this number of every input and every shuffle."""

    @property
    @abstractmethod
    def job_name(self) -> str:
        """The job's name, `job.name`."""

    @property
    def is_shadow(self) -> bool:
        """True if what the job sends is held back (`job.shadow.enabled`). Code that changes something by itself, such
        as a call of a service, should not do so then.

        Example:
            >>> class Notify(ps.StreamTask):
            ...     def init(self, context):
            ...         self.calls = not context.is_shadow
        """
        return self.config.get("job.shadow.enabled") == "true"

    @property
    @abstractmethod
    def batch_time_ms(self) -> int:
        """The batch time, in epoch milliseconds. Timers and windows in processing time follow it, and so does the time
        to live.

        It is the same for all tasks and messages of a batch, and in every attempt of it. It never falls from one batch
        to the next. A wall clock, such as `time.time()`, differs between attempts.

        Raises:
            ConfigError: `init` asks for it, before the task's first batch.

        Example:
            >>> class Silent(ps.StreamTask):
            ...     def init(self, context):
            ...         self.context = context
            ...
            ...     def process(self, envelope, collector, coordinator):
            ...         self.context.schedule(envelope.key, self.context.batch_time_ms + 600_000, domain="processing")
            ...
            ...     def on_timer(self, timer, collector, coordinator):
            ...         collector.emit(key=timer.key, value="no message for 10 minutes")
            >>> app = ps.StreamApplication("silent")
            >>> alerts = app.input("local.readings").process(Silent, timers=ps.String())
            >>> _ = alerts.send_to(app.output("local.alerts"))
            >>> runner = TestRunner(app).input("local.readings", [("s1", 20)]).run().advance_time(599_999)
            >>> runner.output("local.alerts")
            []
            >>> [message.key for message in runner.advance_time(1).output("local.alerts")]
            ['s1']
        """

    @property
    @abstractmethod
    def watermark_ms(self) -> int | None:
        """The operator's watermark, in epoch milliseconds. A message with an event time below it is late.

        It is the watermark with which the batch begins, the same for all messages and timers of the batch and in every
        attempt of it. The messages of a batch raise the watermark of a later batch. None: there is no watermark yet, or
        the application does not use event time.

        Raises:
            ConfigError: `init` asks for it, before the task's first batch.

        Example:
            >>> class Lateness(ps.StreamTask):
            ...     def init(self, context):
            ...         self.context = context
            ...
            ...     def process(self, envelope, collector, coordinator):
            ...         watermark_ms = self.context.watermark_ms
            ...         collector.emit(value=watermark_ms is not None and envelope.timestamp < watermark_ms)
            >>> app = ps.StreamApplication("lateness")
            >>> readings = app.input("local.readings", timestamp=lambda reading: reading["at"])
            >>> _ = readings.process(Lateness).send_to(app.output("local.late"))
            >>> runner = TestRunner(app, partitions=1).input("local.readings", [{"at": 900}]).run()
            >>> _ = runner.advance_watermark(1_000).input("local.readings", [{"at": 999}, {"at": 1_000}]).run()
            >>> [message.value for message in runner.output("local.late")]
            [False, True, False]
        """

    @abstractmethod
    def store(self, name: str) -> KeyValueStore[Any, Any]:
        """The task's instance of a store.

        Args:
            name: a store that the operator names in `process(stores=[...])`.

        Raises:
            ConfigError: the operator does not name this store.
        """

    @abstractmethod
    def value_state(self, name: str) -> ValueState[Any]:
        """One value for the key of the message, or the timer, that the task handles. Ask for it in `init`.

        Args:
            name: a store that the operator names in `process(stores=[...])`, usually declared with `app.value_state`.

        Raises:
            ConfigError: the operator does not name this store, or `init` has returned.
        """

    @abstractmethod
    def list_state(self, name: str) -> ListState[Any]:
        """A list for the key of the message, or the timer, that the task handles. Ask for it in `init`.

        Args:
            name: a store that the operator names in `process(stores=[...])`, declared with `app.list_state`.

        Raises:
            ConfigError: the operator does not name this store, its keys are not those of a list state, or `init` has
                returned.
        """

    @abstractmethod
    def map_state(self, name: str) -> MapState[Any, Any]:
        """A map for the key of the message, or the timer, that the task handles. Ask for it in `init`.

        Args:
            name: a store that the operator names in `process(stores=[...])`, usually declared with `app.map_state`.

        Raises:
            ConfigError: the operator does not name this store, its keys are not tuples of two fields, or `init` has
                returned.
        """

    @abstractmethod
    def schedule(self, key: Any, time_ms: int, name: str = "", domain: TimeDomain = "event") -> None:
        """Call `on_timer` when a time has come, even if no message comes. A timer of the same key, name and domain is
        replaced.

        Timers are in a store of the operator: they survive a restart, are part of every backup, and are undone with the
        batch or the message that scheduled them. A timer fires once in the state of every checkpoint, and never before
        its time, except at the end of a stream and at a drain (`ExpiredTimer.firing`). Like outputs, `on_timer` is
        called again if its batch runs again.

        Args:
            key: the key that the timer is for, usually the message's. It must fit the serde of `process(timers=...)`.
                None for the whole task.
            time_ms: when it fires, in epoch milliseconds. If that time has come already, the timer fires at the end of
                this batch (event time), or in the next batch, which begins at once (processing time).
            name: distinguishes several timers of one key.
            domain: "event" for event time: the timer fires when the operator's watermark has reached its time, after
                the messages of that batch. "processing" for the batch time: it fires before the messages of the batch.

        Raises:
            ConfigError: the operator has no timers (`process(timers=...)`), or the time, the name or the domain is not
                valid.
            SerdeError: the key does not fit the serde.

        Example:
            >>> class Sessions(ps.StreamTask):
            ...     def init(self, context):
            ...         self.context, self.seen = context, context.store("seen")
            ...
            ...     def process(self, envelope, collector, coordinator):
            ...         self.seen[envelope.key] = self.seen.get(envelope.key, 0) + 1
            ...         self.context.schedule(envelope.key, envelope.timestamp + 60_000)
            ...
            ...     def on_timer(self, timer, collector, coordinator):
            ...         collector.emit(key=timer.key, value=self.seen[timer.key])
            ...         del self.seen[timer.key]
            >>> app = ps.StreamApplication("sessions")
            >>> app.store("seen")
            >>> sessions = app.input("local.visits").process(Sessions, stores=["seen"], timers=ps.String())
            >>> _ = sessions.send_to(app.output("local.sessions"))
            >>> runner = TestRunner(app).input("local.visits", [("N1", 1), ("N1", 2)], timestamp=5_000).run()
            >>> [message.value for message in runner.advance_watermark(65_000).output("local.sessions")]
            [2]
        """

    @abstractmethod
    def cancel(self, key: Any, name: str = "", domain: TimeDomain = "event") -> None:
        """Forget a timer. Nothing happens if there is none.

        Args:
            key: the key it was scheduled with.
            name: the name it was scheduled with.
            domain: the domain it was scheduled with.

        Raises:
            ConfigError: the operator has no timers, or the name or the domain is not valid.
            SerdeError: the key does not fit the serde.
        """

    @property
    @abstractmethod
    def metrics(self) -> MetricsRegistry:
        """The task's registry of metrics: counters, gauges and timers.

        `job.metrics()` and everything that exports metrics show them in the group `user.<group>`. They are updated when
        the batch has ended; the counts of a discarded attempt are dropped. After a loss of state, the batches since the
        last checkpoint run again, and count again.

        Example:
            >>> def init(self, context):
            ...     self.late = context.metrics.new_counter("orders", "late")
        """

    @property
    @abstractmethod
    def config(self) -> Mapping[str, str]:
        """The configuration as it was given: text by key, for example `job.id`. It cannot be changed.

        Keys that begin with `app.` are the application's own. Keys that were not given are absent, and so are those of
        Spark and of systems, which may hold secrets.
        """
