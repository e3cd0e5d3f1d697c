"""The two passes of a replay: over everything, to find the wanted messages, and with each of them alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import listed
from penstock.batch.batch import TaskSsp
from penstock.batch.portions import NOTHING, BatchRanges, Portion, PortionRead
from penstock.driver.feed.boundary import Boundary
from penstock.driver.feed.feed import End, Feed, Next, PlannedBatch
from penstock.errors import ConfigError, IncompatibleError, NotFoundError, UserCodeError
from penstock.graph.specs import ApplicationGraph
from penstock.graph.topology import Channel, Topology
from penstock.host.process import marked_interrupts
from penstock.runtime.messages.packet import Packet
from penstock.runtime.stage.task_instance import TaskAttempt, TaskInstance
from penstock.system.base import OffsetRange
from penstock.tables.driver import Tables
from penstock.testing.clock import SettableClock
from penstock.testing.in_process import InProcessDriver
from penstock.testing.rehearsal.feeds import Forwarding, NotedFeed, Piece, ReadBatch, pieces_of
from penstock.testing.rehearsal.job import Rehearsal
from penstock.testing.rehearsal.trace import (
    Change,
    Entries,
    Marks,
    Origin,
    Row,
    Stops,
    changes_of,
    culprits,
    rows_of,
    shown,
    texts_of,
)
from penstock.testing.runner.sides import catch_up


@dataclass(frozen=True, slots=True)
class OutputMessage:
    """A message of an output."""

    ssp: SystemStreamPartition
    offset: int
    key: bytes | None
    value: bytes | None

    def equals(self, row: Row) -> bool:
        place = self.ssp.system_stream, self.ssp.partition, self.key, self.value
        return (row.channel.output, row.partition, row.key, row.value) == place


@dataclass(frozen=True, slots=True)
class Wanted:
    """The messages to show: those with one of these keys, by channel; or those made from one input message."""

    keys: Mapping[int, bytes | None] = field(default_factory=dict)
    origin: Origin | None = None

    def takes(self, row: Row) -> bool:
        if self.origin is not None:
            return row.origin == self.origin
        return row.channel.number in self.keys and self.keys[row.channel.number] == row.key

    @classmethod
    def of_text(cls, topology: Topology, text: str) -> Wanted:
        """The messages of a key, by its text. Raises ConfigError if no operator has keys that the text can be."""
        found: dict[int, bytes | None] = {}
        refused: ConfigError | None = None
        for channel in watched(topology):
            try:
                found[channel.number] = texts_of("key", channel.key_serde).parse(text)
            except ConfigError as error:
                refused = refused or error
        if not found:
            raise refused or ConfigError("the application has no messages with keys, so there is no key to replay")
        return cls(found)

    @classmethod
    def of_row(cls, topology: Topology, row: Row) -> Wanted:
        """The messages with the key of another one, wherever keys are written in the same way."""
        serde = row.channel.key_serde.name
        return cls({each.number: row.key for each in watched(topology) if each.key_serde.name == serde})


def watched(topology: Topology) -> list[Channel]:
    """The channels to stages with tasks; those to outputs, where there are no others."""
    inner = [channel for channel in topology.channels if channel.output is None]
    return inner or list(topology.channels)


class Survey:
    """Sees the whole input once, and finds the input messages that are wanted, and the tasks that they come to."""

    def __init__(
        self,
        topology: Topology,
        wanted: Wanted | None = None,
        output: OutputMessage | None = None,
        marks: Marks | None = None,
    ) -> None:
        """`output`: a message whose origin is to be found."""
        self.topology = topology
        self.marks = marks or Marks()
        self.origins: set[Origin] = set()
        self.tasks: set[int] = set()
        self.found: list[tuple[Row, Row | None]] = []
        """The messages that are equal to the output, each with what came to the task that sent it; None: it fired."""
        self._wanted = wanted
        self._output = output
        self._watched = {channel.number for channel in watched(topology)}
        self._batch = -1
        self._came: dict[Origin, Row] = {}
        """In this batch, the last message made from each input message."""

    def arrived(self, batch: int, packets: Sequence[Packet]) -> None:
        if batch != self._batch:
            self._batch = batch
            self._came.clear()
        for row in rows_of(self.topology, packets):
            self.marks.add(row)
            if self._output is not None:
                self._look(row, self._output)
            is_watched = row.origin is not None and row.channel.number in self._watched
            if is_watched and self._wanted is not None and self._wanted.takes(row):
                self.origins.add(row.origin)  # type: ignore[arg-type]
                self.tasks.add(row.task)

    def _look(self, row: Row, output: OutputMessage) -> None:
        if row.channel.output is None:
            if row.origin is not None:
                self._came[row.origin] = row
        elif output.equals(row):
            self.found.append((row, None if row.origin is None else self._came.get(row.origin, row)))

    def processed(self, attempt: TaskAttempt, task: TaskInstance) -> None: ...


@dataclass(frozen=True, slots=True)
class Step:
    """One message, or the firing of what was due after a batch, and all that it did."""

    number: int
    batch_time_ms: int
    """The time of its batch, in epoch milliseconds."""
    messages: tuple[Row, ...]
    """The message as it came to each operator that keeps something; empty: something fired."""
    changes: tuple[Change, ...]
    outputs: tuple[Row, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "step": self.number,
            "batchTime": self.batch_time_ms,
            "messages": [
                {"operators": list(row.channel.targets), "task": row.task, **_origin(row), **_content(row)}
                for row in self.messages
            ],
            "changes": [each.as_json() for each in self.changes],
            "outputs": [
                {"output": str(row.channel.output), "partition": row.partition, **_content(row)} for row in self.outputs
            ],
        }


def _origin(row: Row) -> dict[str, Any]:
    return {} if row.origin is None else {"input": str(row.origin[0]), "offset": row.origin[1]}


def _content(row: Row) -> dict[str, Any]:
    return {
        "timestamp": row.timestamp,
        "key": shown("key", row.channel.key_serde, row.key),
        "value": shown("value", row.channel.value_serde, row.value),
    }


class Recorder:
    """Sees the input in pieces, in which each wanted message is alone."""

    def __init__(self, topology: Topology, wanted: Wanted, tell: Callable[[Step], None]) -> None:
        self.topology = topology
        self.marks = Marks()
        self.piece: Piece | None = None
        """The part that is processed now."""
        self._keys = set(wanted.keys.values())
        self._entries = Entries(topology)
        self._tell = tell
        self._watched = {channel.number for channel in watched(topology)}
        self._steps = 0
        self._messages: list[Row] = []
        self._changes: list[Change] = []
        self._outputs: list[Row] = []

    def arrived(self, batch: int, packets: Sequence[Packet]) -> None:
        for row in rows_of(self.topology, packets):
            self.marks.add(row)
            if self.is_alone and row.channel.number in self._watched:
                self._messages.append(row)
            if row.channel.output is not None and self._counts(row.key):
                self._outputs.append(row)

    def processed(self, attempt: TaskAttempt, task: TaskInstance) -> None:
        if self.is_alone or self._fires:
            changes = changes_of(attempt, task, self._entries)
            self._changes += [each for each in changes if self._counts(each.entry if each.key is None else each.key)]

    def ended(self) -> None:
        """The piece has been processed."""
        if self._messages or self._outputs or self._changes:
            self._steps += 1
            time_ms = 0 if self.piece is None else self.piece.batch.moment.time_ms
            self._tell(Step(self._steps, time_ms, tuple(self._messages), tuple(self._changes), tuple(self._outputs)))
        self._messages, self._changes, self._outputs = [], [], []

    @property
    def is_alone(self) -> bool:
        """True while one wanted message is processed, and nothing else."""
        return self.piece is not None and self.piece.alone

    @property
    def _fires(self) -> bool:
        return self.piece is not None and not self.piece.ranges

    def _counts(self, key: bytes | None) -> bool:
        """True for what one wanted message did. What fires is of all keys."""
        return key in self._keys if self._fires else self.is_alone


class PieceFeed(Forwarding):
    """The noted batches again, in pieces. Time passes as in the whole batch: watermarks rise, and what is due fires,
    behind its last message."""

    def __init__(self, driver: InProcessDriver, pieces: Iterator[Piece], recorder: Recorder) -> None:
        super().__init__(driver.loop.parts.feed)
        self._pieces = pieces
        self._recorder = recorder
        self._sources = tuple(op.stream for op in driver.job.topology.graph.sources)

    def next(self, boundary: Boundary) -> Next:
        for piece in self._pieces:
            moment, latest = piece.batch.moment, {at.ssp: offset for at, offset in boundary.positions.items()}
            self._recorder.piece = piece
            if piece.ranges is None:
                if piece.batch.planned.control != "none":
                    return replace(piece.batch.planned, ranges=NOTHING, latest=latest)
                if boundary.due(moment) or moment.watermarks.firing != boundary.watermarks:
                    return PlannedBatch(NOTHING, latest, moment)
                continue
            still = replace(moment, watermarks=replace(moment.watermarks, firing=dict(boundary.watermarks)))
            portions = {at: Portion(OffsetRange(at.ssp, start, end), end - start) for at, start, end in piece.ranges}
            return PlannedBatch(BatchRanges.group(portions, self._sources), latest, still)
        return End()

    def ended(self, took_ms: float, read: Mapping[TaskSsp, PortionRead]) -> None:
        self._recorder.ended()


@dataclass(frozen=True, slots=True)
class Replayed:
    """The end of a replay: how many messages it showed, and the operators that did not do the same twice."""

    messages: int
    differing: tuple[str, ...] = ()


def run(driver: InProcessDriver) -> None:
    """Run to the end, without a last commit: what the state is then goes with the run."""
    with marked_interrupts():
        driver.loop.start()
        catch_up(driver, driver.job.topology.graph)
        driver.loop.parts.of(Tables).settle()
        while not driver.loop.step():
            pass


def run_whole(
    rehearsal: Rehearsal,
    name: str,
    watch: Callable[[Topology], Survey],
    changed: Callable[[ApplicationGraph], ApplicationGraph] | None = None,
) -> tuple[Survey, list[ReadBatch]]:
    """Process the whole input. What was seen, and the batches."""
    made: list[Survey] = []
    noted: list[NotedFeed] = []

    def seen(topology: Topology) -> Survey:
        made.append(watch(topology))
        return made[0]

    def feed(driver: InProcessDriver, clock: SettableClock) -> Feed:
        noted.append(rehearsal.noted(driver, clock))
        return noted[0]

    with rehearsal.opened(name, seen, feed, changed) as driver:
        run(driver)
    return made[0], noted[0].noted


def replay(
    rehearsal: Rehearsal,
    wanted: Callable[[Topology], Wanted],
    tell: Callable[[Step], None],
    *,
    debug: bool = False,
    last: Callable[[Step], bool] | None = None,
) -> Replayed:
    """Process the input twice: as a whole, to find the wanted messages, and then with each of them alone. If tasks
    depend on the inputs alone, the wanted messages are found without any state first, and only the tasks that they come
    to take part.

    Args:
        rehearsal: the job, and where to begin and to end.
        wanted: the messages to show, for the stages of the application.
        tell: gets the steps, one after the other.
        debug: stop in a debugger where the application's code gets such a message.
        last: end behind the first such step.

    Raises:
        NotFoundError: there are no such messages.
        IncompatibleError: the application has durable streams.
        PenstockError: as a run of the application.
    """
    if streams := [f"`{spec.stream}`" for spec in rehearsal.app.graph().intermediates]:
        raise IncompatibleError(
            f"the application sends messages through {listed(streams)}, and a replay cannot read a durable stream in "
            "the same parts twice. `penstock shadow` compares such applications, and `penstock state get` shows states"
        )

    with rehearsal.sharing() as own:
        return _replay(own, wanted, _Told(tell, last), debug=debug)


def _replay(rehearsal: Rehearsal, wanted: Callable[[Topology], Wanted], told: _Told, *, debug: bool) -> Replayed:
    rehearsal, survey, noted = _surveyed(rehearsal, wanted)
    stops = Stops(lambda: recorders[0].is_alone)
    recorders: list[Recorder] = []

    def record(topology: Topology) -> Recorder:
        recorders.append(Recorder(topology, wanted(topology), told))
        return recorders[0]

    def feed(driver: InProcessDriver, _clock: SettableClock) -> Feed:
        begins = driver.job.config.task.window_ms > 0
        pieces = (piece for batch in noted for piece in pieces_of(batch, survey.origins, begins=begins))
        return PieceFeed(driver, takewhile(lambda _: not told.is_enough, pieces), recorders[0])

    with rehearsal.opened("replay", record, feed, stops.in_graph if debug else None) as driver:
        run(driver)
    if told.failed is not None:
        raise told.failed
    if told.is_enough:
        return Replayed(told.messages)
    # Some operators send once for each batch, so that the second pass may differ although all is well.
    same = survey.marks.channels == recorders[0].marks.channels
    return Replayed(told.messages, () if same else _not_the_same_twice(rehearsal))


def _surveyed(rehearsal: Rehearsal, wanted: Callable[[Topology], Wanted]) -> tuple[Rehearsal, Survey, list[ReadBatch]]:
    """The rehearsal with the tasks that take part, and what was found in it. All take part if the code of others fails,
    which has no state."""
    if rehearsal.is_divided:
        with suppress(UserCodeError):
            found, _ = _survey(rehearsal, wanted, "origins", frozenset())
            divided = replace(rehearsal, tasks=frozenset(found.tasks))
            return divided, *_survey(divided, wanted, "part", divided.tasks)
    return rehearsal, *_survey(rehearsal, wanted, "survey", rehearsal.tasks)


def _survey(
    rehearsal: Rehearsal, wanted: Callable[[Topology], Wanted], name: str, tasks: Set[int] | None
) -> tuple[Survey, list[ReadBatch]]:
    """Find the wanted messages. Raises NotFoundError if there are none."""
    found, batches = run_whole(
        replace(rehearsal, tasks=tasks), name, lambda topology: Survey(topology, wanted(topology))
    )
    if not found.origins:
        raise NotFoundError(
            f"no such message was read behind checkpoint {rehearsal.begin.id}. Begin with an older checkpoint "
            "(`penstock checkpoint list`)"
        )
    return found, batches


class _Told:
    """Tells of steps, up to the last one that is asked for."""

    def __init__(self, tell: Callable[[Step], None], last: Callable[[Step], bool] | None) -> None:
        self._tell, self._last = tell, last
        self.messages = 0
        self.is_enough = False
        """True once the rest is of no interest."""
        self.failed: BaseException | None = None
        """The exception of the caller's function, which is no failure of the job."""

    def __call__(self, step: Step) -> None:
        self.messages += bool(step.messages)
        self.is_enough = self._last is not None and self._last(step)
        try:
            self._tell(step)
        except BaseException as error:
            self.failed, self.is_enough = error, True


def _not_the_same_twice(rehearsal: Rehearsal) -> tuple[str, ...]:
    first, second = (_watched_whole(rehearsal, name) for name in ("once", "twice"))
    return culprits(first.topology, first.marks, second.marks)


def _watched_whole(rehearsal: Rehearsal, name: str) -> Survey:
    marks = Marks()
    survey, _ = run_whole(rehearsal, name, lambda topology: Survey(topology, marks=marks), marks.in_graph)
    return survey
