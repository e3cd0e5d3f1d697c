"""Classes that a configuration names as `module:Class`."""

from __future__ import annotations

from typing import TypeVar

from penstock.base.plugins import load
from penstock.errors import ConfigError

T = TypeVar("T")


def named_class(name: str, base: type[T], called: str, where: str) -> type[T]:
    """The class `module:Class`.

    Args:
        base: the class must be a subclass of this.
        called: the public name of `base`.
        where: begins the error: the place that names the class.

    Raises:
        ConfigError: its module cannot be imported or has no such class, or it is not a subclass of `base`.

    Example:
        >>> named_class("collections:Counter", dict, "dict", "an example")
        <class 'collections.Counter'>
    """
    try:
        found = load(name)
    except Exception as error:  # importing a module runs its code
        raise ConfigError(
            f"{where} cannot be loaded: {type(error).__name__}: {error}. The module must be importable by the driver "
            "and on every host; `spark.submit.pyFiles` ships it there"
        ) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{where} is not a subclass of {called}")
    return found
