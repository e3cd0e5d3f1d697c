"""The serdes of an application's graph. Pure.

They can be replaced, wherever they are in it. An exchange carries only those columns of an operator's rows that
anything after it reads. An object that does not fit its serde gives an error with the place, the expected and the
found type, and the remedy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, TypeAlias

from penstock.api.serdes import values
from penstock.api.serdes.base import Bytes, Serde, String, given_serde
from penstock.api.serdes.columns import ColumnSerde
from penstock.api.time.aggregates import Aggregate
from penstock.base.application_code import missing_code
from penstock.base.exact_json import exact_bytes
from penstock.base.wording import no_utf8
from penstock.errors import SerdeError, SystemAwayError
from penstock.graph.specs import ApplicationGraph, OperatorSpec, OutputSpec, Use
from penstock.system.contract.messages import unreadable_row

Change: TypeAlias = Callable[[Serde[Any]], Serde[Any]]


def with_serdes(graph: ApplicationGraph, change: Change) -> ApplicationGraph:
    """The graph with other serdes. One that several operators share is changed once, and stays shared: bytes that one
    of them has read are passed on as they are."""
    changed: dict[int, Serde[Any]] = {}

    def of(value: Any) -> Any:
        if isinstance(value, Serde):
            if id(value) not in changed:
                changed[id(value)] = value.mapped(change)
            return changed[id(value)]
        if isinstance(value, tuple) and type(value) is tuple:
            made = tuple(map(of, value))
            return value if all(map(_same, made, value)) else made
        if isinstance(value, Mapping):
            found = {key: of(each) for key, each in value.items()}
            return value if all(found[key] is each for key, each in value.items()) else found
        if is_dataclass(value) and not isinstance(value, type) and type(value).__module__.startswith("penstock."):
            new = {each.name: of(old) for each in fields(value) if each.init for old in [getattr(value, each.name)]}
            new = {name: each for name, each in new.items() if each is not getattr(value, name)}
            return replace(value, **new) if new else value
        return value

    found: ApplicationGraph = of(graph)
    return found


def with_output_serdes(graph: ApplicationGraph, change: Change) -> ApplicationGraph:
    """The graph with other serdes of outputs."""

    def of(output: OutputSpec) -> OutputSpec:
        return replace(output, key_serde=output.key_serde.mapped(change), value_serde=output.value_serde.mapped(change))

    return replace(graph, outputs=tuple(map(of, graph.outputs)))


def _same(one: object, other: object) -> bool:
    return one is other


Part: TypeAlias = Literal["key", "value"]

_ROW_BYTES = 2000
_SHOWN = 100
"""Characters of a key or value in a message."""
_SAID = 2000
"""Characters of what a serde says of them: libraries put whole values into their errors."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of serde: its declaration, its classes, the types it takes, and these in words."""

    declaration: str
    classes: tuple[type, ...]
    types: tuple[type, ...]
    takes: str


_KINDS = (
    _Kind("ps.Bytes()", (Bytes,), (bytes,), "bytes"),
    _Kind("ps.String()", (String,), (str,), "str"),
    _Kind("ps.Integer()", (values.Integer, values.OrderedInteger), (int,), "int from -2^31 to 2^31 - 1"),
    _Kind("ps.Long()", (values.Long, values.OrderedLong), (int,), "int from -2^63 to 2^63 - 1"),
    _Kind("ps.Double()", (values.Double, values.OrderedDouble), (float, int), "float, or int that equals one"),
    _Kind(
        "ps.Json()",
        (values.Json, values.JsonKey),
        (object,),
        "dict with str keys, list, str, int of 64 bits, finite float, bool, None",
    ),
    _Kind("ps.Columns(...)", (ColumnSerde,), (dict,), "dict with the columns of its schema"),
    _Kind("ps.Tuple()", (values.Tuple,), (tuple,), "tuple with its number of fields"),
)


