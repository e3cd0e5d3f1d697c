"""Side inputs in the start of a job: which streams fill its stores, and what commands and containers know of them.

A store is filled again once its processor is another one. So a processor is written as text: the same for the same
code in every process, another one otherwise.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from penstock.api.serdes import ColumnSerde, Serde
from penstock.base.refusals import Refusals
from penstock.base.wording import listed
from penstock.config.model import JobConfig
from penstock.config.settings import StoreSettings, StreamSettings
from penstock.errors import ConfigError, NotFoundError
from penstock.graph.serdes import declared
from penstock.graph.side_declarations import side_input_of
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import SideInputs, StoreSpec
from penstock.objects.store import ObjectStore
from penstock.side.plan import backed_up_side_stores, with_side_inputs
from penstock.side.shown import SideStoreFacts, put_side_stores, side_store_board
from penstock.start.part import StartPart
from penstock.system.base import SystemAdmin

if TYPE_CHECKING:
    from penstock.start.job import JobPlan


_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))


def code_text(processor: object) -> str:
    """The code of a processor, the functions and classes of its package that it names, and its plain values:
    attributes, arguments, constants. Of other packages, only names."""
    return "\n".join(_Walk(_package(processor)).lines(processor))


class _Walk:
    """Walks through the objects that belong to a processor. An object that was seen before is only named."""

    def __init__(self, package: str, seen: Collection[int] = ()) -> None:
        self._package = package
        self._seen = set(seen)
        self._kept: list[object] = []
        """Keeps every seen object alive: a freed one would leave its id to another object."""

    def lines(self, value: Any) -> Iterator[str]:
        if type(value) in _PLAIN:
            yield repr(value)
        elif isinstance(value, CodeType):
            yield from self._code(value)
        elif isinstance(value, tuple | frozenset):  # equal ones may be one object in one process, and two in another
            yield from self._values(value)
        elif id(value) in self._seen:
            yield f"again {_name(value)}"
        else:
            self._seen.add(id(value))
            self._kept.append(value)
            yield from self._composed(value)

    def _values(self, value: Any) -> Iterator[str]:
        yield f"{_name(value)} of {len(value)}"
        if isinstance(value, set | frozenset):  # their order is another one in each process
            yield from sorted("\n".join(_Walk(self._package, self._seen).lines(each)) for each in value)
            return
        for each in value.items() if isinstance(value, dict) else value:
            yield from self.lines(each)

    def _composed(self, value: Any) -> Iterator[str]:
        if isinstance(value, list | set | dict):
            yield from self._values(value)
        elif isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, MethodType):
            yield from self.lines(value.__func__)
            yield from self.lines(value.__self__)
        elif isinstance(value, functools.partial):
            yield "partial"
            yield from self.lines((value.func, value.args, value.keywords))
        elif isinstance(value, type):
            yield from self._class(value)
        else:
            yield f"a {_name(value)}"
            yield from self.lines(type(value))
            if self._is_own(type(value)):
                yield from self.lines(getattr(value, "__dict__", {}))

    def _class(self, kind: type) -> Iterator[str]:
        yield f"class {_name(kind)}"
        if not self._is_own(kind):
            return
        yield from self.lines(kind.__bases__)
        for name, member in sorted(vars(kind).items()):
            if isinstance(member, staticmethod | classmethod):
                member = member.__func__
            elif isinstance(member, property):
                member = (member.fget, member.fset)
            # Other names like __doc__ are the interpreter's, which adds some later.
            if isinstance(member, FunctionType) or (not name.startswith("__") and self._is_told(member)):
                yield name
                yield from self.lines(member)

    def _function(self, function: FunctionType) -> Iterator[str]:
        yield f"function {_name(function)}"
        if not self._is_own(function):
            return
        yield from self._code(function.__code__)
        yield from self.lines((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                yield from self.lines(cell.cell_contents)
            except ValueError:
                yield "an empty cell"
        for name in _names(function.__code__):
            if self._is_told(named := function.__globals__.get(name)):
                yield f"{name} is"
                yield from self.lines(named)

    def _code(self, code: CodeType) -> Iterator[str]:
        yield code.co_code.hex()
        yield from code.co_names
        for each in code.co_consts:
            yield from self.lines(each)

    def _is_told(self, value: object) -> bool:
        """True if a named object belongs to the code: a value, or a function or class of its package."""
        if isinstance(value, FunctionType | type):
            return self._is_own(value)
        return value is not None and isinstance(value, (*_PLAIN, tuple, list, set, frozenset, dict))

    def _is_own(self, named: FunctionType | type) -> bool:
        return _top(named) == self._package


def _package(processor: object) -> str:
    while isinstance(processor, functools.partial):
        processor = processor.func
    return _top(processor if isinstance(processor, FunctionType | MethodType | type) else type(processor))


def _top(named: FunctionType | MethodType | type) -> str:
    return (named.__module__ or "").partition(".")[0]


def _names(code: CodeType) -> list[str]:
    inner = [name for each in code.co_consts if isinstance(each, CodeType) for name in _names(each)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def _name(value: Any) -> str:
    named = value if isinstance(value, FunctionType | type) else type(value)
    return f"{named.__module__}.{named.__qualname__}"


_OF_INPUTS = (
    StreamSettings.offset_default,
    StreamSettings.reset_offset,
    StreamSettings.idle_ms,
    StreamSettings.bootstrap,
    StreamSettings.priority,
)


class SideStart(StartPart):
    """The part of side inputs, and of pushed tables where they are stores that the job only reads, in a start."""

    def complete(self, graph: ApplicationGraph, config: JobConfig) -> ApplicationGraph:
        """With the side inputs that the configuration names."""
        return with_side_inputs(graph, config)

    def misfits(self, graph: ApplicationGraph, config: JobConfig) -> Iterator[ConfigError]:
        """The configuration says where a side input is read from, which follows from its store. Or it keeps a store in
        columns that is written while it is read."""
        for spec in graph.side_stores:
            name = StoreSettings.factory.full(spec.name)
            if isinstance(spec.side, SideInputs) and config.store(spec.name).factory == "columns":
                yield ConfigError(
                    f"`{name}` ({config.origin(name)}) = columns: store `{spec.name}` is filled by side inputs while "
                    "batches read it. Set it to rocksdb or memory; stores that the job writes and pushed tables can "
                    "be in columns"
                )
        inputs = {op.stream for op in graph.inputs}
        for stream, specs in graph.side_streams().items():
            for key in _OF_INPUTS:
                name = key.full(str(stream))
                if stream not in inputs and name in config.origins:
                    what = side_input_of(spec.name for spec in specs)
                    yield ConfigError(
                        f"`{name}` ({config.origin(name)}): `{stream}` is {what}. It is read from where the content of "
                        "the store ends, else from its oldest message, before the first batch and beside the others, "
                        "and holds no watermark back. Remove the key"
                    )

    def check_streams(self, graph: ApplicationGraph, admins: Mapping[str, SystemAdmin], tasks: int) -> None:
        """Raise NotFoundError if a side input does not exist."""
        refusals = Refusals("side inputs are missing")
        for stream, specs in graph.side_streams().items():
            what = f"the side input `{stream}` of store {listed([f'`{spec.name}`' for spec in specs])}"
            create = f"`penstock stream create {stream} --partitions {tasks}`"
            try:
                admins[stream.system].partition_count(stream.stream)
            except NotFoundError as error:
                missing = NotFoundError(f"{what} does not exist: create it ({create}), or correct its name")
                missing.__cause__ = error
                refusals.note(missing)
        refusals.check()

    def backed_up(self, graph: ApplicationGraph, config: JobConfig) -> Sequence[str]:
        return backed_up_side_stores(graph, config)

    def claimed(self, plan: JobPlan, objects: ObjectStore) -> None:
        """Show the side stores of the run to commands."""
        stores = tuple(map(SideStoreFacts.of, plan.topology.graph.side_stores))
        put_side_stores(side_store_board(objects, plan.paths), stores)

    def for_containers(self, graph: ApplicationGraph) -> dict[str, str]:
        """The fingerprints of side stores. The driver makes them, because its processors have processed nothing: what
        they gather later must not look like another processor."""
        return side_fingerprints(graph)


def side_fingerprints(graph: ApplicationGraph) -> dict[str, str]:
    """Store → fingerprint of its serdes and processor, which make its content from the messages."""
    return {spec.name: _fingerprint(spec, spec.side) for spec in graph.stores if isinstance(spec.side, SideInputs)}


def _fingerprint(spec: StoreSpec, side: SideInputs) -> str:
    serdes = [_text(spec.key_serde), _text(spec.value_serde)]
    serdes += [f"{each.stream} {_text(each.key_serde)} {_text(each.value_serde)}" for each in side.streams]
    return hashlib.sha256("\n".join([*serdes, code_text(side.processor)]).encode()).hexdigest()[:16]


def _text(serde: Serde[Any]) -> str:
    """The declaration of a serde, with its schema if it has one."""
    return repr(serde) if isinstance(serde, ColumnSerde) else f"{declared(serde)} {serde.name}"
