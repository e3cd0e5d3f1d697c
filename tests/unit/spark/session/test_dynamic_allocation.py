"""Under which settings executors with containers stay, and what is said otherwise."""

from __future__ import annotations

import pytest

from penstock.spark.session.executors import ENABLED, MINIMUM, fault_in_allocation, is_dynamic, kept_executors
from penstock.spark.session.session import session_conf

CACHED_IDLE = "spark.dynamicAllocation.cachedExecutorIdleTimeout"
FETCHED = "spark.shuffle.service.fetch.rdd.enabled"
DYNAMIC = {"spark.master": "yarn", ENABLED: "true"}
KEPT = {**DYNAMIC, MINIMUM: "3"}


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"spark.master": "yarn"}, False),
        ({"spark.master": "yarn", ENABLED: "True"}, True),
        ({"spark.master": "local-cluster[2,1,1024]", ENABLED: "true"}, True),
        ({"spark.master": "local[4]", ENABLED: "true"}, False),
        ({"spark.master": "local", ENABLED: "true"}, False),
    ],
)
def test_a_local_spark_adds_and_removes_no_executors(conf: dict[str, str], expected: bool) -> None:
    assert is_dynamic(conf) is expected


@pytest.mark.parametrize(
    ("conf", "what", "remedy"),
    [
        (DYNAMIC, f"`{MINIMUM}` is not set", f"Set `{MINIMUM}` to that number"),
        ({**DYNAMIC, MINIMUM: "0"}, f"`{MINIMUM}` is 0", f"or `{ENABLED}` to false"),
        ({**KEPT, CACHED_IDLE: "30min"}, f"`{CACHED_IDLE}` is 30min", "Leave the key out, or set it to 2147483647s"),
        ({**KEPT, FETCHED: "true"}, f"`{FETCHED}` are true", f"Set `{FETCHED}` to false"),
    ],
)
def test_settings_by_which_containers_would_be_lost_are_named(conf: dict[str, str], what: str, remedy: str) -> None:
    fault = fault_in_allocation(conf)
    assert fault is not None
    assert what in fault
    assert remedy in fault
    assert fault_in_allocation({**conf, ENABLED: "false"}) is None


@pytest.mark.parametrize("more", [{}, {CACHED_IDLE: "2147483647s"}, {CACHED_IDLE: "2147483647"}, {FETCHED: "false"}])
def test_settings_by_which_they_stay(more: dict[str, str]) -> None:
    assert fault_in_allocation({**KEPT, **more}) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"spark.executor.instances": "4"}, 4),
        ({"spark.executor.instances": "4", MINIMUM: "2"}, 2),
        ({}, 0),
        ({ENABLED: "false", "spark.executor.instances": "4"}, 0),
    ],
)
def test_a_session_keeps_as_many_executors_as_it_was_to_have(given: dict[str, str], expected: int) -> None:
    assert kept_executors(session_conf("job", given, DYNAMIC, {})) == expected
