"""Keys of messages of Samza's coordinator stream."""

from __future__ import annotations

import pytest

from penstock.admin.coordinator_stream import coordinator_key, parse_coordinator_key
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import CorruptError
from penstock.start.startpoints.request import NAMESPACE, RequestKey
from tests.support.tools.places import GOLDEN


def test_a_key_is_samzas() -> None:
    golden = (GOLDEN / "startpoint-coordinator-key.json").read_text()
    key = RequestKey(SystemStreamPartition("kafka", "dep.flights", 3), "Partition 3")
    assert coordinator_key(NAMESPACE, str(key)) == golden
    assert parse_coordinator_key(golden) == (NAMESPACE, str(key))
    with pytest.raises(CorruptError, match="not a key"):
        parse_coordinator_key('["a"]')
