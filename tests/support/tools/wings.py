"""The wings that tests are about: the mark `wing`, and the tests of one of them alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from penstock.base.plugins import WINGS
from tests.support.tools.places import ROOT


@cache
def wings_of(file: Path) -> tuple[str, ...]:
    """The wings of a test file. Its folder has a wing's name, or that is a word in its own: `test_outbox_kills.py`,
    `test_stuck_drains.py`."""
    words = {*file.relative_to(ROOT / "tests").parent.parts, *file.stem.split("_")}
    return tuple(wing for wing in WINGS if words & {wing, f"{wing}s", f"{wing}ed"})


def mark(items: list[pytest.Item]) -> None:
    """Give tests the marks of the wings of their files. A test that is named otherwise brings its own mark."""
    for item in items:
        for wing in wings_of(item.path):
            item.add_marker(pytest.mark.wing(wing))


def keep_only(wing: str, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all tests but those of a wing. Raises UsageError if there is no such wing."""
    if wing not in WINGS:
        raise pytest.UsageError(f"there is no wing `{wing}`; the wings are {', '.join(WINGS)}")
    kept = [item for item in items if any(wing in mark.args for mark in item.iter_markers("wing"))]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept
