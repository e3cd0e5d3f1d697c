"""One parser of bytes that come from outside of the process, and the judgement of what it does with some.

A parser reads bytes as a value, or refuses them with a clear error. Anything else is a fault: another error, a value
whose fields are not what they are declared to be, a value that is another one once it was written and read again, and
more time or memory than so few bytes deserve.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import orjson
from msgspec import Struct

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import PenstockError
from penstock.objects.open import open_store
from tests.support.tools.places import GOLDEN

SSP = SystemStreamPartition("local", "s", 0)
SECONDS = 5.0
"""For one input, also in a process that counts which code it runs."""
MEMORY_BYTES = 96 << 20
"""For one input: more than any budget of a reader, with room for one copy."""


class WrongError(AssertionError):
    """A parser did something that none may do."""


@dataclass(frozen=True, slots=True)
class Parser:
    """A reader of bytes, valid ones, and what is known of the value."""

    read: Callable[[bytes], object]
    seeds: Sequence[bytes]
    refuses: type[Exception] | tuple[type[Exception], ...] = PenstockError
    again: Callable[[Any], bytes] | None = None
    """Writes the value: it is the same one when it is read again."""
    kind: Any = Any
    """The declaration of the value."""
    wrap: Callable[[bytes], bytes] = bytes
    """Adds what nobody guesses to the bytes, such as a checksum that fits."""
    is_whole: bool = True
    """False if the seeds need more than their bytes to be read."""
    grows: bool = True
    """False if more bytes take more work each, within a limit of the length."""
    memory: int = 32 << 20
    """The bytes of memory for one input: far more than any small message needs."""
    touches_files: bool = False
    """True if each input is written to a file, or to an object, first."""

    @property
    def document(self) -> Any:
        """The first seed as JSON, if it is an object or a list; else None."""
        try:
            found = orjson.loads(self.seeds[0])
        except orjson.JSONDecodeError:
            return None
        return found if isinstance(found, dict | list) else None

    def value(self, data: bytes) -> object:
        return self.read(self.wrap(data))

    def judge(self, data: bytes) -> None:
        """Read or refuse the bytes. Raises WrongError, or an error that is none of a refusal."""
        try:
            value = self.value(data)
        except MemoryError:
            raise
        except self.refuses:
            return
        if not conforms(value, self.kind) or (is_dataclass(value) and not conforms(value, type(value))):
            raise WrongError(f"its fields are not what they are declared to be: {value!r:.2000}")
        if self.again is not None:
            try:
                written = self.again(value)
            except self.refuses:  # an integer of any size is read as JSON, and has no other form
                return
            second = self.read(written)
            if second != value and repr(second) != repr(value):  # a float may be none
                raise WrongError(f"{value!r:.2000} is {second!r:.2000} when it was written and read again")

    def judge_within_limits(self, data: bytes) -> None:
        """As `judge`. Raises WrongError, too, for more time or memory than one input deserves."""
        began, before = time.process_time(), _peak()
        self.judge(data)
        seconds, more = time.process_time() - began, _peak() - before
        if seconds > SECONDS or more > MEMORY_BYTES:
            raise WrongError(f"{len(data)} bytes took {seconds:.1f} s and {more >> 20} MiB")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def golden(*names: str) -> list[bytes]:
    """Golden files."""
    return [(GOLDEN / name).read_bytes() for name in names]


def of_text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """For a reader of text, whose bytes may be none."""
    return lambda data: read(data.decode(errors="replace"))


def of_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """For a reader of a file, which has the bytes."""

    def read_from(data: bytes) -> object:
        with TemporaryDirectory() as folder:
            file = Path(folder) / name
            file.write_bytes(data)
            return read(file)

    return read_from


def of_object(
    key: str, read: Callable[[Any], object], first: dict[str, bytes] | None = None
) -> Callable[[bytes], None]:
    """With the bytes as an object of a store."""

    def read_from(data: bytes) -> None:
        with TemporaryDirectory() as folder:
            objects = open_store(folder)
            for name, content in {**(first or {}), key: data}.items():
                objects.put_if_absent(name, content)
            read(objects)

    return read_from


def all_of(readers: Iterable[Callable[[bytes], object]], refuses: type[Exception]) -> Callable[[bytes], None]:
    """For small readers that are tried together."""
    every = [*readers]

    def read(data: bytes) -> None:
        for each in every:
            try:
                each(data)
            except MemoryError:
                raise
            except refuses:
                continue

    return read


@cache
def _hints_of(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(cast("type", kind))


_EXACT: dict[Any, type] = {None: NoneType, NoneType: NoneType, int: int}
"""Types whose values are of no other class: a bool is no number."""


def conforms(value: object, hint: Any) -> bool:
    """True if a value is what its declaration says, all the way down."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or isinstance(hint, TypeVar) or origin is Literal:
        return origin is not Literal or value in arguments
    if origin in {Union, UnionType}:
        return any(conforms(value, each) for each in arguments)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if arguments[-1] is Ellipsis:
            return all(conforms(each, arguments[0]) for each in value)
        return len(value) == len(arguments) and all(map(conforms, value, arguments))
    if origin is frozenset:
        return isinstance(value, frozenset) and all(conforms(each, arguments[0]) for each in value)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            conforms(key, arguments[0]) and conforms(each, arguments[1]) for key, each in value.items()
        )
    if hint in _EXACT:
        return type(value) is _EXACT[hint]
    if not isinstance(value, origin or hint):
        return False
    own = _hints_of(cast("Hashable", type(value))) if is_dataclass(value) or isinstance(value, Struct) else {}
    return all(conforms(getattr(value, name), own[name]) for name in own if not name.startswith("_"))
