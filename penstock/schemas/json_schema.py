"""JSON that is checked against a JSON Schema, within the budget of a message. The package `jsonschema` is an extra."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from penstock.api.serdes import Json, JsonKey, Serde
from penstock.base.budgets import WorkBudget
from penstock.errors import ConfigError
from penstock.schemas.patterns import longest, search_of
from penstock.schemas.registry import Schema, SchemaRegistry, schema_text
from penstock.schemas.serde import Read, SchemaSerde, Write

Rule: TypeAlias = Callable[[Any, Any, Any, Any], Any]
"""A keyword of jsonschema: the errors of a value, from the validator, the keyword's value, the value and the schema."""

_BYTES_A_STEP = 4
"""Bytes in the text of an error that take as long as a step. The value is in it, on each level anew."""
_COMPARED_A_STEP = 300


def checker_of(schema: Any) -> Callable[[Any, int], None]:
    """A function that raises ValueError for a value that does not fit the schema; it takes the size of the message.

    Raises:
        ConfigError: the schema is not valid, or a regular expression in it may take any time.
    """
    validator, work = _validator(schema)

    def check(value: Any, size: int) -> None:
        work.begin(size)
        if (error := next(validator.iter_errors(value), None)) is not None:
            place = ".".join(map(str, error.absolute_path))
            raise ValueError(f"`{place}`: {error.message}" if place else error.message)

    return check


