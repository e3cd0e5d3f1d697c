"""`__all__` is the whole of `import penstock`, and all of it is documented."""

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
import penstock.spark
import penstock.testing
from tests.support.tools.places import ROOT

SUBMODULES = {
    "admin", "api", "application", "arrays", "base", "batch", "checkpoint", "cli", "columns", "config", "container",
    "dashboard", "deploy", "direct", "drain", "driver", "errors", "facts", "graph", "host", "job", "metrics", "objects",
    "outbox", "repartition", "replay", "runtime", "schemas", "shadow", "side", "spark", "standby", "start", "state",
    "system", "tables", "testing", "wing", "wire",
}  # fmt: skip


def all_of(module: ModuleType) -> list[str]:
    """Its `__all__`, which is made at run time."""
    names: list[str] = module.__all__
    return names


@pytest.mark.parametrize("module", [penstock, penstock.admin, penstock.spark, penstock.testing])
def test_all_is_the_whole_surface(module: ModuleType) -> None:
    assert all(getattr(module, name) for name in all_of(module))  # those of `penstock` are loaded when they are used
    found = {
        name for name, thing in vars(module).items() if not name.startswith("_") and not isinstance(thing, ModuleType)
    }
    assert found - {"annotations"} == set(all_of(module))
    assert list(all_of(module)) == sorted(all_of(module))


def test_what_the_documentation_names_is_there() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    named = {name for page in pages for name in re.findall(r"\bps\.([A-Z]\w+)", page.read_text("utf-8"))}
    assert named <= set(all_of(penstock))


def test_the_api_has_only_modules_that_users_import() -> None:
    texts = [path.read_text("utf-8") for path in ((ROOT / "penstock" / "__init__.py"), *(ROOT / "docs").rglob("*.md"))]
    imported = {name for text in texts for name in re.findall(r"from (penstock\.api\.[\w.]+) import", text)}
    files = [file for file in (ROOT / "penstock" / "api").rglob("*.py") if file.name != "__init__.py"]
    modules = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files}
    defining = {getattr(penstock, name).__module__ for name in all_of(penstock)}
    assert modules - imported - defining == set()


def test_what_public_methods_return_is_public() -> None:
    """An application annotates its fields with it."""
    missing = set()
    for name in all_of(penstock):
        thing = getattr(penstock, name)
        methods = [each for key, each in vars(thing).items() if inspect.isfunction(each) and not key.startswith("_")]
        for text in {str(method.__annotations__.get("return")) for method in methods}:
            for word in re.findall(r"\w+", text):
                found = vars(sys.modules[thing.__module__]).get(word)
                if (
                    inspect.isclass(found)
                    and found.__module__.startswith(("penstock.api.", "penstock.application.", "penstock.graph."))
                    and word not in dir(penstock)
                ):
                    missing.add(word)
    assert missing == {"ApplicationGraph"}, "the plan of an application is for Penstock alone"


def test_no_other_modules_show() -> None:
    modules = {name for name, thing in vars(penstock).items() if isinstance(thing, ModuleType)}
    assert modules <= SUBMODULES


def test_everything_public_is_documented() -> None:
    without = []
    for name in all_of(penstock):
        thing = getattr(penstock, name)
        members = {
            member: value
            for member, value in vars(thing).items()
            if not member.startswith("_")
            and callable(value)
            and not any(getattr(base, member, None) for base in thing.__mro__[1:])
        }
        documented = {name: thing} | {f"{name}.{member}": value for member, value in members.items()}
        without += [each for each, value in documented.items() if not inspect.getdoc(value)]
    assert without == []


def test_everything_of_admin_is_documented() -> None:
    wrong = []
    for name in all_of(penstock.admin):
        thing = getattr(penstock.admin, name)
        text = inspect.getdoc(thing) or ""
        if not text or (
            inspect.isfunction(thing) and len(inspect.signature(thing).parameters) > 1 and "Args:" not in text
        ):
            wrong.append(name)
    assert wrong == []


def test_every_error_is_exported_and_of_one_tree() -> None:
    errors = {
        name for name, thing in vars(penstock.errors).items() if inspect.isclass(thing) and issubclass(thing, Exception)
    }
    assert errors <= set(all_of(penstock))
    assert all(issubclass(getattr(penstock, name), penstock.PenstockError) for name in errors)
    assert all(name in (penstock.errors.__doc__ or "") for name in errors)


def test_every_error_that_the_documentation_of_an_exported_name_has_is_exported() -> None:
    modules = (penstock, penstock.admin, penstock.testing)
    known = {*dir(builtins), *(name for module in modules for name in all_of(module))}
    for module in modules:
        for name in all_of(module):
            thing = getattr(module, name)
            texts = [inspect.getdoc(each) or "" for each in (thing, *vars(thing).values())]
            for error in {word for text in texts for word in re.findall(r"\b[A-Z]\w+Error\b", text)}:
                assert error in known, f"{error} of {name}"


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'StreamTsak'"):
        penstock.StreamTsak  # type: ignore[attr-defined]  # noqa: B018


def test_the_import_of_the_package_loads_what_finds_its_names_alone() -> None:
    code = """
import sys, penstock
print(sorted(name for name in sys.modules if name.startswith("penstock")), "importlib.metadata" in sys.modules)
"""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}){code}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "['penstock', 'penstock.base'] False"


def test_the_import_loads_no_name_before_it_is_used_and_needs_neither_spark_nor_flight() -> None:
    code = """
import sys, penstock, penstock.testing
print([name for name in ("penstock.application.application", "penstock.testing.runner") if name in sys.modules])
print("StreamTask" in dir(penstock), "TestRunner" in dir(penstock.testing))
penstock.StreamTask
print([name for name in ("pyspark", "py4j", "pyarrow.flight", "rocksdict") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["[]", "True True", "[]"]
