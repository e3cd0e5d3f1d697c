"""The handle that a running processor gets in `init`: PySpark's interface above a task's stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.errors import PySparkRuntimeError

from penstock.api.time.timers import timers_store
from penstock.errors import ConfigError
from penstock.graph.batch_task import BatchTaskContext
from penstock.spark.processor.declared import DeclaredVariables, DeclaringHandle, TimeMode, Variable, deleted_variable
from penstock.spark.processor.timers import ProcessorTimers
from penstock.spark.processor.values.lists import StoredLists
from penstock.spark.processor.variables import ProcessedKey, StoredList, StoredMap, StoredValue


class TaskState:
    """State with the lifetime of a task: its stores, its timers and the objects of its state variables."""

    def __init__(self, context: BatchTaskContext, operator: str, mode: TimeMode, declared: DeclaredVariables) -> None:
        self.current = ProcessedKey()
        self.now_ms = 0
        self.mode = mode
        self.declared = declared
        self.timers: ProcessorTimers | None = None
        if mode != "none":
            store = context.store(timers_store(operator))
            self.timers = ProcessorTimers(store, "event" if mode == "eventtime" else "processing")
        self.variables = {each.name: each for each in declared.variables}
        self._objects = {each.name: self._made(each, context) for each in declared.variables}

    def _made(self, variable: Variable, context: BatchTaskContext) -> Any:
        store = context.store(variable.name)
        if variable.kind == "value":
            return StoredValue(variable, store, self.current)
        if variable.kind == "map":
            return StoredMap(variable, store, self.current)
        return StoredList(variable, StoredLists(store, variable.ttl_ms, lambda: self.now_ms), self.current)

    def object_of(self, variable: Variable) -> Any:
        """Raises ConfigError if `init` did not declare the variable when the query began."""
        if self.variables.get(variable.name) != variable:
            was = self.variables.get(variable.name)
            raise ConfigError(
                f"the processor's `init` declares the state variable {variable.layout()} `{variable.name}`, but it "
                f"declared {'no such variable' if was is None else was.layout()} when the query began: `init` must "
                "declare the same variables each time"
            )
        return self._objects[variable.name]


class RunningHandle(DeclaringHandle):
    """The handle of one batch."""

    def __init__(self, state: TaskState) -> None:
        super().__init__(state.mode, self._known_schema)
        self._state = state
        self._is_open = True

    def close_init(self) -> None:
        """End `init`: no more variables can be declared, and timers can be set."""
        self._is_open = False

    def _known_schema(self, text: str) -> Any:
        found = self._state.declared.schemas.get(text)
        if found is None:
            raise ConfigError(
                f"the processor's `init` declares a state variable with the schema `{text}`, which it did not when the "
                "query began: `init` must declare the same variables each time"
            )
        return found

    def deleteIfExists(self, stateName: str) -> None:
        """Forget the variable. The query's earlier state under the name was removed when the query began."""
        self._check_open("Error deleting state", "delete_if_exists")
        super().deleteIfExists(stateName)

    def _made(self, variable: Variable) -> Any:
        self._check_open(f"Error initializing {variable.kind} state", f"get_{variable.kind}_state")
        return super()._made(variable)

    def _check_open(self, failed: str, operation: str) -> None:
        if not self._is_open:
            raise PySparkRuntimeError(
                f"{failed}: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] Failed to perform "
                f"stateful processor operation={operation} with invalid handle state=INITIALIZED."
            )

    def _object(self, variable: Variable) -> Any:
        if variable in self._state.declared.deleted:
            return deleted_variable(variable)
        return self._state.object_of(variable)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._timers("register").register(self._key(), expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._timers("delete").delete(self._key(), expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """The times of the current key's timers, the earliest first."""
        return iter(self._timers("list").of(self._key()))

    def _timers(self, operation: str) -> ProcessorTimers:
        timers = self._state.timers
        if timers is None:
            raise PySparkRuntimeError(
                f"Error {operation} timer: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE] Failed "
                f"to perform stateful processor operation={operation}_timer with invalid timeMode=None"
            )
        return timers

    def _key(self) -> bytes:
        key = self._state.current.key
        if key is None:
            raise PySparkRuntimeError("Implicit key not found in state store for a timer: no key is being processed")
        return key
