"""The commands that pages show: in blocks `sh`, `bash` and `console`, in those without a language that begin with a
command, and `make` and `python -m` within the text."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_WITHOUT_LANGUAGE = re.compile(r"(\$ |penstock |\S*/penstock |make |python )")
_IN_TEXT = re.compile(r"`((?:make|python -m) [^`<]+)`")
_USAGE = re.compile(r"^penstock( [a-z-]+)+( \[?[A-Z]| --[a-z]+ [A-Z]+$)")
_APART = re.compile(r"\s(?:\|+|&&|;)\s")


def shown(page: str) -> list[str]:
    """Each simple command of a page, without comments, in one line unless a quoted text has more."""
    found = [" ".join(each.split()) for each in _IN_TEXT.findall(_BLOCK.sub("", page))]
    for indent, language, text in _BLOCK.findall(page):
        block = "\n".join(line.removeprefix(indent) for line in text.splitlines())
        if language in {"sh", "bash", "console"} or (not language and _WITHOUT_LANGUAGE.match(block)):
            found += [each.strip() for line in _commands(block) for each in _parts(line)]
    return [re.sub(r"^\S*/(?=penstock )", "", each) for each in found if each and not _USAGE.match(each)]


def _commands(block: str) -> Iterator[str]:
    """The command lines of a block. Of one with prompts, what follows the prompts: the rest is output."""
    prompts = re.search(r"^\$ ", block, re.MULTILINE) is not None
    lines = iter(re.sub(r"\n +\[", " [", block).splitlines())
    for line in lines:
        if prompts and not line.startswith("$ "):
            continue
        text = line.removeprefix("$ ")
        while text.endswith("\\") or _is_open(text):
            more = next(lines)
            text = f"{text[:-1].rstrip()} {more.lstrip()}" if text.endswith("\\") else f"{text}\n{more}"
        yield re.sub(r"(?:^|\s+)#.*$", "", text, flags=re.MULTILINE)


def _parts(line: str) -> list[str]:
    """The commands of a pipe or a sequence. Quoted text stays whole, and so does what runs in a shell of its own."""
    if line.startswith("("):
        return [line]
    quoted = re.findall(r"'[^']*'|\"[^\"]*\"", line)
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "\0", line)
    words = iter(quoted)
    return [re.sub("\0", lambda _: next(words), part) for part in _APART.split(bare)]


def _is_open(text: str) -> bool:
    """True within quotes."""
    bare = re.sub(r"\"(?:\\.|[^\"\\])*\"|'[^']*'", "", re.sub(r"(?:^|\s)#.*", "", text))
    return "'" in bare or '"' in bare
