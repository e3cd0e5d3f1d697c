"""The examples of the README and of the page on tests run as written."""

from __future__ import annotations

import re
from typing import Any

from tests.support.places import ROOT

README = ROOT / "README.md"


def test_the_example_and_its_test_run_as_written() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    example, test = blocks[0], blocks[1]
    namespace: dict[str, Any] = {"__name__": "readme"}
    exec(compile(example + test, "README.md", "exec"), namespace)
    assert namespace["runner"].store("aircraft") == {"N14228": {"flights": 1, "miles": 1400}}
    assert [m.key for m in namespace["runner"].output("local.utilisation")] == ["N14228"]


def test_the_page_on_tests_runs_as_written() -> None:
    page = README.parent / "docs" / "testing.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    exec(compile("".join(blocks), "testing.md", "exec"), {"__name__": "testing_page"})
