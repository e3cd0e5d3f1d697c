"""From `module:object` or `file.py:object` to an application, and which of its modules only this process can import."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import penstock
from penstock.application.application import Application
from penstock.cli.shared.errors import ApplicationLoadError, hidden_package
from penstock.errors import ConfigError, NotFoundError, PenstockError

_FORM = "an application is named `module:object` or `file.py:object`, for example `flights.py:app`"


@dataclass(frozen=True, slots=True)
class LoadedApplication:
    """An application, and the modules it brought from its own folder, which no other process can import."""

    app: Application
    local_modules: tuple[ModuleType, ...]

    def ship_by_value(self) -> None:
        """From now on the local modules' functions and classes are pickled whole, so that Spark's workers and
        containers need neither the files nor the working directory."""
        cloudpickle = importlib.import_module("pyspark.cloudpickle")
        for module in self.local_modules:
            cloudpickle.register_pickle_by_value(module)


def load_application(reference: str) -> LoadedApplication:
    """Import the module and get the application, calling the object if it is a function.

    A file is loaded under a name that depends only on the file's, and its folder comes first on `sys.path`; for
    a module the working directory does.

    Raises:
        NotFoundError: there is no such file.
        ConfigError: no such module or object, or it is no application.
        ApplicationLoadError: the user's code raised.
    """
    source, colon, name = reference.rpartition(":")
    if not (colon and source and name):
        raise ConfigError(f"`{reference}`: {_FORM}")
    if source.endswith(".py"):
        path = Path(source).resolve()
        module, folder = _load_file(path, reference), path.parent
    else:
        module, folder = _load_module(source, reference), Path.cwd()
    app = _application(module, name, reference)
    return LoadedApplication(app, _local_modules(module, folder, always=source.endswith(".py")))


def load_function(reference: str) -> Callable[..., Any]:
    """The function of `module:function` or `file.py:function`, found as an application is.

    Raises:
        NotFoundError: there is no such file.
        ConfigError: no such module or function.
        ApplicationLoadError: the user's code raised.
    """
    source, colon, name = reference.rpartition(":")
    if not (colon and source and name):
        raise ConfigError(f"`{reference}`: a function is named `module:function` or `file.py:function`")
    path = Path(source).resolve()
    target: Any = _load_file(path, reference) if source.endswith(".py") else _load_module(source, reference)
    for part in name.split("."):
        target = getattr(target, part, None)
    if not callable(target):
        raise ConfigError(f"`{reference}`: there is no function `{name}`")
    return cast("Callable[..., Any]", target)


def _load_file(path: Path, reference: str) -> ModuleType:
    if not path.is_file():
        raise NotFoundError(f"there is no file `{path}` (of `{reference}`)")
    name = "penstock_app_" + re.sub(r"\W", "_", path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"`{path}` cannot be loaded as a Python file")
    _put_first(path.parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _users_code(reference):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load_module(name: str, reference: str) -> ModuleType:
    _put_first(Path.cwd())
    try:
        found = importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):  # a parent package is missing; the name is malformed
        found = None
    except Exception as error:  # a parent package raised
        raise _load_error(error, reference) from error
    if found is None:
        raise ConfigError(
            f"there is no module `{name}` (of `{reference}`) in the working directory {Path.cwd()} or among the "
            "installed packages"
        )
    with _users_code(reference):
        return importlib.import_module(name)


def _application(module: ModuleType, name: str, reference: str) -> Application:
    target: Any = module
    for part in name.split("."):
        target = getattr(target, part, None)
    if isinstance(target, Application):
        return target
    if target is None:
        known = ", ".join(f"`{key}`" for key, value in vars(module).items() if isinstance(value, Application))
        raise ConfigError(f"`{reference}`: there is no `{name}`; applications there: {known or 'none'}")
    if not callable(target):
        raise ConfigError(
            f"`{reference}` is a {type(target).__name__}, not an application or a function that returns one"
        )
    return _made(target, reference)


def _made(function: Callable[[], Any], reference: str) -> Application:
    with _users_code(reference):
        made = function()
    if not isinstance(made, Application):
        raise ConfigError(f"`{reference}()` returned a {type(made).__name__}, not an application")
    return made


@contextmanager
def _users_code(reference: str) -> Iterator[None]:
    """Reports errors of the user's code with their traceback; Penstock's own errors need none."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        raise _load_error(error, reference) from error


def _load_error(error: Exception, reference: str) -> ApplicationLoadError:
    frames = traceback.TracebackException.from_exception(error)
    users = [frame for frame in frames.stack if not _is_machinery(frame.filename)]
    frames.stack = traceback.StackSummary.from_list(users)
    hint = f". {hint}" if (hint := hidden_package(error)) else ""
    return ApplicationLoadError(
        f"`{reference}` could not be loaded: {type(error).__name__}: {error}. Nothing was started{hint}",
        "".join(frames.format()),
    )


def _is_machinery(filename: str) -> bool:
    return filename == __file__ or filename.startswith("<frozen importlib") or filename == importlib.__file__


def _put_first(folder: Path) -> None:
    text = str(folder)
    if text in sys.path:
        sys.path.remove(text)
    sys.path.insert(0, text)


def _local_modules(main: ModuleType, folder: Path, *, always: bool) -> tuple[ModuleType, ...]:
    """Modules from the folder. Installed ones, and Penstock itself, can be imported everywhere."""
    local = [module for module in list(sys.modules.values()) if _is_local(module, folder)]
    if always and main not in local:
        local.append(main)
    return tuple(local)


def _is_local(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or module.__name__ == "__main__":
        return False
    path = _resolved(file)
    if not path.is_relative_to(folder) or {"site-packages", "dist-packages"} & set(path.parts):
        return False
    installed = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(penstock.__file__).parent))
    return not any(path.is_relative_to(_resolved(place)) for place in installed)


@cache  # a program has thousands of modules
def _resolved(path: str) -> Path:
    return Path(path).resolve()
