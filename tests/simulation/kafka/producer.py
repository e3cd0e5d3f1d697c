"""The producer of the package `confluent_kafka`, as far as Penstock uses it, on a simulated cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, Message

from tests.simulation.kafka.base import Call, Client, failure, timed_out
from tests.simulation.kafka.coordinator import Place
from tests.simulation.kafka.network import LostError
from tests.simulation.kafka.partition import NO_PRODUCER, BrokerError, Sent

Report: TypeAlias = Callable[[KafkaError | None, Message], None]
_ABSENT: Any = object()
_LINGER_S = 0.005
_FENCED = (KafkaError.INVALID_PRODUCER_EPOCH, 90)
_BATCH = 500


@dataclass(slots=True)
class _Queued:
    place: Place
    record: Sent
    report: Report | None
    since_s: float


@dataclass(slots=True)
class _Numbers:
    """The numbers that this producer has given in a partition."""

    next: int = 0
    is_added: bool = False
    """True if the partition is part of the transaction."""


@dataclass(eq=False)
class Producer(Client):
    """An idempotent producer. A sender works beside the calls, as the client's threads do."""

    config: Mapping[str, Any]
    _queue: deque[_Queued] = field(default_factory=deque)
    _in_flight: int = 0
    _reports: deque[tuple[Report, KafkaError | None, Message]] = field(default_factory=deque)
    _sender: Call[None] | None = None
    _numbers: dict[Place, _Numbers] = field(default_factory=dict)
    _producer: int = NO_PRODUCER
    _epoch: int = -1
    _state: str = "new"
    _call: Call[None] | None = None
    """The call to initialise, commit or abort that has not returned yet."""
    _fatal: KafkaError | None = None
    _has_raised: bool = False
    """True once a fatal error was raised where reports are made: the client does so once."""
    _abortable: KafkaError | None = None

    def __post_init__(self) -> None:
        super().__init__(self.config)
        self._id: str | None = self.config.get("transactional.id")
        self._transaction_ms = int(self.config.get("transaction.timeout.ms", 60_000))
        limit_ms = self.config.get("message.timeout.ms", self._transaction_ms if self._id else 300_000)
        self._message_s = float(limit_ms) / 1000

    # Transactions.

    def init_transactions(self, timeout: float = -1) -> None:
        def request() -> tuple[int, int]:
            return self.cluster.coordinator.initialise(str(self._id), self._transaction_ms)

        def work() -> None:
            self._producer, self._epoch = self.insist(f"InitProducerId {self._id}", request, changes=True)
            self._state = "ready"

        self._run("init_transactions", work, timeout)

    def begin_transaction(self) -> None:
        if self._fatal is not None:
            raise self._raised(self._fatal)
        if self._state != "ready":
            raise failure(KafkaError._STATE)
        self._state = "begun"

    def commit_transaction(self, timeout: float = -1) -> None:
        def work() -> None:
            self._drain()
            error = self._fatal or self._abortable
            if error is not None:
                raise self._raised(error)
            self._end(commits=True)

        self._run("commit_transaction", work, timeout)

    def abort_transaction(self, timeout: float = -1) -> None:
        def work() -> None:
            self.purge()
            self._drain()
            if self._fatal is not None:
                raise self._raised(self._fatal)
            self._end(commits=False)

        self._run("abort_transaction", work, timeout)

    def _run(self, name: str, work: Callable[[], None], timeout: float) -> None:
        """A call that goes on when it is made again after its time limit."""
        call = self._call
        if call is None:
            if name != "init_transactions" and self._state != "begun":
                raise self._raised(self._fatal) if self._fatal is not None else failure(KafkaError._STATE)
            call = self._call = Call(self, name, work)
        elif call.name != name:
            raise failure(KafkaError._CONFLICT, f"{call.name} is under way")
        if not call.wait(None if timeout < 0 else timeout):
            raise timed_out(name)
        self._call = None
        call.result()

    def _end(self, *, commits: bool) -> None:
        """`EndTxn`, unless nothing was ever added to the transaction."""
        coordinator = self.cluster.coordinator
        if any(each.is_added for each in self._numbers.values()):
            try:
                self.insist(
                    f"EndTxn {self._id} {'commit' if commits else 'abort'}",
                    lambda: coordinator.end(str(self._id), self._producer, self._epoch, commits=commits),
                    changes=True,
                )
            except BrokerError as error:
                fenced = error.code in _FENCED
                self._fatal = KafkaError(KafkaError._FENCED if fenced else error.code, str(error), True)
                raise self._raised(self._fatal) from None
        for each in self._numbers.values():
            each.is_added = False
        self._abortable = None
        self._state = "ready"

    @staticmethod
    def _raised(error: KafkaError) -> Any:
        return failure(error.code(), error.str(), fatal=error.fatal(), aborts=error.txn_requires_abort())

    # Messages.

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = 0,
        callback: Any = _ABSENT,
        on_delivery: Report | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        if self._fatal is not None:
            raise failure(KafkaError._FATAL)
        if self._abortable is not None or (self._id and self._state != "begun"):
            raise failure(KafkaError._STATE)
        now_s = self.now_s()
        record = timestamp or round(now_s * 1000), key, value, tuple(headers or ())
        report = on_delivery if callback is _ABSENT else callback  # a None hides the other one
        self._queue.append(_Queued((topic, partition), record, report, now_s))
        if self._sender is None and not self.is_alone:
            self._sender = Call(self, "sender", self._send_all)

    def __len__(self) -> int:
        return len(self._queue) + self._in_flight + len(self._reports)

    def poll(self, timeout: float = 0) -> int:
        if not self._reports and timeout > 0 and not self.is_alone:
            self.sleep(timeout)
        return self._serve()

    def flush(self, timeout: float = -1) -> int:
        """Wait until everything is sent, and make the reports."""
        if self.is_alone and self._queue:
            self._send_all()
        until_s = self.now_s() + timeout
        while (sender := self._sender) is not None and (timeout < 0 or self.now_s() < until_s):
            sender.wait(None if timeout < 0 else until_s - self.now_s())
            self._serve()
        self._serve()
        return len(self)

    def purge(self) -> None:
        """Drop what is not sent."""
        dropped, self._queue = list(self._queue), deque()
        for each in dropped:
            self._finish(each, KafkaError(KafkaError._PURGE_QUEUE), -1)

    def _drain(self) -> None:
        """Wait until everything is sent, or refused."""
        if self.is_alone and self._queue:
            self._send_all()
        while (sender := self._sender) is not None:
            sender.wait(None)

    def _serve(self) -> int:
        self.report()
        if self._fatal is not None and not self._has_raised:
            self._has_raised = True
            raise self._raised(self._fatal)
        served = 0
        while self._reports:
            report, error, message = self._reports.popleft()
            report(error, message)
            served += 1
        return served

    def _send_all(self) -> None:
        """Send batches, one after the other, until the queue is empty."""
        if not self.is_alone:
            self.sleep(_LINGER_S)
        try:
            while self._queue:
                batch = self._next_batch()
                self._in_flight = len(batch)
                try:
                    offset, error = self._send(batch), None
                except BrokerError as refused:
                    offset, error = -1, self._failed(refused)
                except LostError:
                    offset, error = -1, self._late()
                self._in_flight = 0
                for number, each in enumerate(batch):
                    self._finish(each, error, -1 if error is not None else offset + number)
        finally:
            self._sender = None

    def _next_batch(self) -> list[_Queued]:
        """The first messages of the queue that are for one partition."""
        most = self.at_most(_BATCH, 100)
        place = self._queue[0].place
        batch: list[_Queued] = []
        while self._queue and self._queue[0].place == place and len(batch) < most:
            batch.append(self._queue.popleft())
        return batch

    def _send(self, batch: list[_Queued]) -> int:
        place = batch[0].place
        own = self._numbers.setdefault(place, _Numbers())
        until_s = batch[0].since_s + self._message_s

        def stop() -> bool:
            return self.now_s() > until_s or self._fatal is not None

        cluster, records, first = self.cluster, [each.record for each in batch], own.next
        if self._producer == NO_PRODUCER:
            self._producer, self._epoch = self.insist("InitProducerId", cluster.coordinator.new_producer, stop=stop)
        producer, epoch, name = self._producer, self._epoch, self._id
        if name is not None and not own.is_added:
            cluster_adds = cluster.coordinator.add_partitions
            self.insist(
                f"AddPartitionsToTxn {name}",
                lambda: cluster_adds(name, producer, epoch, {place}),
                changes=True,
                stop=stop,
            )
            own.is_added = True
        offset = self.insist(
            f"Produce {place[0]}/{place[1]} {first}",
            lambda: cluster.produce(place, records, producer, epoch, first, name),
            changes=True,
            stop=stop,
        )
        own.next += len(batch)
        return offset

    def _failed(self, refused: BrokerError) -> KafkaError:
        """A message is refused for good."""
        code = refused.code
        if code in _FENCED:
            self._fatal = KafkaError(KafkaError._FENCED, str(refused), True)
        elif self._id is not None and self._abortable is None:
            self._abortable = KafkaError(code, str(refused), False, False, True)
        return KafkaError(code, str(refused))

    def _late(self) -> KafkaError:
        error = KafkaError(KafkaError._MSG_TIMED_OUT)
        if self._id is not None and self._abortable is None:
            self._abortable = KafkaError(KafkaError._MSG_TIMED_OUT, "simulated: a message", False, False, True)
        return error

    def _finish(self, queued: _Queued, error: KafkaError | None, offset: int) -> None:
        if queued.report is None:
            return
        topic, partition = queued.place
        timestamp, key, value, _ = queued.record
        message = Message(
            topic=topic,
            partition=partition,
            offset=offset,
            key=key,
            value=value,
            error=error,
            timestamp=(TIMESTAMP_CREATE_TIME, timestamp),
        )
        self._reports.append((queued.report, error, message))
