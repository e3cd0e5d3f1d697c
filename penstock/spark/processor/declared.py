"""The state variables that a processor declares in `init`, as values for the plan of a job and its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming import stateful_processor
from pyspark.sql.types import StructType

from penstock.api.serdes import Bytes
from penstock.api.time.firing import timers_store
from penstock.base.application_code import check_all, methods, not_started
from penstock.errors import ConfigError
from penstock.graph.stores import OperatorBytes, StoreSpec, TimeToLive

Kind: TypeAlias = Literal["value", "list", "map", "columns"]
TimeMode: TypeAlias = Literal["none", "processingtime", "eventtime"]
ParseSchema: TypeAlias = Callable[[str], StructType]
"""Makes a schema of DDL text: on the driver Spark does."""

_SAFE = "<>:,_.-()"
"""Characters of names and types that need no quoting in the text of a layout."""


def time_mode(text: str) -> TimeMode:
    """A time mode, in any case. Raises ConfigError for another one."""
    modes: dict[str, TimeMode] = {"none": "none", "processingtime": "processingtime", "eventtime": "eventtime"}
    found = modes.get(text.lower())
    if found is None:
        raise ConfigError(f'time_mode="{text}": it is "None", "ProcessingTime" or "EventTime"')
    return found


@dataclass(frozen=True, slots=True)
class Variable:
    """A state variable."""

    kind: Kind
    name: str
    schema: StructType
    user_key: StructType | None = None
    ttl_ms: int | None = None

    def layout(self) -> str:
        """The text that a checkpoint remembers: kind, version of the form in which it is stored, and schema. Without
        spaces."""
        of_key = "" if self.user_key is None else f"{_fields(self.user_key)};"
        ttl = "ttl;" if self.kind == "list" and self.ttl_ms is not None else ""
        return f"{self.kind}-1({ttl}{of_key}{_fields(self.schema)})"

    def store(self, key: StructType) -> StoreSpec:
        """The store that has it.

        Args:
            key: the schema of the grouping key.
        """
        ttl = None if self.ttl_ms is None else TimeToLive(self.ttl_ms)
        serdes = OperatorBytes(f"key-1({_fields(key)})"), OperatorBytes(self.layout())
        return StoreSpec(self.name, *serdes, ttl, by_column=self.kind == "columns")


def _fields(schema: StructType) -> str:
    return ",".join(f"{quote(f.name, safe='_-')}:{quote(f.dataType.simpleString(), safe=_SAFE)}" for f in schema.fields)


@dataclass(frozen=True, slots=True)
class DeclaredVariables:
    """Everything that `init` declared."""

    variables: tuple[Variable, ...] = ()
    schemas: Mapping[str, StructType] = field(default_factory=dict)
    """DDL text → its schema."""
    deleted: tuple[Variable, ...] = ()
    """Variables that `init` declared and then deleted: they have no state."""
    forgotten: tuple[str, ...] = ()
    """Names that `init` deletes: the query's earlier state under them is removed."""

    def stores(self, operator: str, key: StructType, mode: TimeMode) -> tuple[StoreSpec, ...]:
        found = [variable.store(key) for variable in self.variables]
        if mode != "none":
            found.append(StoreSpec(timers_store(operator), Bytes(), OperatorBytes(f"timers-1({mode};{_fields(key)})")))
        return tuple(found)


def declare(processor: stateful_processor.StatefulProcessor, mode: TimeMode, parse: ParseSchema) -> DeclaredVariables:
    """Call the processor's `init` as PySpark does on the driver before the first batch, then its `close`.

    Args:
        processor: the application's.
        mode: its time mode.
        parse: makes schemas of DDL texts.

    Raises:
        ConfigError: a method would do none of its work when it is called.
        PySparkRuntimeError: two variables have one name, or one has a time to live that it cannot have.
        Exception: what `init` or `close` raises.
    """
    plain, yielding = ("init", "handleInitialState", "close"), ("handleInputRows", "handleExpiredTimer")
    check_all(methods(processor, plain, yielding=yielding), "transform_with_state")
    handle = DeclaringHandle(mode, parse)
    calls: tuple[Callable[[], object], ...] = (partial(processor.init, handle), processor.close)
    for name, call in zip(("`init`", "`close`"), calls, strict=True):
        not_started(name, call())
    return DeclaredVariables(
        tuple(handle.variables.values()), dict(handle.schemas), tuple(handle.deleted), tuple(sorted(handle.forgotten))
    )


