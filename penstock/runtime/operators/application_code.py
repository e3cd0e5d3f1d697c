"""Calls of the application's code with messages, and the collector, context and coordinator that it gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from penstock.api import key_state
from penstock.api.messages import Headers, HeadersLike, IncomingMessageEnvelope, headers_of
from penstock.api.serdes import Serde
from penstock.api.store import KeyValueStore
from penstock.api.task_context import MessageCollector, TaskContext, TaskCoordinator
from penstock.api.time.firing import TimeDomain
from penstock.base.application_code import unused
from penstock.errors import ConfigError
from penstock.metrics.registry import MetricsRegistry
from penstock.runtime.context import Position, failure_in
from penstock.runtime.messages.columns import NOWHERE, Accept, MessageColumns, Push, Target, envelopes_of
from penstock.runtime.operators.task_timers import TaskTimers
from penstock.state.stores.task_store import TaskStore


class Requests(TaskCoordinator):
    """The requests of tasks to the job during an attempt."""

    def __init__(self) -> None:
        self.commit_requested = False
        self.shutdown_requested = False

    def commit(self) -> None:
        self.commit_requested = True

    def shutdown(self) -> None:
        self.shutdown_requested = True


class Collector(MessageCollector):
    """Sends the messages of one operator's code."""

    def __init__(
        self,
        op_id: str,
        position: Position,
        downstream: Target,
        outputs: Mapping[str, Push],
        *,
        of_task: bool = True,
        drops: bool = False,
    ) -> None:
        """`outputs`: by `system.stream`, and by `stream` if no other output has that name. `of_task`: the code is a
        task's, which an operator may follow. `drops`: if none does, what is emitted is dropped, and not refused."""
        self._op_id = op_id
        self._position = position
        self._of_task = of_task
        self._downstream: Push = self._refuse if downstream is NOWHERE and not drops else downstream.push
        self._outputs = outputs

    def emit(self, *, key: Any = None, value: Any, headers: HeadersLike | None = None) -> None:
        if headers is None:
            self._downstream(key, value)
        else:
            self._push_with(headers_of(headers), self._downstream, key, value)

    def send(self, output: str, *, key: Any = None, value: Any, headers: HeadersLike | None = None) -> None:
        push = self._outputs.get(output)
        if push is None:
            raise ConfigError(
                f"operator `{self._op_id}` sends to `{output}`, which is not a declared output; declared: "
                f"{self._known()}. Use app.output(...)"
            )
        if headers is None:
            push(key, value)
        else:
            self._push_with(headers_of(headers), push, key, value)

    def _known(self) -> str:
        return ", ".join(f"`{name}`" for name in self._outputs) or "none"

    def _refuse(self, key: Any, value: Any) -> NoReturn:
        follow = ", or let an operator follow, such as .send_to(...), in a StreamApplication" if self._of_task else ""
        raise ConfigError(
            f"operator `{self._op_id}` emits a message, and no operator follows it: nothing would take the message of "
            f"key {key!r}. Send it to an output with collector.send(output, key=..., value=...){follow}. Declared "
            f"outputs: {self._known()}; app.output(...) declares one"
        )

    def _push_with(self, headers: Headers, push: Push, key: Any, value: Any) -> None:
        """Push a message that has other headers than the one at the position."""
        position = self._position
        row = position.row
        position.row = position.page.derived(row, headers=headers)
        try:
            push(key, value)
        finally:
            position.row = row