class _Work:
    """The budget of the message that is checked. A serde is used by one thread at a time."""

    def __init__(self, schema: Any) -> None:
        rules = _count_rules(schema)
        self._rules = rules
        self._longest_name = min((longest(each) for each in _name_patterns(schema)), default=1 << 30)
        """For `unevaluatedProperties`, where jsonschema searches names itself."""
        self.budget = WorkBudget(0, rules)

    def begin(self, size: int) -> None:
        self.budget = WorkBudget(size, self._rules)

    def counting(self, rule: Rule) -> Rule:
        def check(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
            self.budget.spend()
            for error in rule(validator, wanted, instance, schema) or ():
                self.budget.spend(len(error.message) // _BYTES_A_STEP)
                yield error

        return check

    def comparing(self, rule: Rule) -> Rule:
        """A rule that compares the parts of a value with each other."""

        def check(validator: Any, wanted: Any, instance: Any, schema: Any) -> Any:
            if isinstance(instance, list | dict):
                self.budget.spend(len(instance) ** 2 // _COMPARED_A_STEP)
            if isinstance(instance, dict) and max(map(len, instance), default=0) > self._longest_name:
                raise ValueError(f"a name has more than {self._longest_name} characters, for `patternProperties`")
            return rule(validator, wanted, instance, schema)

        return check


def _validator(schema: Any) -> tuple[Any, _Work]:
    try:
        import jsonschema
    except ImportError as error:
        raise ConfigError(
            f"ps.JsonSchema() needs jsonschema: install `penstock-streams[json-schema]` ({error})"
        ) from error
    found = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        found.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ConfigError(f"the schema of ps.JsonSchema() is not valid: {error.message}") from error
    work, rules = _Work(schema), dict(found.VALIDATORS)
    rules |= {"pattern": _pattern, "patternProperties": _pattern_properties, "uniqueItems": _unique_items}
    rules["additionalProperties"] = _additional_properties(rules["additionalProperties"])
    for name in ("unevaluatedItems", "unevaluatedProperties"):
        if name in rules:
            rules[name] = work.comparing(rules[name])
    counted = {name: work.counting(rule) for name, rule in rules.items()}
    extended = jsonschema.validators.extend(found, counted)  # type: ignore[no-untyped-call]
    return extended(schema), work


def _count_rules(schema: Any) -> int:
    if isinstance(schema, dict):
        return len(schema) + sum(map(_count_rules, schema.values()))
    return sum(map(_count_rules, schema)) if isinstance(schema, list) else 0


def _name_patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(patterns := schema.get("patternProperties"), dict):
            yield from patterns
        for each in schema.values():
            yield from _name_patterns(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _name_patterns(each)


def check_patterns(part: Mapping[str, Any]) -> None:
    """Raise ConfigError for a regular expression of a schema, without its parts, that may take any time."""
    names = part.get("patternProperties")
    for each in (part.get("pattern"), *(names if isinstance(names, dict) else ())):
        if isinstance(each, str):
            try:
                search_of(each)
            except ValueError as error:
                raise ConfigError(f"the schema of ps.JsonSchema() has the pattern {each!r}: {error}") from error


def _pattern(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    import jsonschema

    if isinstance(instance, str) and not search_of(wanted)(instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {wanted!r}")


def _pattern_properties(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, dict):
        for pattern, part in wanted.items():
            search = search_of(pattern)
            for name, value in instance.items():
                if search(name):
                    yield from validator.descend(value, part, path=name, schema_path=pattern)


def _additional_properties(rule: Rule) -> Rule:
    """The rule of jsonschema, without its own search for the names of `patternProperties`."""

    def check(validator: Any, wanted: Any, instance: Any, schema: Any) -> Any:
        patterns = schema.get("patternProperties")
        if not patterns or not isinstance(instance, dict):
            return rule(validator, wanted, instance, schema)
        searches = [*map(search_of, patterns)]
        rest = {name: each for name, each in instance.items() if not any(search(name) for search in searches)}
        without = {name: each for name, each in schema.items() if name != "patternProperties"}
        return rule(validator, wanted, rest, without)

    return check


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """The check of `uniqueItems`, in a time that grows with the items. jsonschema compares each with all others."""
    import jsonschema

    if wanted and validator.is_type(instance, "array"):
        seen = {json.dumps(_comparable(each), sort_keys=True) for each in instance}
        if len(seen) < len(instance):
            yield jsonschema.ValidationError(f"{len(instance) - len(seen)} of its items are equal to others")


def _comparable(value: Any) -> Any:
    """The value in a form whose JSON is equal for equal ones: 1.0 is 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _comparable(each) for name, each in value.items()}
    return [_comparable(each) for each in value] if isinstance(value, list) else value


class JsonSchema(SchemaSerde):
    """JSON, as `ps.Json`, whose objects are checked against a schema when they are written and when they are read.

    What does not fit is a failed message, with the field and the reason. `title` in the schema is the name of the
    record, for subjects of a registry.

    Example:
        >>> trip = ps.JsonSchema({
        ...     "title": "Trip",
        ...     "type": "object",
        ...     "properties": {"tail": {"type": "string"}, "miles": {"type": "integer", "minimum": 0}},
        ...     "required": ["tail"],
        ... })
        >>> trip.from_bytes(b'{"tail":"N1","miles":1400}')
        {'tail': 'N1', 'miles': 1400}
        >>> trip.to_bytes({"tail": "N1", "miles": -1})
        Traceback (most recent call last):
        ValueError: `miles`: -1 is less than the minimum of 0
    """

    kind = "JSON"

    def __init__(
        self, schema: Mapping[str, Any] | str | Path | None = None, *, registry: SchemaRegistry | None = None
    ) -> None:
        """Make a serde of JSON with a schema.

        Args:
            schema: the schema, as a dict, as JSON, or as the path of a `.json` file. None: messages are read without a
                check, and none can be written.
            registry: keeps the schemas of messages. None: the bytes are the JSON alone.

        Raises:
            ConfigError: the schema is not valid or cannot be read, a `$ref` in it leads nowhere, or there is neither a
                schema nor a registry.
        """
        super().__init__(registry)
        if schema is None and registry is None:
            raise ConfigError("ps.JsonSchema() takes a schema, registry=ps.SchemaRegistry(), or both")
        self._given = None if schema is None else _parsed(schema)
        if self._given is not None:
            checker_of(self._given)
            _check_schema(self._given)

    def __repr__(self) -> str:
        return f"ps.JsonSchema({self.record or '...'}{', registry=ps.SchemaRegistry()' if self.registry else ''})"

    @property
    def name(self) -> str:
        """See `Serde.name`. The bytes of an object are JSON, whatever the schema."""
        return "json" if self.registry is None else "json-registered"

    @cached_property
    def schema(self) -> Schema | None:
        """See `SchemaSerde.schema`."""
        return None if self._given is None else Schema("JSON", json.dumps(self._given, separators=(",", ":")))

    @property
    def record(self) -> str:
        """The schema's title."""
        return str((self._given or {}).get("title", ""))

    def for_keys(self) -> Serde[Any]:
        """See `Serde.for_keys`. Keys are JSON with sorted fields; in a registry's format they are as they come."""
        return JsonKey() if self.registry is None else self

    def for_store_values(self) -> Serde[Any]:
        """See `Serde.for_store_values`. Values of a store are JSON, and checked."""
        if self._given is None:
            raise ConfigError("ps.JsonSchema() of a store takes a schema")
        return JsonSchema(self._given)

    def _check(self) -> Callable[[Any, int], None]:
        return _unchecked if self._given is None else checker_of(self._given)

    def _reader(self, written: Schema | None) -> Read:
        check, read = self._check(), Json().from_bytes

        def read_checked(data: bytes) -> Any:
            found = read(data)
            check(found, len(data))
            return found

        return read_checked

    def _writer(self) -> Write:
        if self._given is None and self._latest is None:
            raise TypeError("there is no schema to write it with: give one, as ps.JsonSchema(schema, ...)")
        check, write = self._check(), Json().to_bytes

        def write_checked(obj: Any) -> bytes:
            data = write(obj)
            check(obj, len(data))
            return data

        return write_checked


def _unchecked(obj: Any, size: int) -> None:
    """Takes everything: a serde that has no schema checks nothing."""


def _parsed(given: object) -> Any:
    if isinstance(given, Mapping):
        return json.loads(json.dumps(given))
    text = schema_text(given, ".json", "ps.JsonSchema()")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the schema of ps.JsonSchema() is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"the schema of ps.JsonSchema() is {text[:60]}: it is a JSON object")
    return found


def _check_schema(schema: Any) -> None:
    """Raise ConfigError if a `$ref` leads nowhere, so that a message that it takes part in would fail, or if a pattern
    may take any time."""
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing.jsonschema import DRAFT202012, SchemaResource

    def check(part: SchemaResource, resolver: Any) -> None:
        if isinstance(part.contents, Mapping):
            check_patterns(part.contents)
        if isinstance(part.contents, Mapping) and "$ref" in part.contents:
            reference = part.contents["$ref"]
            try:
                resolver.lookup(reference)
            except Exception as error:  # pointers that make no sense raise others than Unresolvable
                raise ConfigError(
                    f"the schema of ps.JsonSchema() has the `$ref` {reference!r}, which leads nowhere. Correct it, or "
                    "add the definition under `$defs`: nothing is fetched"
                ) from error
        for each in part.subresources():
            check(each, resolver.in_subresource(each))

    root = SchemaResource.from_contents(schema, default_specification=DRAFT202012)
    check(root, REGISTRY.resolver_with_root(root))
