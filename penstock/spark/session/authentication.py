"""Who may talk to Spark. Its ports take tasks and give away broadcasts, and with them code and the secrets of a run:
without `spark.authenticate`, everybody who reaches them can run code as the job's user."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping

from penstock.errors import ConfigError
from penstock.spark.session.spark_conf import is_true

logger = logging.getLogger(__name__)
AUTHENTICATE = "spark.authenticate"
SECRET = "spark.authenticate.secret"  # noqa: S105 - the name of a key


def default_authentication(asked: Mapping[str, str]) -> dict[str, str]:
    """The keys with which Spark asks every caller for a secret, for a context that this process makes.

    Spark makes the secret itself on a local master, YARN and Kubernetes. This makes it on `local-cluster`, whose
    processes begin and end with the driver. It makes none for a cluster whose own processes have to know it, such as a
    standalone one.

    Args:
        asked: the `spark.*` keys that were given.
    """
    if AUTHENTICATE in asked or _is_begun(asked):
        return {}
    master = asked.get("spark.master", "local")
    if master.startswith("local-cluster"):
        return {AUTHENTICATE: "true", SECRET: secrets.token_urlsafe(32)}
    return {AUTHENTICATE: "true"} if SECRET in asked or _makes_secret(master) else {}


def check_authentication(conf: Mapping[str, str]) -> None:
    """Check the keys of a session, and warn if strangers can run code in it.

    Raises:
        ConfigError: they can, from other hosts as well, and nobody has said that they may; or Spark lacks its secret.
    """
    master = conf.get("spark.master", "local")
    if is_true(conf, AUTHENTICATE):
        if not conf.get(SECRET) and not _makes_secret(master):
            raise ConfigError(f"`{SECRET}` is missing: with the master {master}, Spark makes no secret. {_how(conf)}")
    elif not master.startswith("local") and AUTHENTICATE not in conf:
        raise ConfigError(
            f"the Spark session has no `{AUTHENTICATE}`: everybody who reaches a port of Spark's could run "
            f"code in this job. {_how(conf)}. Where everybody on the network may, set `{AUTHENTICATE}=false`"
        )
    else:
        host, port = conf.get("spark.driver.host", "this host"), conf.get("spark.driver.port")
        place = f"{host}:{port}" if port else f"a port of Spark's on {host}"
        logger.warning(
            "`%s` is not true in the Spark session: everybody who can connect to %s can run code in this job. %s",
            AUTHENTICATE,
            place,
            _how(conf),
        )


def _makes_secret(master: str) -> bool:
    return master == "yarn" or master.startswith(("local[", "k8s://")) or master == "local"


def _is_begun(asked: Mapping[str, str]) -> bool:
    """True in cluster mode on YARN: what started this driver has made the secret, or has not."""
    return asked.get("spark.master") == "yarn" and asked.get("spark.submit.deployMode") == "cluster"


def _how(conf: Mapping[str, str]) -> str:
    if not _makes_secret(conf.get("spark.master", "local")):
        return (
            f"Give the session and the cluster's own processes `{AUTHENTICATE}=true` and one secret as `{SECRET}`, in "
            "a file that only their user can read"
        )
    where = "`spark-submit`" if _is_begun(conf) else "the session"
    return f"Give {where} `{AUTHENTICATE}=true`"
