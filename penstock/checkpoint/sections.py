"""The sections of a checkpoint record: each is written and read by one wing. Pure.

A wing declares its section once, beside the value that it holds:

    OUTBOX = Section("outbox", OutboxSection, dataclass_form(OutboxSection, ...), needed=True)

and reads it with `record.section(OUTBOX)`. A record keeps its sections as they are written, so it can be read, listed
and shown by a Penstock that does not have all of the wings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar, cast

import orjson

from penstock.base.documents import Form, convert, dataclass_form
from penstock.errors import PenstockError

T = TypeVar("T")
_declared: dict[str, Section[Any]] = {}


class Section(Generic[T]):
    """The declaration of a section: made once, in a module."""

    def __init__(self, name: str, cls: type[T], form: Form | None = None, *, needed: bool = False) -> None:
        """
        Args:
            name: the name in records. The section of a wing has the name of the wing.
            cls: the class of its values. `cls()` is the value in a record without the section.
            form: the written form, a JSON object; by default that of a dataclass.
            needed: True if nothing may be restored from a record with this section by a Penstock without the wing.
        """
        self.name = name
        self.default = cls()
        self.needed = needed
        self.form = form or dataclass_form(cls)
        _declared[name] = self

    def write(self, value: T) -> WrittenSection:
        """The value as a record has it.

        Raises:
            PenstockError: it is not of the section's class, or a field has another type, so it could not be read again.
        """
        try:
            fields = self.form.encode(value)
            convert(self.form.plain, orjson.loads(_json(fields)))
        except Exception as error:
            raise PenstockError(
                f"the section `{self.name}` of a checkpoint's record cannot be written, because of {error!r}. Mend the "
                f"wing `{self.name}`, or remove the distribution that brings it"
            ) from error
        return WrittenSection(fields, self.needed)

    def read(self, written: WrittenSection) -> T:
        """The value that was written. Raises what `Form.decode` raises."""
        return cast("T", self.form.decode(written.fields))


SectionValues: TypeAlias = Mapping[Section[Any], Any]
"""Sections, each with its value."""


@dataclass(frozen=True, slots=True, eq=False)
class WrittenSection:
    """A section as a record has it, whichever wing it belongs to. Two are equal if they are written alike."""

    fields: Mapping[str, Any]
    needed: bool = False
    """True if nothing may be restored from the record without the wing."""

    @property
    def size(self) -> int:
        """The bytes of the fields, as JSON."""
        return len(_json(self.fields))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WrittenSection):
            return NotImplemented
        return self.needed == other.needed and _json(self.fields) == _json(other.fields)


@dataclass(frozen=True, slots=True)
class Sections:
    """The sections of one record, by name. One whose value is the default is left out."""

    written: Mapping[str, WrittenSection] = field(default_factory=dict)
    _values: dict[Section[Any], Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The values that were read or given already."""

    @classmethod
    def of(cls, values: SectionValues) -> Sections:
        return cls().having(values)

    def get(self, section: Section[T]) -> T:
        """The value of a section; its default if the record has none. Raises what `Form.decode` raises."""
        written = self.written.get(section.name)
        if written is None:
            return section.default
        if section not in self._values:
            self._values[section] = section.read(written)
        return cast("T", self._values[section])

    def having(self, values: SectionValues) -> Sections:
        """A copy in which these sections have these values."""
        written = dict(self.written)
        for section, value in values.items():
            written.pop(section.name, None)
            if value != section.default:
                written[section.name] = section.write(value)
        found = Sections(written)
        found._values.update({**self._values, **values})
        return found

    def only(self, names: Collection[str]) -> Sections:
        """The same without the sections of other names."""
        return Sections({name: each for name, each in self.written.items() if name in names})

    def missing(self, known: Collection[str]) -> tuple[str, ...]:
        """The names of the sections that are needed and are not `known`."""
        return tuple(sorted(name for name, each in self.written.items() if each.needed and name not in known))

    def declared(self) -> Iterator[Section[Any]]:
        """The sections that this process has a declaration of: a wing that was not imported yet is not among them."""
        return (_declared[name] for name in self.written if name in _declared)

    def __reduce__(self) -> tuple[Any, ...]:
        return Sections, (self.written,)


def _json(fields: Mapping[str, Any]) -> bytes:
    return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
