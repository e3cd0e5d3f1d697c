"""Checks the declarations of stores that side inputs, or a pushed table, fill."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from penstock.api.serdes import Serde
from penstock.api.side_inputs import (
    ProcessorFunction,
    PushedFormat,
    PushedTable,
    SideInput,
    SideInputsProcessor,
    SideInputsProcessorFactory,
)
from penstock.api.ssp import SystemStream
from penstock.base.application_code import Callback, check_all, methods
from penstock.base.wording import listed
from penstock.errors import ConfigError
from penstock.graph.serdes import side_input_place
from penstock.graph.stores import Side, SideInputs, SideStream, StoreSpec


@dataclass(frozen=True, slots=True)
class SideDeclaration:
    """The source of a store that the job only reads, as the application gave it. Exactly one of `side_inputs` and
    `pushed` is None."""

    side_inputs: tuple[str | SideInput, ...] | None
    processor: SideInputsProcessor | SideInputsProcessorFactory | ProcessorFunction | None
    broadcast: bool
    pushed: PushedTable | None

    @classmethod
    def of(
        cls,
        what: str,
        side_inputs: Sequence[str | SideInput] | None,
        processor: SideInputsProcessor | SideInputsProcessorFactory | ProcessorFunction | None,
        broadcast: bool,
        pushed: PushedTable | None,
    ) -> SideDeclaration | None:
        """None if the job writes the store. Raises ConfigError, naming `what`, if the arguments contradict each
        other."""
        if side_inputs is not None and pushed is not None:
            raise ConfigError(
                f"{what}: side_inputs and pushed exclude each other: either streams fill it, or a table that somebody "
                "else writes"
            )
        if not isinstance(broadcast, bool):
            raise ConfigError(f"{what}: broadcast is True or False, not {broadcast!r}")
        _check_processor(what, processor)
        if pushed is not None:
            if processor is not None:
                raise ConfigError(f"{what}: a processor makes entries of the messages of side inputs; pushed has none")
            if broadcast:
                raise ConfigError(f"{what}: for a pushed table, write pushed=ps.PushedTable(..., broadcast=True)")
            return cls(None, None, False, pushed)
        if side_inputs is None:
            given = "a processor" if processor is not None else "broadcast=True"
            if processor is not None or broadcast:
                raise ConfigError(
                    f"{what}: {given} is for a store that streams fill: name them, as in "
                    'side_inputs=["local.planes"]. Or name them in the configuration, as `stores.<name>.side.inputs`, '
                    "and the processor as `stores.<name>.side.inputs.processor.factory`"
                )
            return None
        if isinstance(side_inputs, str | SideInput):
            raise ConfigError(f"{what}: side_inputs is a list: side_inputs=[{side_inputs!r}]")
        return cls(tuple(side_inputs), processor, broadcast, None)

    def checked(self, what: str, key: Serde[Any], value: Serde[Any]) -> Side:
        """The checked source. Streams that declare no serdes have these. Raises ConfigError, naming `what`."""
        if self.pushed is not None:
            pushed = check_pushed(what, self.pushed)
            return replace(pushed, path=os.fspath(pushed.path), stream_key=key)
        streams = [_stream(what, each, key, value) for each in self.side_inputs or ()]
        return SideInputs(check_streams(what, streams), self.processor, self.broadcast)


def check_streams(what: str, streams: Iterable[SideStream]) -> tuple[SideStream, ...]:
    """Raises ConfigError if there is no stream, or one is listed twice."""
    found = tuple(streams)
    if not found:
        raise ConfigError(f'{what}: side_inputs is empty: name a stream, as in side_inputs=["local.planes"]')
    names = [each.stream for each in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{what}: the side input `{name}` is listed twice")
    return found


def check_pushed(what: str, table: object) -> PushedTable:
    """Raises ConfigError if a field of the table is invalid."""
    if not isinstance(table, PushedTable):
        raise ConfigError(f"{what}: pushed is a ps.PushedTable(...), not {table!r}")
    if not isinstance(table.path, str | os.PathLike) or not os.fspath(table.path):
        raise ConfigError(f"{what}: the path of a pushed table is a folder or its URL, not {table.path!r}")
    if not _is_columns(table.key) or (table.value is not None and not _is_columns(table.value)):
        raise ConfigError(
            f"{what}: key and value of a pushed table are the name of a column, or a tuple of different names, not "
            f"{table.key!r} and {table.value!r}"
        )
    formats = get_args(PushedFormat)
    if table.format not in formats:
        raise ConfigError(f"{what}: the format of a pushed table is {listed(formats)}, not {table.format!r}")
    if table.check is not None and not callable(table.check):
        raise ConfigError(f"{what}: check of a pushed table is a function, not {table.check!r}")
    Callback("check of the pushed table", table.check).check(what)
    return table


def check_side_store(spec: StoreSpec) -> None:
    """Raise ConfigError if a store of this kind cannot be filled from outside."""
    if spec.side is None:
        return
    what, by = _named(spec), "side inputs" if isinstance(spec.side, SideInputs) else "a pushed table"
    if spec.has_versions:
        raise ConfigError(
            f"{what}: history_ms is for a table that the job writes with send_to, in the order of event times; this "
            f"one is filled by {by}, without a watermark. Leave history_ms out, or read the stream as an input and "
            "send it to the table"
        )
    if spec.ttl is not None:
        raise ConfigError(
            f"{what}: ttl_ms is for a store that the job writes; the entries of this one come and go with {by}. Leave "
            "ttl_ms out"
        )


def read_only(spec: StoreSpec) -> str:
    if isinstance(spec.side, PushedTable):
        return (
            f"{_named(spec)} is filled by the pushed table `{spec.side.path}` and is read-only: push a new version of "
            "it, or use another store for what the job writes"
        )
    streams = listed([f"`{each.stream}`" for each in spec.side.streams]) if spec.side else "nothing"
    return (
        f"{_named(spec)} is filled by its side inputs {streams} and is read-only: write to these streams, or use "
        "another store for what the job writes"
    )


def side_input_of(stores: Iterable[str]) -> str:
    """A side input's name in an error: it takes no startpoint."""
    return f"a side input of store {listed([f'`{store}`' for store in stores])}, which has no position in a checkpoint"


