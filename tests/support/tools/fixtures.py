"""Fixtures that make something and close it in the end."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing
from typing import Any, Literal

import pytest


def fixture_of(
    make: Callable[..., Any],
    *given: Any,
    using: tuple[str, ...] = ("tmp_path",),
    params: Iterable[Any] | None = None,
    scope: Literal["function", "module"] = "function",
) -> Any:
    """A fixture: `make` of the fixtures named in `using`, of one of `params` if there are any, and of `given`. A lambda
    names the fixtures as its arguments. What is made is entered if it is a context manager, and closed in any case."""
    if make.__name__ == "<lambda>":
        using = tuple(name for name in inspect.signature(make).parameters if name != "param")

    @pytest.fixture(params=params, scope=scope)
    def made(request: pytest.FixtureRequest, **fixtures: Any) -> Iterator[Any]:
        one = make(*(fixtures[name] for name in using), *([] if params is None else [request.param]), *given)
        with one if isinstance(one, AbstractContextManager) else closing(one) as entered:
            yield entered

    arguments = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("request", *using)]
    setattr(inspect.unwrap(made), "__signature__", inspect.Signature(arguments))  # noqa: B010
    return made
