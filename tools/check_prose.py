"""Checks the first words of docstrings: `python -m tools.check_prose penstock`.

A docstring begins with the thing or with a verb. One that begins with a relative clause hides its noun.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_REFUSED = re.compile(r"\s*(What|Of|Also|Those|That|Which|Whether|How)\b")


def refused(source: str) -> Iterator[tuple[int, str]]:
    """The line and the first line of each docstring and text of a field that begins with a refused word.

    Example:
        >>> list(refused('def f():' + chr(10) + '    "Whether it is."'))
        [(2, 'Whether it is.')]
    """
    for node in ast.walk(ast.parse(source)):
        for each in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            match each:
                case ast.Expr(value=ast.Constant(value=str(text))) if _REFUSED.match(text):
                    yield each.lineno, text.strip().partition("\n")[0]


def main(folders: list[str]) -> int:
    """Print every such text below the folders; the number of them is the status, 0 if there is none."""
    found = [
        f"{path}:{line}: {text}"
        for folder in folders
        for path in sorted(Path(folder).rglob("*.py"))
        for line, text in refused(path.read_text(encoding="utf-8"))
    ]
    print("\n".join([*found, f"{len(found)} texts begin with What, Of, Also, Those, That, Which, Whether or How"]))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
