"""The layout of a store in a checkpoint: a text that a start compares with the application."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_EXPIRES = "ttl-1"
"""The form of a store whose entries have a time to live. How long they live is no part of it."""
_ROWS = re.compile(r"(?:(?:value|list|map|columns)-[0-9]+|columns|avro)\(.*\)")
"""Rows: those of a state variable of PySpark, with its kind and the version of its form, or those of `ps.Columns`. Or
Avro, with all schemas that values have."""
_VERSIONS = re.compile(r"^version\((.*)\)$")
_REQUIRED = "!"


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """The operators that use a store, its serdes by name, and whether its entries have a time to live.

    Example:
        >>> str(StoreLayout(("process-1",), "string", "json"))
        'process-1 string json'
        >>> StoreLayout.parse("process-1 string json ttl-1").expires
        True
    """

    operators: tuple[str, ...]
    key: str
    value: str
    expires: bool = False

    def __str__(self) -> str:
        text = f"{','.join(self.operators)} {self.key} {self.value}"
        return f"{text} {_EXPIRES}" if self.expires else text

    @classmethod
    def parse(cls, text: str) -> StoreLayout:
        """The layout from its text. The serdes of a text that has another form are `unknown`."""
        expires = text.endswith(f" {_EXPIRES}")
        parts = text.removesuffix(f" {_EXPIRES}").split(" ") if expires else text.split(" ")
        key, value = (parts[1], parts[2]) if len(parts) == 3 else ("unknown", "unknown")
        return cls(tuple(parts[0].split(",")), key, value, expires)

    def adds_fields(self, before: StoreLayout) -> bool:
        """True if it is the layout from before with more fields at the end of its rows, or with one more schema of
        Avro. The store is read as it is: rows that were written without the fields have None there.

        Example:
            >>> old = StoreLayout(("p",), "key-1(user:string)", "value-1(n:bigint)")
            >>> StoreLayout(("p",), "key-1(user:string)", "value-1(n:bigint,total:double)").adds_fields(old)
            True
        """
        was, now = (_VERSIONS.sub(r"\1", value) for value in (before.value, self.value))
        same = replace(self, value=before.value) == before and _ROWS.fullmatch(was) is not None
        start = f"{was[:-1]},"
        return same and now.startswith(start) and _REQUIRED not in now[len(start) :]
