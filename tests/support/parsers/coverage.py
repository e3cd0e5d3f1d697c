"""The functions of Penstock that make values of bytes, and those that ran: the table of parsers is to run them all."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Final, TypeAlias

from tests.support.tools.places import ROOT

Place: TypeAlias = tuple[str, int]
"""A file, and the first line of a function in it."""
_PENSTOCK = ROOT / "penstock"
_PARSES = re.compile(
    r"(orjson|json|pickle)\.loads|msgspec\.(json|msgpack)\.decode|(\w+\.)?decode_format"
    r"|(struct|_struct|_?[A-Z_]*[A-Z])\.unpack(_from)?|_unpack|_decode"
    r"|pa\.ipc\.(read|open)_\w+|pa\.parquet\.ParquetFile|DeltaTable|zipfile\.ZipFile|(base64\.)?b64decode|\w+\.fromisoformat"
)
_READS_A_FORM = re.compile(r"(documents\.)?decode")
_LEAST_ARGUMENTS = 3
"""Of `documents.decode`: the form, the data, and their name."""

EXEMPT: Final[Mapping[str, str]] = {}
"""Functions of the package that parse, and why the table does not have them."""


def parsing_functions() -> Mapping[Place, str]:
    """The functions that call what makes values of bytes, by the place where each begins."""
    found: dict[Place, str] = {}
    for file in sorted(_PENSTOCK.rglob("*.py")):
        module = file.relative_to(_PENSTOCK)
        if module.parts[0] != "testing":
            for name, function in _functions(ast.parse(file.read_text("utf-8")), ""):
                if any(_is_parser(call) for call in _calls(function)):
                    line = min(each.lineno for each in (function, *function.decorator_list))
                    found[str(file), line] = f"{module.as_posix()} {name}"
    return found


def run_while(call: Callable[[], object]) -> set[Place]:
    """The places of the functions that run meanwhile, in this thread."""
    found: set[Place] = set()

    def enter(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(node: ast.AST, within: str) -> Iterator[tuple[str, _Function]]:
    for child in ast.iter_child_nodes(node):
        name = within
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{within}.{child.name}".lstrip(".")
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, child
        yield from _functions(child, name)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """The calls of a function, those of functions within it excluded."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _calls(child)


def _is_parser(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if _READS_A_FORM.fullmatch(name):
        return len(call.args) >= _LEAST_ARGUMENTS
    return _PARSES.fullmatch(name) is not None
