"""Public names have docstrings with their arguments and with an example, which pytest runs (`--doctest-modules`)."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any

from tests.support.tools.sources import sources, statements

MODULES = (
    "penstock",
    "penstock.admin",
    "penstock.api.retention",
    "penstock.config.load",
    "penstock.objects.store",
    "penstock.start.startpoint_manager",
    "penstock.state.backends.base",
    "penstock.testing",
    "penstock.testing.faulty_store",
    "penstock.testing.faulty_store",
)
"""The modules that applications, programs and components of a user's own import. Those of a system are in
tests/unit/system/test_system_surface.py."""

WITHOUT_EXAMPLE = {
    # Their module's example shows how errors are caught; they have nothing of their own.
    "ConfigError", "ContainerLostError", "CorruptError", "FencedError", "IncompatibleError", "LeaseHeldError",
    "MalformedRecordError", "NotFoundError", "PenstockError", "PenstockTimeoutError", "RetryableError", "SerdeError",
    "StaleValueError", "SystemAwayError", "SystemRefusedError", "UserCodeError",
    # They need the checkpoint of a Spark query: docs/admin.md and the tests of the import have one.
    "import_spark", "plan_spark_import",
    # They need the application of a job: docs/admin.md has one.
    "plan_repartition", "repartition",
    # The example of `open_state` reads one.
    "OpenStore",
    # The implementations of a backend are more than an example: docs/state-backends.md, and the contract suite.
    "StateBackendAdmin", "StoreCopy", "TaskBackupManager", "TaskRestoreManager",
    # A table of names.
    "Fault",
}  # fmt: skip
"""Apart from these, only values (dataclasses) have none: the functions that return them show them."""

MADE_BY_PENSTOCK = {
    "Job", "LeaseHeldError", "ListState", "MapState", "MessageStream", "SideInputsProcessor", "UserCodeError",
    "Checkpoint", "ValueState", "WatermarkPolicy", "BatchCollector", "BatchProcessorContext",
}  # fmt: skip
"""Classes whose constructors no one else calls, and protocols."""


def public_names(module: ModuleType) -> list[str]:
    """`__all__`; in a module without it, the classes and functions that it defines."""
    own = [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
    ]
    names: list[str] = getattr(module, "__all__", own)
    return [name for name in names if inspect.isclass(thing := getattr(module, name)) or inspect.isfunction(thing)]


def surface() -> dict[str, Any]:
    """Module and name -> the class or function."""
    modules = map(importlib.import_module, MODULES)
    return {f"{module.__name__}.{name}": getattr(module, name) for module in modules for name in public_names(module)}


def described_arguments(text: str) -> list[str] | None:
    """The names under `Args:`; None without that heading."""
    _, heading, rest = f"\n{text}\n".partition("\nArgs:\n")
    if not heading:
        return None
    section = re.split(r"\n(?=\S)", rest)[0]
    found = re.findall(r"^ {4}(\w[\w, ]*):", section, re.MULTILINE)
    return [name.strip() for names in found for name in names.split(",")]


def functions(thing: Any) -> Iterator[tuple[str, Any, str]]:
    """The function, or the public methods and the constructor of a class; each with its docstring."""
    if inspect.isfunction(thing):
        yield thing.__name__, thing, inspect.getdoc(thing) or ""
        return
    is_value = hasattr(thing, "__dataclass_fields__")
    for name, member in vars(thing).items():
        function = getattr(member, "__func__", member)
        if not inspect.isfunction(function) or (name.startswith("_") and name != "__init__"):
            continue
        if name == "__init__" and (is_value or thing.__name__ in MADE_BY_PENSTOCK):
            continue
        yield f"{thing.__name__}.{name}", function, inspect.getdoc(getattr(thing, name)) or ""


def test_each_has_a_docstring_with_an_example() -> None:
    without = [
        name
        for name, thing in surface().items()
        if not (text := inspect.getdoc(thing) or "")
        or not (">>>" in text or hasattr(thing, "__dataclass_fields__") or thing.__name__ in WITHOUT_EXAMPLE)
    ]
    assert without == []


def test_args_names_every_parameter() -> None:
    wrong = []
    for module_and_name, thing in surface().items():
        for name, function, text in functions(thing):
            parameters = [each for each in inspect.signature(function).parameters if each not in {"self", "cls"}]
            if not text or (parameters and sorted(described_arguments(text) or []) != sorted(parameters)):
                wrong.append(f"{name} of {module_and_name}")
    assert wrong == []


def test_the_exceptions_are_public_and_needed() -> None:
    things = {thing.__name__: thing for thing in surface().values()}
    assert set(things) >= WITHOUT_EXAMPLE | MADE_BY_PENSTOCK
    assert not [name for name in WITHOUT_EXAMPLE if ">>>" in (inspect.getdoc(things[name]) or "")]


def test_no_text_is_behind_another_text() -> None:
    """The second one would be of no field, or of the wrong one."""

    def is_text(node: ast.stmt) -> bool:
        return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)

    found = [
        f"{file}:{second.lineno}"
        for file, text in sources().items()
        if re.search(r"""["']\s*(#.*)?\n(\s*(#.*)?\n)*\s*r?["']""", text)
        for tree in (ast.parse(text),)
        for node in (tree, *statements(tree))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        for first, second in pairwise(node.body)
        if is_text(first) and is_text(second)
    ]
    assert found == []
