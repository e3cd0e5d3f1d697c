"""The texts of Penstock's modules, and quick ways through them: `ast.walk` and `tokenize` take seconds for all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from tests.support.tools.places import ROOT

_TOKEN = re.compile(
    r"""(?P<string>[A-Za-z]{0,2}(?:\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}"""
    r"""|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))|(?P<comment>\#[^\n]*)|(?P<name>[^\W\d]\w*)|\d\w*""",
    re.DOTALL,
)


@cache
def sources() -> dict[str, str]:
    """The text of each module, by its path below `penstock`."""
    package = ROOT / "penstock"
    return {file.relative_to(package).as_posix(): file.read_text("utf-8") for file in sorted(package.rglob("*.py"))}


def names_and_comments(source: str) -> Iterator[tuple[str, str]]:
    """The kind, `name` or `comment`, and the text of each name, keyword and comment of a module that Python can read.
    Those within an f-string are a part of it."""
    for found in _TOKEN.finditer(source):
        if found.lastgroup in ("name", "comment"):
            yield found.lastgroup, found[0]


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """The statements within a node, at any depth, without looking at their expressions."""
    found = [tree]
    for node in found:
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, ())
            if isinstance(inner, list):
                found += inner
        if isinstance(node, ast.stmt):
            yield node


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes within a node, as `ast.walk` finds them, in another order."""
    found = [tree]
    while found:
        node = found.pop()
        yield node
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
