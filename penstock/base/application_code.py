"""The application's functions: they do their work when they are called, and their code is where they run.

A generator function or an `async def` does none of it: the call makes an object, which nothing runs. Such a function is
refused when the application is built. Where a call has to return None, an object that it returns is refused too: a
decorator or a plain function may hide what it is. A wrapper's `__wrapped__` is no evidence, because a wrapper may well
run the coroutine that it wraps.
"""

from __future__ import annotations

import functools
import inspect
import pickle
import socket
from collections.abc import Callable, Iterable, Iterator
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType
from typing import Any, NamedTuple

from penstock.errors import ConfigError

UNSTARTED = frozenset({GeneratorType, CoroutineType, AsyncGeneratorType})
"""The types of objects whose code has not run yet."""

_Cached = type(functools.cache(int))
_TASK_METHODS = ("init", "process", "window", "on_timer", "on_end", "on_drain", "close")


class Callback(NamedTuple):
    """A function that the application gave."""

    what: str
    """The function in words, as "the function" or "`process` of Utilisation"."""
    function: object
    may_yield: bool = False
    """The caller reads the result of a call to its end, so that a generator will do."""
    waits: bool = False
    """The caller awaits the result: the function is `async def`."""
    needed: bool = False
    """It has to be callable. Other callbacks may be None, or an object with methods."""

    def check(self, where: str) -> None:
        """Raise ConfigError, which begins with `where`, if a call would run none of the function's code."""
        if self.needed and not callable(self.function):
            raise ConfigError(f"{where}: {self.what} is {self.function!r}, which cannot be called")
        code = _code(self.function)
        is_async = inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(code)
        if self.waits:
            if is_async:
                return
            problem = "is not `async def`: map_async awaits it. For an ordinary function there is map"
        elif is_async:
            problem = (
                "is `async def`: a call makes a coroutine, which nothing awaits. Write an ordinary function; it can "
                "run a coroutine with asyncio.run(...)"
            )
        elif inspect.isasyncgenfunction(code):
            problem = "is an `async def` with `yield`: nothing reads what it yields. Write an ordinary function"
        elif inspect.isgeneratorfunction(code) and not self.may_yield:
            problem = (
                "has `yield`: a call makes a generator, which nothing runs. Write an ordinary function; a task passes "
                "messages on with collector.emit(...) or collector.send(...), and flat_map takes a generator"
            )
        else:
            return
        raise ConfigError(f"{where}: {self.what} {problem}")


def check_all(callbacks: Iterable[Callback], where: str) -> None:
    """Raise ConfigError, as `Callback.check`, for the first one that is refused."""
    for each in callbacks:
        each.check(where)


def methods(owner: object, names: Iterable[str], *, yielding: Iterable[str] = ()) -> Iterator[Callback]:
    """The methods of these names that an object or a class has. Methods in `yielding` may be generators."""
    kind = owner if isinstance(owner, type) else type(owner)
    for names_of, may_yield in ((names, False), (yielding, True)):
        for name in names_of:
            method = getattr(owner, name, None)
            if method is not None:
                yield Callback(f"`{name}` of {kind.__name__}", method, may_yield)


def maker(task: Callable[[], Any]) -> Iterator[Callback]:
    """The callable that makes tasks, and the methods of tasks if it is their class."""
    yield Callback("the function that makes the task", task)
    found = _code(task)
    if isinstance(found, type):
        yield from task_methods(found)


def task_methods(task: object) -> Iterator[Callback]:
    return methods(task, _TASK_METHODS)


def unused(what: str, result: Any) -> TypeError:
    """The error for a result of a function that has to return None."""
    kind = type(result)
    if kind in (GeneratorType, CoroutineType):
        result.close()  # otherwise Python warns of a coroutine that nothing awaited
    if kind in UNSTARTED:
        name = {GeneratorType: "a generator", CoroutineType: "a coroutine"}.get(kind, "an asynchronous generator")
        return TypeError(f"{what} returned {name}, which nothing runs: do the work before it returns")
    return TypeError(
        f"{what} returned an object of type `{kind.__name__}`, which nothing uses: pass messages on with "
        "collector.emit(...) or collector.send(...), and return None"
    )


def not_started(what: str, result: object) -> None:
    """Raise TypeError if the result of a function has not run yet."""
    if type(result) in UNSTARTED:
        raise unused(what, result)


def _code(function: object) -> object:
    """The function that a call runs in the end, or the class of the object that it makes."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif isinstance(function, _Cached):  # it returns what the function does
            function = function.__wrapped__
        elif isinstance(function, FunctionType | type):
            return function
        else:
            call = inspect.getattr_static(type(function), "__call__", None)
            if not isinstance(call, FunctionType):
                return function
            function = call


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
