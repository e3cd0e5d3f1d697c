"""Checks that an application gives an instance as a serde: not its class, its name, or a type of Python."""

from __future__ import annotations

from typing import Any

from penstock.api.callbacks import check_all, methods
from penstock.api.serdes.base import Serde
from penstock.errors import ConfigError

_TUPLE = "ps.Tuple(ps.String(), ps.Long())"
_MEANT = {
    "bytes": "ps.Bytes()",
    "str": "ps.String()",
    "string": "ps.String()",
    "int": "ps.Long()",
    "long": "ps.Long()",
    "integer": "ps.Integer()",
    "float": "ps.Double()",
    "double": "ps.Double()",
    "json": "ps.Json()",
    "dict": "ps.Json()",
    "list": "ps.Json()",
    "tuple": _TUPLE,
}


def given_serde(given: object, where: str, declaration: str = "{serde}") -> Serde[Any]:
    """Return the given object, if it is a serde.

    Args:
        given: the object from the application.
        where: the purpose of the serde, as "store `totals`: the serde of the keys".
        declaration: declares a serde there, as `app.store("totals", key={serde})`.

    Raises:
        ConfigError: it is not a serde; the message says what to write.
    """
    if isinstance(given, Serde):
        check_all(methods(given, ("to_bytes", "from_bytes")), where)
        return given
    if isinstance(given, type) and issubclass(given, Serde):
        made = _made(given)
        what = f"the class {made.partition('(')[0]}, not an instance of it"
    else:
        name = given.__name__ if isinstance(given, type) else given
        made = _MEANT.get(name.lower(), "ps.String()") if isinstance(name, str) else "ps.String()"
        what = f"{given!r}, which is not a serde"
    raise ConfigError(f"{where} is {what}: write {declaration.format(serde=made)}")


def _made(serde: type[Serde[Any]]) -> str:
    if not serde.__module__.startswith("penstock."):
        return f"{serde.__qualname__}()"
    package = "pss" if serde.__module__.startswith("penstock.spark.") else "ps"
    return _TUPLE if serde.__name__ == "Tuple" else f"{package}.{serde.__name__}()"