class DeclaringHandle(stateful_processor.StatefulProcessorHandle):
    """A handle that collects the variables that a processor declares. Nothing can be read or written with it."""

    def __init__(self, mode: TimeMode, parse: ParseSchema) -> None:
        self._mode = mode
        self._parse = parse
        self.variables: dict[str, Variable] = {}
        self.deleted: list[Variable] = []
        self.forgotten: set[str] = set()
        self.schemas: dict[str, StructType] = {}

    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> stateful_processor.ValueState:
        variable = Variable("value", stateName, self._schema(schema), None, ttlDurationMs)
        found: stateful_processor.ValueState = self._made(variable)
        return found

    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> stateful_processor.ListState:
        found: stateful_processor.ListState = self._made(
            Variable("list", stateName, self._schema(schema), None, ttlDurationMs)
        )
        return found

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> stateful_processor.MapState:
        key, value = self._schema(userKeySchema), self._schema(valueSchema)
        found: stateful_processor.MapState = self._made(Variable("map", stateName, value, key, ttlDurationMs))
        return found

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a variable, whether it was declared or the query had it before."""
        self.forgotten.add(stateName)
        variable = self.variables.pop(stateName, None)
        if variable is not None:
            self.deleted.append(variable)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        raise _not_in_init("register_timer")

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        raise _not_in_init("delete_timer")

    def listTimers(self) -> Iterator[int]:
        raise _not_in_init("list_timers")

    def _schema(self, schema: StructType | str) -> StructType:
        if isinstance(schema, StructType):
            return schema
        found = self.schemas.get(schema)
        if found is None:
            found = self.schemas[schema] = self._parse(schema)
        return found

    def _made(self, variable: Variable) -> Any:
        if variable.name in self.forgotten:
            raise PySparkRuntimeError(
                f"Error initializing {variable.kind} state: {variable.name} was deleted with deleteIfExists before"
            )
        check_variable(variable, self._mode, self.variables)
        self.variables[variable.name] = variable
        return self._object(variable)

    def _object(self, variable: Variable) -> Any:
        return _object_of(variable, _NoState())


def deleted_variable(variable: Variable) -> Any:
    """The object of a variable that `init` deleted: it has no state. As in PySpark, a list or a map can still be
    iterated over, and is empty."""
    return _object_of(variable, _NoState() if variable.kind == "value" else _NoEntries())


def _object_of(variable: Variable, client: Any) -> Any:
    kinds: Mapping[Kind, type[Any]] = {
        "value": stateful_processor.ValueState,
        "list": stateful_processor.ListState,
        "map": stateful_processor.MapState,
    }
    return kinds[variable.kind](client, variable.name)


class _NoState:
    """The state client of a variable without state."""

    def __getattr__(self, call: str) -> Any:
        def fail(name: str, *given: Any) -> Any:
            raise PySparkRuntimeError(f"Error in {call} of the state variable {name}: it has no state here")

        return fail


class _NoEntries(_NoState):
    """The same for a list or a map. Their iterators call these methods."""

    def get(self, name: str, iterator: str) -> Any:
        raise StopIteration

    get_key_value_pair = get

    def get_row(self, name: str, iterator: str, is_key: bool) -> Any:
        raise StopIteration


def _not_in_init(operation: str) -> PySparkRuntimeError:
    return PySparkRuntimeError(
        "[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] Failed to perform stateful processor "
        f"operation={operation} with invalid handle state=PRE_INIT."
    )


def check_variable(variable: Variable, mode: TimeMode, others: Mapping[str, Variable]) -> None:
    """Raise PySparkRuntimeError, with Spark's words, if the variable cannot be declared."""
    start = f"Error initializing {variable.kind} state: "
    if variable.name in others:
        raise PySparkRuntimeError(f"{start}{variable.kind.capitalize()} state {variable.name} already exists")
    if variable.ttl_ms is None:
        return
    if mode != "processingtime":
        raise PySparkRuntimeError(
            f"{start}[STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] Cannot use TTL for "
            f"state={variable.name} in timeMode={mode}, use TimeMode.ProcessingTime() instead."
        )
    if variable.ttl_ms <= 0:
        raise PySparkRuntimeError(
            f"{start}[STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE] TTL duration must be greater than zero for "
            f"State store operation=get_{variable.kind}_state on state={variable.name}."
        )
