"""`penstock stream create --retention` and `penstock stream retain`, over real streams on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.system.local import LocalSystem
from tests.support.tools.cli import call, call_json

MB = 1 << 20
pytestmark = pytest.mark.usefixtures("home")


def limits(name: str) -> tuple[int | None, int | None]:
    facts = call_json("stream", "describe", name)
    listed = next(each for each in call_json("stream", "list") if each["stream"] == f"local.{name}")
    assert (listed["retentionMs"], listed["retentionBytes"]) == (facts["retentionMs"], facts["retentionBytes"])
    return facts["retentionMs"], facts["retentionBytes"]


def test_create_with_limits() -> None:
    command = ("stream", "create", "s", "--partitions", "2", "--retention", "7d", "--retention-bytes", "10GB")
    assert "created" in call(*command)[0]
    assert "exists" in call(*command)[0]
    assert limits("s") == (7 * 86_400_000, 10 << 30)
    assert "7d, 10GB per partition" in call("stream", "describe", "s")[0]
    assert "7d, 10GB per partition" in call("stream", "list")[0]
    error = call("stream", "create", "s", "--partitions", "2", "--retention", "8d", status=1)[1]
    assert "penstock stream retain local.s" in error
    assert "exists" in call("stream", "create", "s", "--partitions", "2")[0]
    call("stream", "create", "forever", "--partitions", "2")
    assert limits("forever") == (None, None)
    assert "forever" in call("stream", "describe", "forever")[0]


def test_each_limit_is_changed_by_itself(home: Path) -> None:
    call("stream", "create", "s", "--partitions", "1")
    writer = LocalSystem("local", str(home / "streams")).writer(None)
    writer.append(SystemStreamPartition("local", "s", 0), [(0, None, bytes(MB))] * 4)
    assert "--yes" in call("stream", "retain", "s", "--retention", "12h", status=2)[1]
    assert limits("s") == (None, None)
    assert "keeps its messages: 12h; 0 were deleted" in call("stream", "retain", "s", "--retention", "12h", "--yes")[0]
    assert call_json("stream", "retain", "local.s", "--retention-bytes", "3MB", "--yes") == {
        "stream": "local.s",
        "retentionMs": 12 * 3_600_000,
        "retentionBytes": 3 * MB,
        "deleted": 2,
    }
    assert limits("s") == (12 * 3_600_000, 3 * MB)
    assert call_json("stream", "describe", "s")["messages"] == 2
    assert "0 were deleted" in call("stream", "retain", "s", "--retention", "12h")[0]  # it has it: no question
    call("stream", "retain", "s", "--retention", "none", "--retention-bytes", "none")
    assert limits("s") == (None, None)


def test_what_is_refused() -> None:
    call("stream", "create", "s", "--partitions", "1")
    assert "--retention" in call("stream", "retain", "s", status=2)[1]
    assert "unknown unit `weeks`" in call("stream", "retain", "s", "--retention", "2weeks", status=2)[1]
    assert "at least 1048576" in call("stream", "retain", "s", "--retention-bytes", "1KB", status=2)[1]
    assert "penstock stream create local.no" in call("stream", "retain", "no", "--retention", "1d", status=1)[1]
