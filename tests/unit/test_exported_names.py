"""What `import penstock` offers is what `__all__` says, and all of it is documented."""

from __future__ import annotations

import builtins
import inspect
import re
import subprocess
import sys
from types import ModuleType

import pytest

import penstock
import penstock.admin
import penstock.errors
import penstock.testing

SUBMODULES = {
    "admin", "api", "checkpoint", "cli", "clock", "config", "container", "documents", "drain", "driver", "engine",
    "errors", "files", "metadata", "metrics", "os_errors", "plan", "retry", "runtime", "side", "spark", "startpoint",
    "state", "system", "tables", "testing", "wording",
}  # fmt: skip


@pytest.mark.parametrize("module", [penstock, penstock.admin, penstock.testing])
def test_all_is_the_whole_surface(module: ModuleType) -> None:
    assert all(getattr(module, name) for name in module.__all__)  # those of `penstock` are loaded when they are used
    public = {
        name for name, thing in vars(module).items() if not name.startswith("_") and not isinstance(thing, ModuleType)
    }
    assert public - {"annotations"} == set(module.__all__)
    assert list(module.__all__) == sorted(module.__all__)


def test_no_other_modules_show() -> None:
    modules = {name for name, thing in vars(penstock).items() if isinstance(thing, ModuleType)}
    assert modules <= SUBMODULES


@pytest.mark.parametrize("name", penstock.__all__)
def test_everything_public_is_documented(name: str) -> None:
    thing = getattr(penstock, name)
    assert inspect.getdoc(thing)
    for member, value in vars(thing).items():
        inherited = any(getattr(base, member, None) for base in thing.__mro__[1:])
        if not member.startswith("_") and callable(value) and not inherited:
            assert inspect.getdoc(value), f"{name}.{member}"


@pytest.mark.parametrize("name", penstock.admin.__all__)
def test_everything_of_admin_is_documented(name: str) -> None:
    thing = getattr(penstock.admin, name)
    text = inspect.getdoc(thing) or ""
    assert text
    if inspect.isfunction(thing) and len(inspect.signature(thing).parameters) > 1:
        assert "Args:" in text


def test_every_error_is_exported_and_of_one_tree() -> None:
    errors = {
        name for name, thing in vars(penstock.errors).items() if inspect.isclass(thing) and issubclass(thing, Exception)
    }
    assert errors <= set(penstock.__all__)
    assert all(issubclass(getattr(penstock, name), penstock.PenstockError) for name in errors)
    assert all(name in (penstock.errors.__doc__ or "") for name in errors)


def test_every_error_that_the_documentation_of_an_exported_name_has_is_exported() -> None:
    modules = (penstock, penstock.admin, penstock.testing)
    known = {*dir(builtins), *(name for module in modules for name in module.__all__)}
    for module in modules:
        for name in module.__all__:
            thing = getattr(module, name)
            texts = [inspect.getdoc(each) or "" for each in (thing, *vars(thing).values())]
            for error in {word for text in texts for word in re.findall(r"\b[A-Z]\w+Error\b", text)}:
                assert error in known, f"{error} of {name}"


def test_the_import_needs_neither_spark_nor_flight() -> None:
    heavy = ("pyspark", "py4j", "pyarrow.flight", "rocksdict")
    code = f"import sys, penstock; penstock.StreamTask; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'StreamTsak'"):
        penstock.StreamTsak  # type: ignore[attr-defined]  # noqa: B018


def test_the_import_loads_no_name_before_it_is_used() -> None:
    code = "import sys, penstock; print('penstock.api.application' in sys.modules, 'StreamTask' in dir(penstock))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False True"