@dataclass(frozen=True, slots=True)
class SerdePlace:
    """Where keys and values have serdes: a store, a stream, or the messages between two operators.

    `declaration` declares a serde there, as `app.store("totals", {part}={serde})`; it is empty where none is declared.
    """

    name: str
    declaration: str

    def serde(self, part: Part, given: object, default: Serde[Any]) -> Serde[Any]:
        """The given serde, or the default if none was given. Raises ConfigError if the given object is not a serde."""
        if given is None:
            return default
        declaration = self.declaration.format(part=part, serde="{serde}")
        return given_serde(given, f"{self.name}: the serde of the {part}s", declaration)

    def unwritable(
        self, part: Part, serde: Serde[Any], obj: object, error: Exception, key: object = None
    ) -> SerdeError:
        """The error for an object that the serde does not write; `key` is that of a value, if it is known."""
        kind, name, said = _kind_of(serde), declared(serde), _text(error)
        if "surrogates not allowed" in said and (reason := no_utf8(obj)) is not None:
            _trim(error)
            return SerdeError(f"{self.name}: {_subject(part, obj, key)} cannot be written: {reason}")
        problem = f"cannot be written by {name}: {said}"
        advice = f"Give it a {part} that it takes"
        if kind is not None:
            if not isinstance(obj, kind.types):
                problem = f"is {_article(obj)}, but {part}s are declared as {name}"
            elif isinstance(error, struct.error):  # its text has the range of the bytes, not that of the serde
                whose = "a field is" if isinstance(serde, values.Tuple) else "it is"
                problem = f"cannot be written by {name}: {whose} out of range"
            advice = f"{name} takes {kind.takes}"
            better = fitting(obj, part)
            if "numpy" in f"{type(obj).__module__} {said}":
                advice += ". NumPy's numbers become Python's with .item()"
            elif better is not None and better != name and self.declaration:
                advice += f"; for this {part}, declare {self.declaration.format(part=part, serde=better)}"
        _trim(error)
        advice = missing_code(error) or advice
        return SerdeError(f"{self.name}: {_subject(part, obj, key)} {problem}. {advice}")

    def unreadable(
        self, part: Part, serde: Serde[Any], data: bytes, error: Exception, key: object = None
    ) -> SerdeError:
        """The error for bytes that the serde does not read. Raises the error itself if a system is away that the serde
        needs: it says nothing about the bytes."""
        if isinstance(error, SystemAwayError):
            raise error
        if (row := unreadable_row(data)) is not None:
            _trim(error)
            return SerdeError(f"{self.name}: {row.reason}{'' if row.data is None else f': {_beginning(row.data)}'}")
        advice = ""
        if self.declaration and isinstance(serde, ColumnSerde) and data.startswith(b"{"):
            advice = (
                f". If this is the only such {part}, correct what wrote it; otherwise declare the columns with the "
                "types that these rows have"
            )
        elif self.declaration:
            better = "ps.String()" if _is_text(data) and not isinstance(serde, String) else "ps.Bytes()"
            advice = (
                f". If this is the only such {part}, correct what wrote it; otherwise declare the serde they were "
                f"written with, as {self.declaration.format(part=part, serde=better)}"
            )
        _trim(error)
        missing = missing_code(error)
        advice = advice if missing is None else f". {missing}"
        return SerdeError(
            f"{self.name}: {_subject(part, data, key)} cannot be read by {declared(serde)}: {_text(error)}{advice}"
        )


def _beginning(data: bytes) -> str:
    text = data[:_ROW_BYTES].decode("utf-8", "backslashreplace")
    return text if len(data) <= _ROW_BYTES else f"{text}... ({len(data):,} bytes)"


def unstorable(operator: str, part: str, state: object, error: Exception, key: object) -> SerdeError:
    """The error for a state, of this key, that cannot be stored. `operator` and `part` say whose state it is."""
    _trim(error)
    return SerdeError(
        f"{operator}: the state of {part}{'' if key is None else f' of key {_shown(key)}'} cannot be stored, "
        f"{_shown(state)}: {_text(error)}"
    )


def unstorable_states(
    operator: str, aggregates: Mapping[str, Aggregate], states: Sequence[Any], key: Any, error: Exception
) -> SerdeError:
    """The error for states of this key. It names the first aggregate whose state is refused."""
    for (name, each), state in zip(aggregates.items(), states, strict=True):
        try:
            exact_bytes(each.to_json(state))
        except Exception as own:
            return unstorable(operator, f"aggregate `{name}`", state, own, key)
    return unstorable(operator, "its aggregates", states, error, key)


def store_place(name: str) -> SerdePlace:
    return SerdePlace(f"store `{name}`", f'app.store("{name}", {{part}}={{serde}})')


def table_place(name: str) -> SerdePlace:
    return SerdePlace(f"table `{name}`", f'app.table("{name}", {{part}}={{serde}})')


def input_place(stream: object) -> SerdePlace:
    return SerdePlace(f"input `{stream}`", f'app.input("{stream}", {{part}}={{serde}})')


def side_input_place(stream: object) -> SerdePlace:
    """The place of a stream that fills a store."""
    return SerdePlace(f"side input `{stream}`", f'ps.SideInput("{stream}", {{part}}={{serde}})')


def output_place(stream: object) -> SerdePlace:
    return SerdePlace(f"output `{stream}`", f'app.output("{stream}", {{part}}={{serde}})')


