"""The benchmark of TLS: how rounds are compared, and what is noticed in outputs."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from benchmarks.side_floor import OUTPUTS
from benchmarks.side_tls import _are_whole
from benchmarks.tls import costs
from penstock.api.ssp import SystemStreamPartition
from penstock.system.local import LocalSystem


def test_each_side_is_compared_with_clear_of_its_own_round() -> None:
    fold = {"clear": [100.0, 10.0, 50.0], "tls": [96.0, 9.8, 40.0]}
    small = {"clear": [100.0, 10.0, 50.0], "tls": [108.0, 10.5, 50.0]}
    found = costs(
        {way: [{"rows_per_second": each} for each in own] for way, own in fold.items()},
        {way: [{"batch": each} for each in own] for way, own in small.items()},
    )
    assert found == {"fold": {"clear": 0.0, "tls": 0.04}, "floor": {"clear": 0.0, "tls": 0.05}}


@pytest.mark.parametrize(("numbers", "whole"), [(range(6), True), (range(5), False), ([*range(6), 0], False)])
def test_a_lost_or_doubled_message_is_noticed(tmp_path: Path, numbers: list[int], whole: bool) -> None:
    system = LocalSystem("local", str(tmp_path / "streams"))
    writer = system.writer(None)
    for name in OUTPUTS:
        system.admin().create_stream(name, 1)
        own = numbers if name == OUTPUTS[-1] else range(6)
        writer.append(SystemStreamPartition("local", name, 0), [(0, b"k", orjson.dumps({"n": n})) for n in own])
    writer.close()
    assert _are_whole({"work": str(tmp_path), "messages": 2, "batches": 3}) is whole
