"""The application's code on other machines: loads pickles of the driver, and explains errors of missing code."""

from __future__ import annotations

import pickle
import socket
from typing import Any

from penstock.errors import ConfigError


def read_shipped(data: bytes) -> Any:
    """Load a pickle of the driver.

    Raises:
        ConfigError: code of the application is not on this host, or is another version of it.
    """
    try:
        return pickle.loads(data)  # noqa: S301 - it came from the driver
    except (ImportError, AttributeError) as error:
        host = socket.gethostname()
        raise ConfigError(
            f"the application's code cannot be loaded on host {host}: {error}. "
            f"{missing_code(error) or 'Ship the same code to every host, with `spark.submit.pyFiles`'}"
        ) from error


def missing_code(error: BaseException) -> str | None:
    """Advice for an error that missing code has caused; None if it is another error."""
    if isinstance(error, ModuleNotFoundError):
        return (
            f"If module `{error.name}` is yours, name its file (.py, or a .zip of a package) in "
            "`spark.submit.pyFiles`, or give it to `addPyFile` of the SparkContext; else install it on every host"
        )
    by_name = isinstance(error, pickle.PicklingError) or (
        isinstance(error, AttributeError) and "Can't get attribute" in str(error)
    )
    if by_name:
        return (
            "A class is pickled by its name, and other processes do not find one that is defined in the script that "
            "was started (`__main__`). Define it in a module, import it from there, and name the module's file in "
            "`spark.submit.pyFiles`"
        )
    return None