def partition_by_place(name: str) -> SerdePlace:
    """The place of a `partition_by`'s messages; `name` says which."""
    return SerdePlace(name, ".partition_by(..., {part}={serde})")


def process_place(name: str) -> SerdePlace:
    """The place of a `process`'s messages; `name` says which."""
    return SerdePlace(name, ".process(..., {part}={serde})")


def join_place(name: str) -> SerdePlace:
    """The place of a `join`'s messages; `name` says which."""
    return SerdePlace(name, ".join(..., {part}={serde})")


def timers_place(operator: str, declaration: str = ".process(..., timers={serde})") -> SerdePlace:
    return SerdePlace(f"timers of operator `{operator}`", declaration)


def declared(serde: Serde[Any]) -> str:
    """The serde as it is declared; the class's name if it is one of the application's own."""
    if isinstance(serde, values.Tuple):
        return f"ps.Tuple({', '.join(map(declared, serde.fields))})"
    kind, own = _kind_of(serde), type(serde).__name__
    if kind is None:
        return f"ps.{own}(...)" if _is_ours(type(serde).__module__) else type(serde).__qualname__
    return f"ps.{own}()" if own.startswith("Samza") else kind.declaration


def fitting(obj: object, part: Part) -> str | None:
    """The declaration of a serde that takes the object, if one of Penstock's does."""
    match obj:
        case str():
            return "ps.String()"
        case bytes():
            return "ps.Bytes()"
        case bool() | dict() | list() | None:
            return "ps.Json()"
        case int():
            return "ps.Long()" if -(1 << 63) <= obj < 1 << 63 else None
        case float():
            return "ps.Double()"
        case tuple() if part == "key":
            fields = [fitting(field, part) for field in obj]
            return (
                f"ps.Tuple({', '.join(map(str, fields))})"
                if fields and {None, "ps.Json()"}.isdisjoint(fields)
                else None
            )
        case tuple():
            return "ps.Json()"
        case _:
            return None


def _kind_of(serde: Serde[Any]) -> _Kind | None:
    if not _is_ours(type(serde).__module__):
        return None
    return next((kind for kind in _KINDS if isinstance(serde, kind.classes)), None)


def _is_ours(module: str) -> bool:
    return module.startswith("penstock.")


def _trim(error: Exception) -> None:
    """Leave out the frames before the application's own. If a serde of Penstock raised, those are all frames."""
    frame = error.__traceback__
    while frame is not None and _is_ours(frame.tb_frame.f_globals.get("__name__", "")):
        frame = frame.tb_next
    error.__traceback__ = frame


def _subject(part: Part, obj: object, key: object) -> str:
    if part == "key":
        return f"the key {_shown(obj)}"
    return f"the value {_shown(obj)}" + ("" if key is None else f" of key {_shown(key)}")


def _shown(obj: object) -> str:
    try:
        text = repr(obj)
    except Exception as error:
        return f"(its repr raised {type(error).__name__})"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def _article(obj: object) -> str:
    name = type(obj).__name__
    if name in {"bytes", "NoneType"}:
        return name.removesuffix("Type")
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _text(error: Exception) -> str:
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as failure:
        return f"{name} (its text cannot be shown: __str__ raised {type(failure).__name__})"
    if len(text) > _SAID:
        text = f"{text[:_SAID]}... ({len(text)} characters)"
    return f"{name}: {text}" if text else name


def _is_text(data: bytes) -> bool:
    try:
        return data.decode().isprintable()
    except UnicodeDecodeError:
        return False


class ColumnUse:
    """The use that is made of the rows of an application's operators."""

    def __init__(self, graph: ApplicationGraph) -> None:
        self._specs = {op.id: op for op in graph.operators}
        followers: dict[str, list[str]] = {op.id: [] for op in graph.operators}
        for op in graph.operators:
            for upstream in op.upstream:
                followers[upstream].append(op.id)
        self._of: dict[str, Use] = {}
        for op in reversed(graph.operators):
            self._of[op.id] = self._together(followers[op.id]) if op.sent_to is None else None

    def narrowed(self, serde: ColumnSerde, readers: Iterable[str]) -> ColumnSerde:
        """The serde of the columns that these operators need of rows with this serde."""
        use = self._together(readers)
        return serde if use is None else serde.narrowed(use)

    def _together(self, readers: Iterable[str]) -> Use:
        found = frozenset[str]()
        for reader in readers:
            spec = self._specs[reader]
            use = _use_of(spec, self._of[spec.id])
            if use is None:
                return None
            found |= use
        return found


def _use_of(spec: OperatorSpec, passed_on: Use) -> Use:
    """The columns that an operator needs of its messages, if `passed_on` is needed of those that it emits."""
    return spec.columns_read(passed_on) if spec.ordering is None else None
