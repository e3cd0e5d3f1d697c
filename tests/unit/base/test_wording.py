"""Texts: counts and lists in sentences, documents, and names of hosts as HTTP has them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.base.http_hosts import Authority, is_loopback
from penstock.base.wording import counted, listed
from penstock.cli.main import COMMANDS
from penstock.driver.program import RunView
from tests.support.tools.sources import nodes, sources

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "message", "0 messages"),
        (1, "message", "1 message"),
        (2000, "entry", "2,000 entries"),
        (1, "entry", "1 entry"),
    ],
)
def test_a_count_agrees_with_its_noun(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text


def test_a_list_ends_with_and() -> None:
    assert [listed(list("abc"[:n])) for n in range(4)] == ["", "a", "a and b", "a, b and c"]


def test_a_run_of_one_message() -> None:
    view = RunView("running", done=1, total=1, rate=None, batch=None, checkpoint=None, restored_bytes=0)
    assert str(view) == "running, 1 of 1 message"


AVOIDED = re.compile(
    r"\b(stands? (in|there|twice)|(is|are) told|told apart|anew|whoever|lies? (in|at|above)|at the most|all the same"
    r"|(go|goes|gone|going) on (from|with)|of (its|their) own|in vain|from the ground|none of Penstock's)\b"
    r"|(^|[.:;] )(Also|What|Of)\b"
)
"""Phrases that make a reader read twice. Better: is in, reported, separate, again, continued, at most, nevertheless;
and a sentence that begins with its subject or a verb."""


def messages() -> Iterator[tuple[str, str]]:
    """The texts in the code that are not docstrings: errors, log lines, help, descriptions of keys."""
    for file, text in sources().items():
        found = list(nodes(ast.parse(text)))
        skipped = {id(node.value) for node in found if isinstance(node, ast.Expr)}
        for node in found:
            if isinstance(node, ast.JoinedStr):
                parts = [each.value if isinstance(each, ast.Constant) else "..." for each in node.values]
                skipped |= {id(each) for each in node.values}
                yield f"{file}:{node.lineno}", "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
                yield f"{file}:{node.lineno}", node.value


def paragraphs() -> Iterator[tuple[str, str]]:
    """The prose of the README and of the pages, of packages too: paragraphs, list items and cells, without code."""
    for file in [
        ROOT / "README.md",
        ROOT / "SECURITY.md",
        ROOT / "ARCHITECTURE.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "penstock").rglob("README.md")),
    ]:
        text = re.sub(r"^```.*?^```", "", file.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for block in re.split(r"\n\s*\n|\n\s*(?:[*-]|\d+\.) |\|", text):
            yield str(file.relative_to(ROOT)), " ".join(block.split())


def test_texts_for_people_avoid_phrases_that_make_them_read_twice() -> None:
    texts = [*messages(), *paragraphs()]
    assert len(texts) > 2000
    assert [(where, found[0], text) for where, text in texts if (found := AVOIDED.search(text))] == []


def test_commands_describe_themselves_without_such_phrases(help_texts: list[str]) -> None:
    assert [text for text in help_texts if AVOIDED.search(text)] == []


@pytest.fixture
def help_texts() -> list[str]:
    """The help of every command, which is its docstring."""
    files = sorted((ROOT / "penstock/cli").rglob("*.py"))
    trees = [ast.parse(file.read_text("utf-8")) for file in files]
    functions = [each for tree in trees for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    alone = {entry.function for entry in COMMANDS.values()}
    commands = [
        each for each in functions if each.name in alone or "command(" in "".join(map(ast.unparse, each.decorator_list))
    ]
    return [text for each in commands if (text := ast.get_docstring(each))]


_RACE = """
import sys, threading
from dataclasses import make_dataclass

import msgspec
from penstock.base.documents import convert, decoder

sys.setswitchinterval(1e-6)
inner = {"a": 1, "b": "x", "c": [1], "d": {"q": 1}}
middle = {"x": inner, "y": [inner], "z": None}
document = {"m": middle, "n": [middle], "i": inner}
data = msgspec.msgpack.encode(document)

def read(form, start, odd):
    start.wait()
    convert(form, document) if odd else decoder(form).decode(data)

for _ in range(100):
    Inner = make_dataclass("Inner", [("a", int), ("b", str), ("c", list[int]), ("d", dict[str, int])])
    Middle = make_dataclass("Middle", [("x", Inner), ("y", list[Inner]), ("z", Inner | None)])
    form = make_dataclass("Outer", [("m", Middle), ("n", list[Middle]), ("i", Inner)])
    start = threading.Barrier(4)
    threads = [threading.Thread(target=read, args=(form, start, number % 2)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("read")
"""


def test_threads_decode_a_class_for_the_first_time_at_once() -> None:
    # In a process of its own, because msgspec alone ends the process here.
    done = subprocess.run([sys.executable, "-c", _RACE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "read\n", "")


def test_loopback_addresses() -> None:
    own = ["localhost", "127.0.0.1", "127.255.255.254", "::1"]
    others = ["0.0.0.0", "::", "", "localhost.evil", "[::1]", "10.0.0.1", "jobs.example", "127.0.0.1:80"]
    assert [is_loopback(each) for each in own] == [True] * len(own)
    assert [is_loopback(each) for each in others] == [False] * len(others)


def test_an_authority_is_read_as_it_is_written() -> None:
    assert Authority.parse("Jobs.Example:80") == Authority("jobs.example", 80)
    assert Authority.parse("[2001:DB8::1]") == Authority("2001:db8::1", None)
