"""An error over a log of a table tells of damage, unless it tells of the way to it."""

from __future__ import annotations

import pytest
from botocore.exceptions import EndpointConnectionError  # type: ignore[import-untyped]
from deltalake.exceptions import DeltaError
from requests.exceptions import ConnectionError as NoConnectionError
from sqlalchemy.exc import OperationalError

from penstock.errors import CorruptError, IncompatibleError, RetryableError
from penstock.system.lake.files import parsing


@pytest.mark.parametrize(
    "error",
    [
        EndpointConnectionError(endpoint_url="http://nobody"),
        NoConnectionError("nobody"),
        OperationalError("SELECT", None, Exception("gone")),
        RetryableError("later"),
        IncompatibleError("newer"),
        PermissionError("no"),
        MemoryError("full"),
    ],
)
def test_errors_of_the_way_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as found, parsing("the log"):
        raise error
    assert found.value is error


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), DeltaError("x"), AssertionError("x"), EOFError("x")])
def test_every_other_error_is_damage(error: Exception) -> None:
    with pytest.raises(CorruptError, match=f"^the log is damaged: {type(error).__name__}: "), parsing("the log"):
        raise error
