"""A side store's content is continued or not: decided from its positions and the streams."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.side.engine import SidePositions
from penstock.side.folders import Decision, ReuseTarget, SideRebuild, SideReuse, decide_reuse
from penstock.system.contract.messages import PartitionOffsets

A, B = SystemStreamPartition("local", "a", 1), SystemStreamPartition("local", "b", 0)
NOW_MS, DAY_MS = 1_000_000_000, 86_400_000
FOUND = SidePositions({A: 10, B: 0}, {A.system_stream: "uid a", B.system_stream: None}, "serdes", True, NOW_MS - 1000)
WANTED = ReuseTarget(
    "serdes",
    {A: PartitionOffsets(4, 12), B: PartitionOffsets(0, 0)},
    {A: 10, B: 0},
    {A.system_stream: "uid a", B.system_stream: None},
)


def decide(found: SidePositions | None, wanted: ReuseTarget = WANTED) -> Decision:
    return decide_reuse(found, wanted, NOW_MS, DAY_MS)


def test_content_is_continued_where_nothing_was_missed() -> None:
    assert decide(FOUND) == SideReuse()
    assert decide(replace(FOUND, next_offsets={A: 12, B: 0}, complete=False)) == SideReuse()
    assert decide(replace(FOUND, updated_ms=NOW_MS - DAY_MS)) == SideReuse()
    assert decide(replace(FOUND, updated_ms=NOW_MS + 5000)) == SideReuse()
    assert decide(FOUND, replace(WANTED, deletions_kept_ms={A.system_stream: 2000})) == SideReuse()


@pytest.mark.parametrize("found", [None, SidePositions()])
def test_no_content_is_expected(found: SidePositions | None) -> None:
    decision = decide(found)
    assert isinstance(decision, SideRebuild)
    assert decision.expected


@pytest.mark.parametrize(
    ("found", "wanted", "reason"),
    [
        (replace(FOUND, fingerprint="others"), WANTED, "another processor or with other serdes"),
        (replace(FOUND, next_offsets={A: 10}), WANTED, "without `local.b.0`"),
        (
            replace(FOUND, next_offsets={A: 10, B: 0, replace(A, partition=2): 1}),
            WANTED,
            "`local.a.2` as well, which is no longer",
        ),
        (
            replace(FOUND, identities={A.system_stream: "uid of before", B.system_stream: None}),
            WANTED,
            "stream `local.a` was deleted and created again",
        ),
        (replace(FOUND, identities={A.system_stream: "uid a", B.system_stream: "x"}), WANTED, "`local.b` was deleted"),
        (replace(FOUND, updated_ms=NOW_MS - DAY_MS - 1), WANTED, "side.inputs.max.age.ms=86400000"),
        (
            FOUND,
            replace(WANTED, deletions_kept_ms={A.system_stream: 1998}),
            "half of delete.retention.ms=1998 of `local.a`",
        ),
        (replace(FOUND, next_offsets={A: 13, B: 0}), WANTED, "offset 13 of `local.a.1`, which now ends at 12"),
        (replace(FOUND, next_offsets={A: 9, B: 0}), WANTED, "offset 9 of `local.a.1`, and what followed up to 10"),
    ],
)
def test_other_content_is_made_again(found: SidePositions, wanted: ReuseTarget, reason: str) -> None:
    decision = decide(found, wanted)
    assert isinstance(decision, SideRebuild)
    assert reason in decision.reason
    assert not decision.expected
