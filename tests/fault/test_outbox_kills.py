"""`kill -9` of containers at steps of a publication, on Spark: each message is in the output exactly once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.fault.test_publication_kills import CONFIG, IN_CONTAINER, MESSAGES, _counts
from tests.support.fault_jobs import FaultHome
from tests.support.faults import Fault

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "steps",
    [("writer.append", "writer.committed"), pytest.param(IN_CONTAINER, marks=pytest.mark.slow)],
    ids=["sample", "every step"],
)
def test_containers_are_killed_at_steps_of_a_publication(tmp_path: Path, steps: tuple[str, ...]) -> None:
    home = FaultHome(tmp_path, config={**CONFIG, "job.retry.max": 100})
    home.publish(MESSAGES, seed=8)
    home.faults.plan(*(Fault(step, step, "kill", skip=2 + number) for number, step in enumerate(steps)))
    driver = home.driver()
    try:
        driver.succeeded()
    finally:
        driver.clean_up()
    assert not home.faults.left()
    home.verify_ended()
    events = [event for partitions in home.published.values() for own in partitions.values() for event in own]
    for stream, field in (("totals", "key"), ("regions", "region")):
        expected = Counter((name, n) for name, count in _counts(events, field).items() for n in range(1, count + 1))
        assert Counter((key, value["count"]) for _, _, key, value in home.messages(stream)) == expected
