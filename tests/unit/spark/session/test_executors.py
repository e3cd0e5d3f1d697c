"""The names of executors."""

from __future__ import annotations

import pytest

from penstock.spark.session.executors import Executor, host_of


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("10.0.0.2:41234", "10.0.0.2"),
        ("10.0.0.2", "10.0.0.2"),
        ("worker1.example:80", "worker1.example"),
        ("[fd00::2]:41234", "[fd00::2]"),
        ("[fd00::2]", "[fd00::2]"),
    ],
)
def test_an_executor_that_has_just_registered_has_a_host_without_a_port(text: str, host: str) -> None:
    assert host_of(text) == host


def test_the_driver_resolves_a_host() -> None:
    assert Executor("1", "10.0.0.2", 1).address == "10.0.0.2"
    assert Executor("1", "[fd00::2]", 1).address == "fd00::2"
    assert Executor("1", "no-such-host.invalid", 1).address == "no-such-host.invalid"
