"""The functions of Penstock that make values of bytes, and those that ran: the table of parsers is to run them all.

As a program, it prints those that no parser of the table runs over its valid bytes, each on a line.
"""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Final, TypeAlias

from tests.support.tools.places import ROOT
from tests.support.tools.quick_imports import without_grammars

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
"""The arguments of `documents.decode`: the form, the data, and their name."""

_PICKLED = "pickled by the driver of this run; only callers with its token are heard"
_TYPED = "typed by the user who called"
_OWN = "a value of this process, or what it wrote itself to a program that it started"
_OF_SPARK = "from Spark, in the process that asked for it"
_OF_THE_APPLICATION = "a definition of the application, or of a registry, which is tested with hostile ones"
_REAL_STATE = (
    "read of real state of Spark by tests/compat alone: damaged rows with maps, and rows in lists, have no seed"
)
EXEMPT: Final[Mapping[str, str]] = {
    "admin/state/serdes.py _key_of": _TYPED,
    "admin/state/serdes.py _plain": _OWN,
    "admin/stream/publish.py _parse_time": _TYPED,
    "arrays/json_rows.py json_form": _OWN,
    "base/application_code.py read_shipped": _PICKLED,
    "checkpoint/sections.py Section.write": _OWN,
    "cli/startpoint.py time_of": _TYPED,
    "container/__main__.py main": _OWN,
    "container/launch.py _await_address": _OWN,
    "schemas/avro.py _as_json": _OF_THE_APPLICATION,
    "schemas/avro_resolved.py _nearest_float": _OWN,
    "schemas/client.py _why_incompatible": _OF_THE_APPLICATION,
    "schemas/json_schema.py _parsed": _OF_THE_APPLICATION,
    "spark/containers/executor_python.py starting.start": _PICKLED,
    "spark/processor/columns.py ColumnsTask.init": _PICKLED,
    "spark/processor/task.py _Run.__init__": _PICKLED,
    "spark/queries.py with_state": _OF_SPARK,
    "spark/query/rows.py QuerySource.__call__": _OF_SPARK,
    "spark/state_frames.py _key_codec": _OWN,
    "spark/state_frames.py _row_codec": _OWN,
    "spark/state_from_spark.py back_up": _OWN,
    "spark/stored_state.py _Fill.__call__": _PICKLED,
    "spark/stored_state.py _Split.__call__": _PICKLED,
    "spark/stored_state.py move_on_spark": _OWN,
    "spark/state_import/files.py _family": _REAL_STATE,
    "spark/state_import/rows.py _length": _REAL_STATE,
    "spark/state_import/rows.py _map_reader.read": _REAL_STATE,
    "spark/workers/early_worker.py connect": _OWN,
    "spark/workers/worker_daemon.py _prefer_installed_pyspark": _OWN,
    "system/lake/delta.py DeltaLake.open": "the same table as that of its log, opened to be written",
    "system/rows/messages.py _json": "of cells and names of folders: what is no JSON stays text",
    "system/rows/schema.py row_form_of": _OWN,
}
"""Functions of the package that parse, and why the table does not have them."""


def parsing_functions() -> Mapping[Place, str]:
    """The functions that call what makes values of bytes, by the place where each begins."""
    found: dict[Place, str] = {}
    for file in sorted(_PENSTOCK.rglob("*.py")):
        module = file.relative_to(_PENSTOCK)
        text = file.read_text("utf-8")
        if module.parts[0] != "testing" and (_PARSES.search(text) or "decode(" in text):
            for name, function in _functions(ast.parse(text), ""):
                if any(_is_parser(call) for call in _calls(function)):
                    line = min(each.lineno for each in (function, *function.decorator_list))
                    found[str(file), line] = f"{module.as_posix()} {name}"
    return found


def run_while(call: Callable[[], object]) -> set[Place]:
    """The places of the functions that run meanwhile, in this thread and in those that it starts."""
    found: set[Place] = set()

    def enter(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    before = sys.getprofile()
    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return found


_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(node: ast.AST, within: str) -> Iterator[tuple[str, _Function]]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            continue
        name = within
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{within}.{child.name}".lstrip(".")
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, child
        yield from _functions(child, name)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """The calls of a function, those of functions within it excluded."""
    within = [node]
    while within:
        for child in ast.iter_child_nodes(within.pop()):
            if isinstance(child, ast.Call):
                yield child
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
                within.append(child)


def _is_parser(call: ast.Call) -> bool:
    name = _dotted(call.func)
    if _READS_A_FORM.fullmatch(name):
        return len(call.args) >= _LEAST_ARGUMENTS
    return _PARSES.fullmatch(name) is not None


def _dotted(node: ast.expr) -> str:
    """The name of a function or a method as it is called; empty for what is called otherwise."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def main() -> None:
    without_grammars()
    from tests.support.parsers.table import PARSERS

    def read() -> None:
        for parser in PARSERS.values():
            for data in parser.seeds:
                parser.judge(data)

    found = parsing_functions()
    print("\n".join(sorted(found[place] for place in found.keys() - run_while(read))))


if __name__ == "__main__":
    main()
