"""Names of streams and partitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps

SYSTEMS = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True)
STREAMS = st.from_regex(r"[A-Za-z0-9_.-]{1,12}", fullmatch=True)


@given(SYSTEMS, STREAMS, st.integers(0, 10**9))
def test_what_is_written_reads_back_dots_and_all(system: str, stream: str, partition: int) -> None:
    name = ps.SystemStream(system, stream)
    assert ps.SystemStream.parse(str(name)) == name
    ssp = ps.SystemStreamPartition(system, stream, partition)
    assert ps.SystemStreamPartition.parse(str(ssp)) == ssp
    assert ssp.system_stream == name


def test_the_first_dot_separates_the_system_the_last_the_partition() -> None:
    assert ps.SystemStream.parse("local.a.b") == ps.SystemStream("local", "a.b")
    assert ps.SystemStreamPartition.parse("local.a.b.7") == ps.SystemStreamPartition("local", "a.b", 7)
    assert ps.SystemStreamPartition.parse("local.1.2.3") == ps.SystemStreamPartition("local", "1.2", 3)


@pytest.mark.parametrize("text", ["", "flights", ".", ".flights", "local."])
def test_bad_streams(text: str) -> None:
    with pytest.raises(ps.ConfigError, match=r"is not of the form `system\.stream`"):
        ps.SystemStream.parse(text)


@pytest.mark.parametrize(
    "text", ["", "a.b", "a.b.", "a.b.x", "a.b.-1", "a.b.+1", "a.b.1 ", "a.b.\u0663", "a.b.1.5x", ".b.1"]
)
def test_bad_partitions(text: str) -> None:
    with pytest.raises(ps.ConfigError, match="is not of the form"):
        ps.SystemStreamPartition.parse(text)


def test_they_are_ordered_by_number_and_hashable() -> None:
    ssps = [ps.SystemStreamPartition("a", "s", n) for n in (10, 9, 2)]
    assert [s.partition for s in sorted(ssps)] == [2, 9, 10]
    assert len({*ssps, *ssps}) == 3


def test_a_stream_is_named_by_a_text() -> None:
    with pytest.raises(ps.ConfigError, match=r"text of the form `system\.stream`, not by 5"):
        ps.SystemStream.parse(5)  # type: ignore[arg-type]