class Context(TaskContext):
    """The TaskContext of a StreamTask in one task of the job."""

    def __init__(
        self,
        job_name: str,
        config: Mapping[str, str],
        partition: int,
        stores: dict[str, KeyValueStore[Any, Any]],
        op_id: str,
        metrics: MetricsRegistry,
        timers: TaskTimers | None = None,
        next_list_place: Callable[[], key_state.ListPlace] = lambda: (0, 0),
    ) -> None:
        self._timers = timers
        self._next_list_place = next_list_place
        self._current: key_state.CurrentKey | None = None
        self._task_is_made = False
        self._batch_time_ms: int | None = None
        self._watermark_ms: int | None = None
        self._metrics = metrics
        self._job_name = job_name
        self._config = MappingProxyType(dict(config))
        self._partition = partition
        self._stores = stores
        self._op_id = op_id

    @property
    def task_name(self) -> str:
        return f"Partition {self._partition}"

    @property
    def partition(self) -> int:
        return self._partition

    @property
    def job_name(self) -> str:
        return self._job_name

    def begin(self, batch_time_ms: int, watermark_ms: int | None) -> None:
        self._batch_time_ms, self._watermark_ms = batch_time_ms, watermark_ms

    @property
    def batch_time_ms(self) -> int:
        if self._batch_time_ms is None:
            raise self._no_batch("batch_time_ms")
        return self._batch_time_ms

    @property
    def watermark_ms(self) -> int | None:
        if self._batch_time_ms is None:
            raise self._no_batch("watermark_ms")
        return self._watermark_ms

    def _no_batch(self, name: str) -> ConfigError:
        return ConfigError(
            f"operator `{self._op_id}` asks for `{name}` before its first batch: keep the context in a field of the "
            "task, and ask when it handles a message or a timer"
        )

    @property
    def config(self) -> Mapping[str, str]:
        return self._config

    @property
    def metrics(self) -> MetricsRegistry:
        return self._metrics

    def store(self, name: str) -> KeyValueStore[Any, Any]:
        if name not in self._stores:
            known = ", ".join(f"`{s}`" for s in self._stores) or "none"
            raise ConfigError(
                f"operator `{self._op_id}` asks for store `{name}` but was given: {known}. "
                "Name it in process(..., stores=[...])"
            )
        return self._stores[name]

    def value_state(self, name: str) -> key_state.ValueState[Any]:
        return key_state.ValueState(self.store(name), self._current_key(name))

    def list_state(self, name: str) -> key_state.ListState[Any]:
        store = self.store(name)
        key_state.check_list_keys(name, _key_serde(store))
        return key_state.ListState(store, self._current_key(name), self._next_list_place)

    def map_state(self, name: str) -> key_state.MapState[Any, Any]:
        store = self.store(name)
        key_state.check_map_keys(name, _key_serde(store))
        return key_state.MapState(store, self._current_key(name))

    def _current_key(self, name: str) -> key_state.CurrentKey:
        if self._task_is_made:
            raise ConfigError(
                f"operator `{self._op_id}` asks for state `{name}` of the current key after init: ask for it in init, "
                "and keep it in a field of the task"
            )
        if self._current is None:
            self._current = key_state.CurrentKey(self._op_id)
        return self._current

    def close_init(self) -> key_state.CurrentKey | None:
        """Called after the task's `init`. Returns the holder of the key, which must be set for each message and timer;
        None if the task has no state of the current key."""
        self._task_is_made = True
        return self._current

    def schedule(self, key: Any, time_ms: int, name: str = "", domain: TimeDomain = "event") -> None:
        (self._timers or self._no_timers()).schedule(key, time_ms, name, domain)

    def cancel(self, key: Any, name: str = "", domain: TimeDomain = "event") -> None:
        (self._timers or self._no_timers()).cancel(key, name, domain)

    def _no_timers(self) -> NoReturn:
        raise ConfigError(
            f"operator `{self._op_id}` has no timers: declare the serde of their keys, as in "
            "process(..., timers=ps.String())"
        )


def _key_serde(store: KeyValueStore[Any, Any]) -> Serde[Any]:
    if not isinstance(store, TaskStore):
        raise TypeError(f"a task's store is a TaskStore, not {type(store).__name__}")
    return store.spec.key_serde


def envelope_calls(
    op_id: str,
    function: Callable[[IncomingMessageEnvelope, MessageCollector, TaskCoordinator], object],
    collector: Collector,
    requests: Requests,
    position: Position,
    what: str,
) -> tuple[Accept, Push]:
    """Functions that call the application's code with the messages of columns, and with a single one. The code has to
    return None. `what` names it in errors."""
    make = tuple.__new__  # what the NamedTuple's own constructor does, without its Python frame

    def accept(columns: MessageColumns) -> None:
        envelopes = envelopes_of(columns, position.page)
        try:
            for position.row, envelope in zip(columns.rows, envelopes, strict=True):
                if (result := function(envelope, collector, requests)) is not None:
                    raise unused(what, result)
        except BaseException as error:
            raise failure_in(op_id, error) from error

    def push(key: Any, value: Any) -> None:
        envelope = make(IncomingMessageEnvelope, (key, value, position.page, position.row))
        try:
            if (result := function(envelope, collector, requests)) is not None:
                raise unused(what, result)
        except BaseException as error:
            raise failure_in(op_id, error) from error

    return accept, push
