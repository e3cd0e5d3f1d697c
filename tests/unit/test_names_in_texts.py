"""Docstrings, comments and pages for those who change the package name modules, files and members that exist."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from penstock.config.settings import KEYS
from tests.support.tools.places import ROOT

PACKAGE = ROOT / "penstock"
FILES = {file.relative_to(PACKAGE).as_posix(): file.read_text("utf-8") for file in PACKAGE.rglob("*.py")}
MODULES = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): text for name, text in FILES.items()}
WORDS = {name: set(re.findall(r"\w+", text)) for name, text in MODULES.items()}
DOTTED = re.compile(r"(?<![\w./<-])(penstock\.)?([a-z_]+(?:\.\w+)+)(?![\w(<=*-]|\.\w)")
MEMBER = re.compile(r"`(_?[A-Z]\w*[a-z]\w*)\.(\w+)")
PATH = re.compile(r"`((?:[a-z_]+/)+[a-z_]+(?:\.py)?)`")
KEYS_TEXT = " ".join(key.name for key in KEYS)
NAMES = {
    token.string
    for source in FILES.values()
    for token in tokenize.generate_tokens(io.StringIO(source).readline)
    if token.type == tokenize.NAME
}
"""All names in code."""
OTHERS = {"spark", "system"}
"""Keys of Spark begin so, and the names of streams in texts."""
MISTAKEN = {"job.commit.interval.ms"}
"""Keys that do not exist, of which a text says so."""
OF_KAFKA = {"heartbeat", "partitions", "progress", "signature", "tasks", "timestamp"}
"""Headers, properties and loggers that are named `penstock.<word>`."""

OF_OTHERS = {"DataFrame.toArrow", "JavaPairRDD.values", "Utils.toPositive"}
"""Members of classes of Spark and Kafka."""


def _texts() -> Iterator[tuple[str, str]]:
    for page in ("ARCHITECTURE.md", "penstock/README.md"):
        yield page, (ROOT / page).read_text("utf-8")
    for file, source in FILES.items():
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield file, token.string
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                yield file, re.sub(r"(>>>|\.\.\.) .*", "", str(node.value.value))


TEXTS = list(_texts())


def is_there(name: str) -> bool:
    """True if it is a module, or a word of one."""
    module, _, word = name.rpartition(".")
    above, _, kind = module.rpartition(".")
    return name in MODULES or word in WORDS.get(module, ()) or {word, kind} <= WORDS.get(above, set())


def means_the_package(name: str) -> bool:
    first = name.partition(".")[0]
    is_key = name in KEYS_TEXT or name in MISTAKEN or first in OTHERS
    return first in MODULES and not is_key and not name.endswith(".py")


def test_names_with_dots() -> None:
    wrong = {
        f"{file}: {found[0]}"
        for file, text in TEXTS
        for found in DOTTED.finditer(text)
        if (found[2] not in OF_KAFKA if found[1] else means_the_package(found[2])) and not is_there(found[2])
    }
    assert wrong == set()


def test_members_of_classes() -> None:
    wrong = {
        f"{file}: {kind}.{member}"
        for file, text in TEXTS
        for kind, member in MEMBER.findall(text)
        if not {kind, member} <= NAMES and f"{kind}.{member}" not in OF_OTHERS
    }
    assert wrong == set()


def test_paths() -> None:
    named = {(file, path) for file, text in TEXTS for path in PATH.findall(text) if path.partition("/")[0] in MODULES}
    wrong = {
        f"{file}: {path}" for file, path in named if not any((PACKAGE / f"{path}{end}").exists() for end in ("", ".py"))
    }
    assert wrong == set()


def test_paths_of_the_readme_of_the_kernel() -> None:
    text = (PACKAGE / "README.md").read_text("utf-8")
    paths = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py|(?:[a-z_]+/)+[a-z_]+)`", text)
    assert len(paths) > 20
    assert [each for each in paths if not (PACKAGE / each).exists() and not (ROOT / each).exists()] == []
