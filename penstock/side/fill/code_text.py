"""A processor of side inputs as text: the same for the same code in every process, another one otherwise."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

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
