"""Places for connections of callers that are not known yet."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.http_hosts import Crowd

pytestmark = pytest.mark.attack

HOSTS = ("10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "fe80::1%eth0")
LOOPBACK = ("127.0.0.1", "127.9.9.9", "::1")
SAME = dict.fromkeys(LOOPBACK, "this host") | {"::ffff:10.0.0.1": "10.0.0.1", "2001:db8::2": "2001:db8::1"}


@given(st.integers(1, 5), st.lists(st.tuples(st.sampled_from(HOSTS + LOOPBACK), st.booleans()), max_size=40))
def test_the_oldest_of_the_host_that_has_the_most_goes(most: int, events: list[tuple[str, bool]]) -> None:
    crowd, there = Crowd[int](most), dict[int, str]()
    for number, (address, leaves) in enumerate(events):
        out = crowd.add(number, address)
        there[number] = SAME.get(address, address)
        if len(there) > most:
            counts = Counter(there.values())
            assert out is not None
            assert counts[there[out]] == max(counts.values())
            assert out == min(each for each, host in there.items() if host == there[out])
            del there[out]
        else:
            assert out is None
        if leaves:
            assert crowd.discard(number) == (there.pop(number, None) is not None)
        assert {each for each in range(number + 1) if each in crowd} == there.keys()


def test_a_host_that_takes_all_places_takes_none_from_others() -> None:
    crowd = Crowd[str](8)
    crowd.add("driver", "10.0.0.7")
    assert [crowd.add(f"{n}", "10.0.0.9") for n in range(100)].count("driver") == 0
    assert "driver" in crowd
