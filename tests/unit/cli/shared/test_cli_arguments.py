"""The library speaks of its arguments, the command line of its options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.base.wording import argument, flag
from penstock.cli.shared.errors import OPTIONS, with_options

ROOT = Path(penstock.__file__).parent
OWN = {"spark/session/spark_conf.py", "spark/session/gateway.py", "host/posix.py", "system/kafka/errors.py"}
"""These read or make the options of other programs."""
DOCUMENTATION = {"config/reference.py", "config/settings.py"}
OF_A_COMMAND = (
    r"penstock [a-z]|^\{|^ ID`|^--stream $|^ --(?:partition|task|retention|operator|moved`|wait`)"
    r"|spark-submit --|kafka-acls\.sh --|^ --(?:add|operation)\b|^--cluster$|^--resource-pattern-type"
)
"""A whole command, or a piece of one."""


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (argument("with_state", "keep"), "--with-state keep"),
        (argument("operator"), "--operator"),
        (argument("assignments", ["job.root=..."]), "-c job.root=..."),
        (flag("clamp"), "--clamp"),
        ("store `task=...x` and `other=...` and task=True", "store `task=...x` and `other=...` and task=True"),
    ],
)
def test_an_argument_is_shown_as_an_option(said: str, shown: str) -> None:
    assert with_options(f"give {said}, or not") == f"give {shown}, or not"


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every text that is no docstring."""
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.lineno, node.value


def library(pattern: str) -> dict[str, ast.Module]:
    """File -> its syntax tree, of the files that have the pattern."""
    parts = [path.relative_to(ROOT) for path in ROOT.rglob("*.py")]
    files = {
        p.as_posix(): (ROOT / p).read_text()
        for p in parts
        if p.parts[0] not in {"cli", "testing"} and p.as_posix() not in OWN | DOCUMENTATION
    }
    return {path: ast.parse(text) for path, text in files.items() if re.search(pattern, text)}


def test_the_library_names_no_option_outside_a_whole_command() -> None:
    found = [
        f"{path}:{line}: {text}"
        for path, tree in library("--[a-z]").items()
        for line, text in texts(tree)
        if re.search(r"(?<![-\w])--[a-z]", text) and not re.search(OF_A_COMMAND, text)
    ]
    assert found == []


def test_every_argument_that_a_message_names_has_an_option() -> None:
    calls = [
        node.args[0]
        for tree in library(r"\b(argument|flag)\(").values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"argument", "flag"}
    ]
    named = {node.value for node in calls if isinstance(node, ast.Constant)}
    assert named == OPTIONS.keys()