def _named(spec: StoreSpec) -> str:
    return f"{spec.kind} `{spec.name}`"


def _is_columns(given: object) -> bool:
    names = given if isinstance(given, tuple) else (given,)
    return bool(names) and all(isinstance(name, str) and name for name in names) and len(set(names)) == len(names)


def _check_processor(what: str, processor: object) -> None:
    if isinstance(processor, type):
        raise ConfigError(f"{what}: processor is an object or a function, not the class {processor.__name__}: make one")
    known = isinstance(processor, SideInputsProcessorFactory) or callable(getattr(processor, "process", processor))
    if processor is not None and not known:
        raise ConfigError(
            f"{what}: processor is a function of a message and the store, an object with such a method `process`, or a "
            f"SideInputsProcessorFactory, not {processor!r}"
        )
    check_all(methods(processor, ("get_side_inputs_processor",), yielding=("process",)), what)
    Callback("the processor", processor, may_yield=True).check(what)


def _stream(what: str, given: object, key: Serde[Any], value: Serde[Any]) -> SideStream:
    if not isinstance(given, str | SideInput):
        raise ConfigError(f"{what}: a side input is the name of a stream or a ps.SideInput(...), not {given!r}")
    side = given if isinstance(given, SideInput) else SideInput(given)
    name = SystemStream.parse(side.stream)
    place = side_input_place(name)
    key = place.serde("key", side.key, key).for_keys().for_stream(name.stream, "key")
    return SideStream(name, key, place.serde("value", side.value, value).for_stream(name.stream, "value"))
