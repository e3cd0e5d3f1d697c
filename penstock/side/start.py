"""Side inputs in the start of a job: which streams fill its stores, and what commands and containers know of them.

The sources of stores that the application does not write are completed by the configuration. A store is filled again
once its processor is another one. So a processor is written as text: the same for the same code in every process,
another one otherwise.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from penstock.api.serdes import ColumnSerde, Serde
from penstock.api.side_inputs import SideInputsProcessorFactory
from penstock.base.wording import listed
from penstock.checkpoint.streams import CHANGELOG_STREAM
from penstock.config.model import JobConfig, named_class
from penstock.config.settings import StoreSettings, StreamSettings
from penstock.errors import ConfigError, NotFoundError, Refusals
from penstock.graph.serdes import declared
from penstock.graph.specs import ApplicationGraph
from penstock.graph.store_declarations import check_side_store, read_only, side_input_of
from penstock.graph.stores import OPERATOR_STORES, SideInputs, SideStream, StoreSpec
from penstock.objects.store import ObjectStore
from penstock.side.wing import SideStoreFacts, put_side_stores, side_store_board
from penstock.start.part import StartPart
from penstock.system.base import SystemAdmin

if TYPE_CHECKING:
    from penstock.start.job import JobPlan


BACKUP = "blob"
"""The only backend that may back up a store filled by side inputs, so that another host begins with the copy."""


def with_side_inputs(graph: ApplicationGraph, config: JobConfig) -> ApplicationGraph:
    """The application with the side inputs that the configuration names, checked.

    Raises:
        ConfigError: the configuration contradicts the application, names a class that cannot be loaded, or uses a side
            input, or a store that is only read, for something else.
    """
    stores = tuple(_filled(spec, config) for spec in graph.stores)
    filled = graph if stores == graph.stores else replace(graph, stores=stores)
    written = {op.writes_table: op.id for op in filled.operators}
    for spec in filled.side_stores:
        if spec.name in written:
            raise ConfigError(f"`{written[spec.name]}` writes table `{spec.name}`, but {read_only(spec)}")
        _check_backup(spec, config)
    _check_streams(filled, config)
    return filled


def is_backed_up(config: JobConfig, store: str) -> bool:
    """True if the content of a store that side inputs fill is backed up: only its own key can say so."""
    return StoreSettings.backup_factories.full(store) in config.origins


def backed_up_side_stores(graph: ApplicationGraph, config: JobConfig) -> tuple[str, ...]:
    return tuple(
        spec.name for spec in graph.side_stores if isinstance(spec.side, SideInputs) and is_backed_up(config, spec.name)
    )


def _filled(spec: StoreSpec, config: JobConfig) -> StoreSpec:
    settings = config.store(spec.name)
    broadcast = StoreSettings.side_broadcast.full(spec.name)
    if broadcast in config.origins and not settings.side_inputs:
        raise ConfigError(
            f"`{broadcast}` ({config.origin(broadcast)}): `{StoreSettings.side_inputs.full(spec.name)}` names no side "
            f"inputs. Where the application names them, it says broadcast= in app.{spec.kind}(...)"
        )
    if not settings.side_inputs and settings.side_processor is None:
        return spec
    inputs, factory = StoreSettings.side_inputs.full(spec.name), StoreSettings.side_processor.full(spec.name)
    side = spec.side
    if settings.side_inputs:
        where = f"`{inputs}` ({config.origin(inputs)})"
        if side is not None:
            raise ConfigError(
                f"{where}: the application says what fills store `{spec.name}`. Remove the key, or the argument of "
                f"app.{spec.kind}(...)"
            )
        if spec.name.endswith(OPERATOR_STORES):
            raise ConfigError(f"{where}: store `{spec.name}` belongs to an operator, which alone writes it")
        key, value = spec.key_serde.for_keys(), spec.value_serde
        streams = tuple(SideStream(stream, key, value) for stream in settings.side_inputs)
        side = SideInputs(streams, broadcast=settings.side_broadcast)
    if settings.side_processor is not None:
        where = f"`{factory}` = `{settings.side_processor}` ({config.origin(factory)})"
        if not isinstance(side, SideInputs):
            raise ConfigError(
                f"{where}: store `{spec.name}` has no side inputs whose messages a processor could process: name them "
                f"in `{inputs}`, or with side_inputs= of app.{spec.kind}(...)"
            )
        if side.processor is not None:
            raise ConfigError(
                f"{where}: the application gives the processor of store `{spec.name}`: remove one of them"
            )
        side = replace(side, processor=_factory(settings.side_processor, where))
    filled = replace(spec, side=side)
    check_side_store(filled)
    return filled


def _factory(name: str, where: str) -> SideInputsProcessorFactory:
    base: type[Any] = SideInputsProcessorFactory
    found = named_class(name, base, "penstock.SideInputsProcessorFactory", where)
    try:
        factory: SideInputsProcessorFactory = found()
    except Exception as error:  # the user's code
        raise ConfigError(f"{where}: calling it without arguments failed: {type(error).__name__}: {error}") from error
    return factory


def _check_backup(spec: StoreSpec, config: JobConfig) -> None:
    """Raise ConfigError for a backup that a side store cannot have. Keys for all stores do not apply to it."""
    changelog = StoreSettings.changelog.full(spec.name)
    if changelog in config.origins:
        raise ConfigError(
            f"`{changelog}` ({config.origin(changelog)}): store `{spec.name}` has no changelog, because "
            f"{_filler(spec)}. Remove the key"
        )
    for each in (StoreSettings.backup_factories, StoreSettings.restore_factories):
        key = each.full(spec.name)
        if key not in config.origins:
            continue
        given = config.resolved.find(each, spec.name)
        if not isinstance(spec.side, SideInputs):
            raise ConfigError(
                f"`{key}` ({config.origin(key)}): store `{spec.name}` is not backed up, because {_filler(spec)}, whose "
                "versions the job keeps. Remove the key"
            )
        if spec.side.broadcast or config.store(spec.name).factory == "memory":
            what = "has everything in each container" if spec.side.broadcast else "is in memory"
            raise ConfigError(
                f"`{key}` ({config.origin(key)}): store `{spec.name}` {what}, which is not backed up. Remove the key: "
                "then a host that does not have the store fills it from its side inputs"
            )
        if given != (BACKUP,):
            raise ConfigError(
                f"`{key}` = `{','.join(given)}` ({config.origin(key)}): {_filler(spec)}, so it has no changes of the "
                f"job that a changelog could hold. `{BACKUP}` keeps copies of its content, with which another host "
                "begins; or remove the key: then the store is filled from its side inputs"
            )


def _filler(spec: StoreSpec) -> str:
    if isinstance(spec.side, SideInputs):
        return f"side inputs fill store `{spec.name}`"
    return f"a pushed table fills store `{spec.name}`"


def _check_streams(graph: ApplicationGraph, config: JobConfig) -> None:
    """Raise ConfigError for a side input that the job itself writes. Its messages are not part of the batch's state:
    a run that breaks off leaves messages that no later run takes back."""
    written = {op.stream: f"the intermediate stream of `{op.writer}`" for op in graph.intermediates}
    written |= {spec.stream: "an output of the application" for spec in graph.outputs}
    if config.task.dead_letter_stream is not None:
        written[config.task.dead_letter_stream] = "the dead-letter stream of the job"
    for spec in graph.written_stores:
        if CHANGELOG_STREAM in (settings := config.store(spec.name)).backup_factories:
            written[settings.changelog] = f"the changelog of store `{spec.name}`"
    for stream, (spec, *_) in graph.side_streams().items():
        if stream in written:
            raise ConfigError(
                f"the side input `{stream}` of store `{spec.name}` is {written[stream]}: a job cannot fill a store "
                "with what it writes itself, since a batch that runs again writes again. Send the messages to a table, "
                "with .send_to(table), which has each of them once; or let another job fill the stream"
            )


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
