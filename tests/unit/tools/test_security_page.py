"""SECURITY.md: its table of bytes from outside names tests that exist, and that somebody runs."""

from __future__ import annotations

import re

from tests.support.tools.places import ROOT


def rows() -> list[list[str]]:
    text = (ROOT / "SECURITY.md").read_text("utf-8").split("## Bytes from outside")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_each_kind_of_bytes_has_a_reader_a_budget_and_a_test_that_exists() -> None:
    head, _, *found = rows()
    assert head == ["bytes", "who may write them", "what reads them", "budget", "tests"]
    assert len(found) >= 20
    for row in found:
        assert len(row) == len(head), row
        assert all(row), row
        tests = re.findall(r"`([^`]+)`", row[-1])
        assert tests, row
        for test in tests:
            assert re.fullmatch(r"tests/\S+/test_\w+\.py", test), test
            assert (ROOT / test).is_file(), test
        for reader in re.findall(r"`(penstock/[^`]+)`", row[2]):
            assert (ROOT / reader).exists(), reader
