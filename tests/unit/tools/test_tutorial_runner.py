"""The runner of tutorials finds what a reader would stumble over."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tools.tutorials import run_page

PAGE = """
# A page

Save this as `a.py`:

```python
import sys

print(sys.argv[1])
```

It prints:

```console
$ python a.py \\
  one
one
$ true
```

Now it prints twice. Change `a.py`:

```diff
 print(sys.argv[1])
+print("at", "2027-01-02T03:04:05.678Z")
```

```console
$ python a.py two
two
at 2026-11-27T19:38:12.631Z
```

## Behind it

```sh
pip install nothing
```

```console
$ python -c 'import time; print("ready", flush=True); time.sleep(600)' &
ready
$ kill -9 %1
$ printf 'a\\nb c\\nd\\n\\n'
...
b ...
...
```
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Runs a page and returns the text of its failure."""

    def run(text: str, **arguments: Any) -> str:
        page = tmp_path / "page.md"
        page.write_text(text, encoding="utf-8")
        try:
            run_page(page, tmp_path, **arguments)
        except AssertionError as error:
            return str(error)
        return ""

    return run


def test_a_page_that_is_right(run: Callable[..., str], tmp_path: Path) -> None:
    assert run(PAGE) == ""
    assert (tmp_path / "a.py").read_text("utf-8").count("print") == 2


def test_a_page_runs_up_to_a_heading(run: Callable[..., str], tmp_path: Path) -> None:
    assert run(PAGE, before="## Behind it") == ""
    assert "has no heading '## Nowhere'" in run(PAGE, before="## Nowhere")


@pytest.mark.parametrize(
    ("old", "new", "failure"),
    [
        ("one\n$ true", "two\n$ true", "page.md:15: `python a.py \\\n  one` prints something else, exit status 0:"),
        ("one\n$ true", "one\n$ false", "page.md:18: `false` fails with exit status 1:\n"),
        ("one\n$ true", "one\n$ echo", "page.md:18: `echo` prints something else, exit status 0:\n+ "),
        ("two\nat", "two\nat noon\nat", "  two\n- at noon\n  at 2026-11-27T19:38:12.631Z"),
        (
            " print(sys.argv[1])\n+",
            " print(1)\n+",
            "page.md:24: the lines to change are in the file 0 times:\nprint(1)",
        ),
        ("Save this as", "Look at", "page.md:7: nothing says what to do with this block of python"),
        ("`a.py`:\n\n```python", "`../a.py`:\n\n```python", "../a.py is not in the folder of the page"),
        ("\nready\n", "\nsteady\n", "does not print what the page shows:\n- steady\n+ ready"),
        ('print("ready", flush=True)', "1/0", "has ended with exit status 1. It printed:\nTraceback"),
        ("b ...\n", "c ...\n", "- c ...\n- ...\n+ a\n+ b c\n"),
    ],
)
def test_a_page_that_is_wrong(
    run: Callable[..., str], monkeypatch: pytest.MonkeyPatch, old: str, new: str, failure: str
) -> None:
    monkeypatch.setattr(sys.modules[run_page.__module__], "_DEADLINE_S", 3)
    assert PAGE.count(old) == 1
    assert failure in run(PAGE.replace(old, new))


def test_a_command_that_does_not_end_is_ended(run: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[run_page.__module__], "_DEADLINE_S", 1)
    failure = "page.md:2: `echo begun; sleep 600` does not end. It printed:\nbegun\n"
    assert run("```console\n$ echo begun; sleep 600\n```\n") == failure


def test_a_text_of_the_page_is_another_one_here(run: Callable[..., str]) -> None:
    assert run("```console\n$ echo HERE\nHERE\n```\n", replace={"HERE": "there"}) == ""
    assert "does not have 'HERE'" in run("```console\n$ true\n```\n", replace={"HERE": "there"})


def test_a_command_that_fails_shows_its_error(run: Callable[..., str]) -> None:
    assert run("```console\n$ echo error: no; false\nerror: no\n```\n") == ""
