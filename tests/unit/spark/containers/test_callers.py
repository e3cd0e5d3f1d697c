"""With what driver and workers prove to containers who they are, and what is said where they do not."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from penstock.spark.session.session import warn_of_clear_text, warn_of_unseen_memory, worker_daemon
from penstock.spark.workers.packages import CallerIdentities

_DAY_S = 24 * 3600


def test_each_epoch_has_a_new_identity_and_older_ones_are_known_until_they_are_over() -> None:
    callers = CallerIdentities(tls=True)
    first = callers.current
    assert first is not None
    callers.begin_epoch()
    assert callers.current is first, "nothing has used it yet"
    callers.begin_epoch()
    second = callers.current
    assert second is not None
    assert second.certificate != first.certificate
    assert callers.of(first.certificate) is first
    assert callers.of("a container of before") is second
    assert not due(callers)
    callers.current = replace(second, made_at=second.made_at - 4 * _DAY_S)
    assert due(callers)
    callers._known[first.certificate] = replace(first, made_at=first.made_at - 8 * _DAY_S)
    callers.renew()
    assert not due(callers)
    assert callers.of(first.certificate) is callers.current
    assert callers.of(second.certificate) is second


def due(callers: CallerIdentities) -> bool:
    """A function, because a type checker takes a property for a constant."""
    return callers.is_due


def test_without_tls_there_is_none() -> None:
    callers = CallerIdentities(tls=False)
    callers.begin_epoch()
    callers.begin_epoch()
    callers.renew()
    assert callers.current is None
    assert not callers.is_due
    assert callers.of(None) is None


@pytest.mark.parametrize(
    ("tls", "conf", "warning"),
    [
        (False, {"spark.network.crypto.enabled": "true"}, "`job.container.tls.enabled` is false"),
        (True, {}, "Spark itself sends its tasks in clear"),
        (True, {"spark.network.crypto.enabled": "true"}, None),
        (True, {"spark.ssl.rpc.enabled": "true"}, None),
    ],
)
def test_what_crosses_the_network_in_clear_is_said(
    caplog: pytest.LogCaptureFixture, tls: bool, conf: dict[str, str], warning: str | None
) -> None:
    with caplog.at_level(logging.WARNING):
        warn_of_clear_text(conf, tls=tls)
    assert len(caplog.messages) == (warning is not None)
    assert all(text.startswith(warning or "") for text in caplog.messages)


@pytest.mark.parametrize(
    ("conf", "warns"),
    [
        ({"spark.master": "yarn"}, False),
        ({"spark.master": "yarn", "spark.submit.pyFiles": "shop.zip"}, True),
        ({"spark.master": "yarn", "spark.files": "shop.csv"}, True),
        ({"spark.master": "yarn", "spark.python.daemon.module": "pyspark.daemon"}, True),
        ({"spark.master": "k8s://there", "spark.submit.pyFiles": "shop.zip"}, False),
        ({"spark.master": "spark://there:7077", "spark.submit.pyFiles": "shop.zip"}, False),
    ],
)
def test_uncounted_containers_are_said(caplog: pytest.LogCaptureFixture, conf: dict[str, str], warns: bool) -> None:
    with caplog.at_level(logging.WARNING):
        warn_of_unseen_memory({**worker_daemon(conf), **conf})
    assert [text.startswith("YARN does not count the memory") for text in caplog.messages] == [True] * warns
