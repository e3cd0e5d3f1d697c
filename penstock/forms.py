"""Dataclasses as JSON: their fields by name, with ids, streams and partitions as texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from types import GenericAlias
from typing import Any, get_type_hints

import msgspec

from penstock.documents import convert


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Form:
    """The written form of the values of one type. `plain` is their type in JSON, which is checked when they are read.
    By default a value is written as msgspec writes it."""

    plain: Any
    write: Callable[[Any], Any] = _same
    read: Callable[[Any], Any] = _same

    def encode(self, value: Any) -> Any:
        """The value as JSON has it. Equal values are written alike."""
        return msgspec.to_builtins(self.write(value), str_keys=True, enc_hook=dict)  # mappings of other classes

    def decode(self, document: object) -> Any:
        """The value that was written. Raises msgspec.ValidationError or ConfigError; see `documents.decoding`."""
        return self.read(convert(self.plain, document))


def text(parse: Callable[[str], Any]) -> Form:
    """A value that is written as its `str`."""
    return Form(str, str, parse)


def optional(form: Form) -> Form:
    """None, or a value of the form."""
    return Form(
        form.plain | None,
        lambda value: None if value is None else form.write(value),
        lambda value: None if value is None else form.read(value),
    )


def each(form: Form) -> Form:
    """A tuple."""
    return Form(
        GenericAlias(tuple, (form.plain, ...)),
        lambda values: tuple(map(form.write, values)),
        lambda values: tuple(map(form.read, values)),
    )


def mapping(keys: Form, values: Form) -> Form:
    """A mapping. The keys are texts or numbers in JSON."""
    return Form(
        GenericAlias(dict, (keys.plain, values.plain)),
        lambda found: {keys.write(key): values.write(value) for key, value in found.items()},
        lambda found: {keys.read(key): values.read(value) for key, value in found.items()},
    )


def dataclass_form(cls: type[Any], **forms: Form) -> Form:
    """A dataclass, of which some fields have forms of their own. A field that has its default is left out."""
    hints = get_type_hints(cls, include_extras=True)
    by_name = {name: forms.get(name, Form(hint)) for name, hint in hints.items()}
    defaults = {
        own.name: own.default if own.default_factory is MISSING else own.default_factory()
        for own in fields(cls)
        if own.default is not MISSING or own.default_factory is not MISSING
    }
    plain = msgspec.defstruct(
        f"_{cls.__name__}",
        [
            (name, form.plain, *((form.write(defaults[name]),) if name in defaults else ()))
            for name, form in by_name.items()
        ],
        kw_only=True,
    )

    def write(value: Any) -> Mapping[str, Any]:
        held = {name: getattr(value, name) for name in by_name}
        return {name: by_name[name].write(own) for name, own in held.items() if own != defaults.get(name, MISSING)}

    def read(found: Any) -> Any:
        return cls(**{name: form.read(getattr(found, name)) for name, form in by_name.items()})

    return Form(plain, write, read)
