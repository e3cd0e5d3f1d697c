"""Who may talk to Spark, by the keys of a session."""

from __future__ import annotations

import logging

import pytest

from penstock.errors import ConfigError
from penstock.spark.session.session import check_authentication, session_conf

pytestmark = pytest.mark.attack

ON = {"spark.authenticate": "true"}
OFF = {"spark.authenticate": "false"}
SECRET = {"spark.authenticate.secret": "x"}
IN_YARN = {"spark.master": "yarn", "spark.submit.deployMode": "cluster"}


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,4]", "yarn", "k8s://https://there", None])
def test_spark_makes_its_secret_wherever_it_can(master: str | None) -> None:
    conf = session_conf("job", {} if master is None else {"spark.master": master}, {}, {})
    assert conf["spark.authenticate"] == "true"
    assert "spark.authenticate.secret" not in conf
    check_authentication(conf)


def test_each_local_cluster_has_a_secret_of_its_own() -> None:
    first, second = (session_conf("job", {"spark.master": "local-cluster[2,1,1024]"}, {}, {}) for _ in range(2))
    check_authentication(first)
    assert len(first["spark.authenticate.secret"]) > 40
    assert first["spark.authenticate.secret"] != second["spark.authenticate.secret"]


@pytest.mark.parametrize("where", ["given", "outside"])
def test_a_secret_is_enough_for_a_standalone_cluster(where: str) -> None:
    keys = {"spark.master": "spark://a:7077", **SECRET}
    conf = session_conf("job", keys, {}, {}) if where == "given" else session_conf("job", {}, keys, {})
    assert conf["spark.authenticate"] == "true"
    check_authentication(conf)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"spark.master": "spark://a:7077"}, "`spark.authenticate.secret`"),
        ({"spark.master": "spark://a:7077", **ON}, "`spark.authenticate.secret` is missing"),
        ({"spark.master": "elsewhere://a"}, "`spark.authenticate.secret`"),
        (IN_YARN, "`spark-submit` `spark.authenticate=true`"),
    ],
)
def test_a_context_that_everybody_on_the_network_could_use_is_not_made(keys: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=r"everybody who reaches|is missing") as refused:
        check_authentication(session_conf("job", keys, {}, {}))
    assert said in str(refused.value)


@pytest.mark.parametrize("master", ["yarn", "k8s://https://there", "spark://a:7077"])
def test_a_session_of_somebody_else_between_hosts_is_refused_unless_it_says_so(
    master: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match=r"set `[^`]+=false`"):
        check_authentication({"spark.master": master, **SECRET})
    assert not caplog.records
    check_authentication({"spark.master": master, **OFF})
    (warning,) = caplog.messages
    assert "can run code in this job" in warning
    caplog.clear()
    check_authentication({"spark.master": master, **ON, **SECRET})
    assert not caplog.records


@pytest.mark.parametrize("more", [{}, OFF])
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_a_session_of_somebody_else_on_one_host_is_warned_of(
    master: str, more: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    place = {"spark.driver.host": "10.0.0.7", "spark.driver.port": "4711"}
    with caplog.at_level(logging.WARNING):
        check_authentication({"spark.master": master, **place, **more})
    (warning,) = caplog.messages
    assert "everybody who can connect to 10.0.0.7:4711" in warning
    assert "`spark.authenticate=true`" in warning
