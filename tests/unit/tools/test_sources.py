"""The quick ways through the texts of modules find what Python's own ways find."""

from __future__ import annotations

import ast
import io
import tokenize

import pytest

from tests.support.tools.sources import names_and_comments, nodes, sources, statements

FILES = sorted(sources())[::40]
HARD = r'''
a = b'#' + rb"\"# no" + f"{b'c'!r} # no" # yes
def é(*, x: "# no" = 1_0e5j, y=0xff if 0 else 7): # "yes
    """# no
    \""" # no"""
    return [x for x in '\
# no'] # '''


def by_python(source: str) -> list[tuple[str, str]]:
    kinds = {tokenize.NAME: "name", tokenize.COMMENT: "comment"}
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    return [(kinds[token.type], token.string) for token in found if token.type in kinds]


@pytest.mark.parametrize("source", [*(sources()[file] for file in FILES), HARD])
def test_names_comments_and_nodes_are_those_of_python(source: str) -> None:
    assert [*names_and_comments(source)] == by_python(source)
    tree = ast.parse(source)
    walked = [*ast.walk(tree)]
    assert {*map(id, nodes(tree))} == {*map(id, walked)}
    assert {*map(id, statements(tree))} == {id(node) for node in walked if isinstance(node, ast.stmt)}
