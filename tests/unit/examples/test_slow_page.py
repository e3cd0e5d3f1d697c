"""The page "My job is slow": its job adds up a hot key in parts, and every total is right."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

from penstock.dashboard.work import PARTS
from penstock.testing import TestRunner
from tests.support.tools.places import ROOT

PAGE = (ROOT / "docs" / "slow.md").read_text("utf-8")


def test_a_hot_key_is_added_up_in_parts() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    found: dict[str, Any] = {"__name__": "slow_page"}
    exec(compile(block, "slow.md", "exec"), found)
    chosen = random.Random(3)
    given = [("hot" if chosen.random() < 0.8 else f"k{number % 5}", number) for number in range(400)]
    runner = TestRunner(found["app"], partitions=4).input("local.amounts", given).run()
    expected = Counter[str]()
    for key, value in given:
        expected[key] += value
    last = {message.key: message.value for message in runner.output("local.totals")}
    assert last == expected
    assert len([part for part in runner.store("parts") if part.startswith("hot#")]) == 8


def test_the_page_names_the_parts_of_a_batch_as_the_chart_does() -> None:
    for part in (*PARTS.values(), "other"):
        assert f"`{part}`" in PAGE
