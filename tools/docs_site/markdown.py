"""Pages as a forge shows them, rewritten for Python-Markdown, which reads some of them differently."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

_FENCE = re.compile(r" *(```+|~~~+)")
_ITEM = re.compile(r"( *)([-*] |[0-9]+\. )(?=\S)")
_BLOCK = re.compile(r" *(```|~~~|[#|>]|[-*] |[0-9]+\. )")
_LINK = re.compile(r"(`+)(?:.*?)\1(?!`)|(?P<before>\]\()(?P<target>[^)\s]+)(?=\))", re.DOTALL)
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".sh": "bash", ".json": "json"}


def with_lists(text: str) -> str:
    """The page with a blank line before each list, and with what belongs to an item indented by four.

    Example:
        >>> print(with_lists("Two:" + chr(10) + "- a" + chr(10) + "  - b"))
        Two:
        <BLANKLINE>
        - a
            - b
    """
    return "\n".join(_lines_with_lists(text.split("\n")))


def _lines_with_lists(lines: list[str]) -> Iterator[str]:
    depths: list[int] = []
    """The column at which the text of each open item begins, the outermost first."""
    fence, after_blank, in_list = "", True, False
    for line in lines:
        opened = _FENCE.match(line)
        if not fence and line.strip():
            indent = len(line) - len(line.lstrip())
            continues = bool(depths) and not after_blank and not _BLOCK.match(line)
            while depths and indent < depths[-1] and not continues:
                depths.pop()
        removed, added = (depths[-1] if depths else 0), "    " * len(depths)
        item = _ITEM.match(line) if not fence else None
        if item and not depths and len(item[1]) > 3:
            item = None  # code
        if item and not depths and not after_blank and not in_list:
            yield ""
        yield added + line[min(removed, len(line) - len(line.lstrip())) :] if line.strip() else line
        if item:
            depths.append(len(item[0]))
        if opened:
            fence = "" if fence and opened[1].startswith(fence) else fence or opened[1]
        after_blank, in_list = not line.strip() and not fence, bool(depths)


def with_targets(text: str, changed: Callable[[str], str]) -> str:
    """The page with other targets of its links, outside code.

    Example:
        >>> with_targets("See [a](a.py) and `[b](b.py)`.", str.upper)
        'See [a](A.PY) and `[b](b.py)`.'
    """

    def replace(found: re.Match[str]) -> str:
        return found[0] if found["target"] is None else found["before"] + changed(found["target"])

    return _LINK.sub(replace, text)


def page_of_file(name: str, text: str) -> str:
    """A page that shows a file that is not Markdown."""
    suffix = name[name.rfind(".") :] if "." in name else ""
    if suffix == ".ipynb":
        return page_of_notebook(text)
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`{3,}", text))])
    return f"# {name}\n\n{fence}{_LANGUAGES.get(suffix, 'text')}\n{text.rstrip()}\n{fence}\n"


def page_of_notebook(text: str) -> str:
    """The cells of a notebook, without their output.

    Example:
        >>> print(page_of_notebook('{"cells": [{"cell_type": "code", "source": ["1 + 1"]}]}'))
        ```python
        1 + 1
        ```
        <BLANKLINE>
    """
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
    return "\n\n".join(f"```python\n{source}\n```" if kind == "code" else source for kind, source in cells) + "\n"
