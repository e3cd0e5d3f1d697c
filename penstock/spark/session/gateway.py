"""Spark's JVM, where this process starts it: quiet at its start, deaf to SIGTERM, and reported when it dies.

A signal to the process group (`timeout`, Ctrl-C) or to the whole control group (systemd) reaches the driver and the
JVM at once. The driver answers it with a last commit, for which it needs Spark. The JVM therefore ignores SIGTERM
and SIGINT; it ends when its standard input does, which is when the driver ends, however that happens.

A failure of Spark is told by its cause, without the frames and wrappings of Spark, PySpark and the JVM.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import ensure_callback_server_started, launch_gateway
from pyspark.sql import SparkSession

from penstock.base.files import UMASK
from penstock.errors import PenstockError
from penstock.host.posix import driver_mark, ending, wake_left

logger = logging.getLogger(__name__)
_DEAF = f'export {UMASK}="${{{UMASK}:-$(umask)}}"; umask 077; trap "" INT TERM; exec "$0" "$@"'
"""The shell command of the JVM. A JVM that is started with a signal ignored goes on ignoring it. Its files, and the
sockets of its Python workers, are for nobody else."""
_POLL_SECONDS = 0.02
_DEATH_SECONDS = 2.0
"""Longest delay between broken connections and the visible death of a JVM."""
_STOP_SECONDS = 150.0
"""Longest wait for Spark's stop; Spark itself waits two minutes for an executor that does not answer."""
_LAST_WORDS = 12
_NOISE = (b"WARNING: Using incubator modules: jdk.incubator.vector",)
_NO_ANSWER = re.compile(r"An error occurred while calling \S+")
_NO_NAME = re.compile(r"\S+ does not exist in the JVM")
_LOG4J = "log4j2.configurationFile"
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"


@dataclass(frozen=True, slots=True)
class SparkJvm:
    """The JVM that this process started, and the last lines of its standard error."""

    process: subprocess.Popen[bytes]
    last_words: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_WORDS))

    def death(self, wait_s: float = 0.0) -> str | None:
        """The cause of its death, if it died within the time."""
        try:
            status = self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return None
        words = "".join(f"\n  {line}" for line in self.last_words)
        return f"Spark's JVM (process {self.process.pid}) {ending(status)}" + (
            f"; its last lines:{words}" if words else ""
        )


class _CurrentGateway:
    jvm: SparkJvm | None = None
    hear: Callable[[int], None] | None = None
    """Receives the signals to spark-submit."""


def start_jvm(conf: Mapping[str, str]) -> None:
    """Start the JVM that the next session of this process runs in, unless there is one or `spark-submit` made it.

    Raises:
        PenstockError: it did not start; the message has its last lines.
    """
    if _PORT in os.environ:
        return
    if SparkContext._gateway is not None:  # noqa: SLF001 - pyspark keeps it there, and nothing public asks
        if _CurrentGateway.jvm is None or _CurrentGateway.jvm.death() is None:
            return
        forget()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "connection"
        _CurrentGateway.jvm = jvm = _launch(write_conf(Path(folder) / "spark.conf", conf), file)
        while not file.exists():
            if (death := jvm.death(_POLL_SECONDS)) is not None:
                raise PenstockError(f"Spark did not start: {death}")
        written = file.read_bytes()
    port, size = int.from_bytes(written[:4], "big"), int.from_bytes(written[4:8], "big")
    os.environ |= {_PORT: str(port), _SECRET: written[8 : 8 + size].decode()}
    try:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ[_PORT], os.environ[_SECRET]
    gateway.proc = jvm.process
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001


def write_conf(file: Path, conf: Mapping[str, str]) -> Path:
    """Write the keys as a properties file that nobody else can read: other users see a command line."""
    lines = (f"{_escaped(key)}={_escaped(value)}\n" for key, value in conf.items())
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        opened.writelines(lines)
    return file


def _escaped(text: str) -> str:
    text = re.sub(r"[\\ :=#!\f\t]", lambda found: "\\" + {"\t": "t", "\f": "f"}.get(found[0], found[0]), text)
    return text.replace("\n", "\\n").replace("\r", "\\r")


def submit_command(script: str, conf: Path, arguments: Sequence[str]) -> list[str]:
    """The command line of spark-submit.

    Args:
        script: spark-submit.
        conf: the properties file with all keys, those of the user's properties files among them: spark-submit reads
            one file only, the last one that is named.
        arguments: what the user has given to Spark, with the name of the application at the end.
    """
    before, application = list(arguments[:-1]), list(arguments[-1:])
    return [script, *before, "--properties-file", str(conf), *application]


def _launch(conf: Path, connection: Path) -> SparkJvm:
    """Start the command that pyspark would run, behind a shell."""
    wake_left()
    script = str(Path(_find_spark_home()) / "bin" / "spark-submit")
    command = submit_command(script, conf, shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")))
    environment = {
        **os.environ,
        **driver_mark(),
        "SPARK_CONNECT_MODE": "0",
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection),
    }
    if not _has_log4j(environment):
        ours = f"-D{_LOG4J}={Path(__file__).with_name('log4j2.properties').as_uri()}"
        if logger.isEnabledFor(logging.DEBUG):
            ours += " -Dpenstock.stack=full"
        # In front: whatever the user adds comes later, and the last one counts.
        environment["SPARK_SUBMIT_OPTS"] = f"{ours} {environment.get('SPARK_SUBMIT_OPTS', '')}".strip()
    process = subprocess.Popen(  # noqa: S603 - Spark's own script
        ["/bin/sh", "-c", _DEAF, *command], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    jvm = SparkJvm(process)
    threading.Thread(target=_pass_on, args=(jvm,), name="spark-stderr", daemon=True).start()
    return jvm


def _has_log4j(environment: Mapping[str, str]) -> bool:
    folder = Path(environment.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf")
    options = (environment.get(name, "") for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"))
    return any(folder.glob("log4j2.*")) or any(_LOG4J in option for option in options)


def _pass_on(jvm: SparkJvm) -> None:
    """Copy the JVM's standard error to this process's own, without the lines of every start."""
    stream: Any = jvm.process.stderr
    for line in stream:
        if line.rstrip() in _NOISE:
            continue
        jvm.last_words.append(line.decode(errors="replace").rstrip())
        with suppress(OSError):  # nobody reads it: the JVM must not wait for that
            os.write(2, line)


def hear_signals_of_submit(hear: Callable[[int], None]) -> None:
    """Pass SIGTERM and SIGINT from the JVM to `hear`, in a thread of this process. The JVM runs on, and ends when this
    process does.

    With spark-submit, the process that others know is the JVM, and this one is its child: a signal to the JVM would end
    Spark below the job. Nothing happens if spark-submit did not start this process.
    """
    gateway: Any = SparkContext._gateway  # noqa: SLF001
    if _PORT not in os.environ or gateway is None or _CurrentGateway.hear is not None:
        return
    _CurrentGateway.hear = hear
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    misc = gateway.jvm.sun.misc
    for name in ("TERM", "INT"):
        misc.Signal.handle(misc.Signal(name), _SubmitSignals())


class _SubmitSignals:
    """A callback for the JVM."""

    def handle(self, received: Any) -> None:
        if _CurrentGateway.hear is not None:
            _CurrentGateway.hear(int(received.getNumber()))

    class Java:
        """The interface declaration that py4j needs."""

        implements = ("sun.misc.SignalHandler",)


def quiet_py4j() -> None:
    """Keep py4j's own lines out of the program's log, unless the program has chosen a level for py4j.

    At INFO, py4j's connections log in their finalizers. If one of py4j's daemon threads holds the lock of a log handler
    when the interpreter ends the thread, nobody releases it, and a finalizer that logs blocks the end of the program.
    """
    chatty = logging.getLogger("py4j")
    if chatty.level == logging.NOTSET:
        chatty.setLevel(logging.WARNING)
    for name in (None, "py4j.clientserver"):
        logging.getLogger(name).addFilter(_not_py4j)


def _not_py4j(record: logging.LogRecord) -> bool:
    """False for py4j's traceback of an error that it also raises, and of a connection that a signal has interrupted."""
    return not str(record.msg).endswith((" while sending command.", " while shutting down connection"))


class SparkDiedError(PenstockError):
    """Spark's JVM is dead."""


def spark_died(error: BaseException, last_checkpoint: str | None) -> SparkDiedError | None:
    """The error to report instead of a thread's error, if Spark's JVM has died.

    A JVM that another process started has no exit status here: a connection to it that is refused counts.
    """
    ours = _CurrentGateway.jvm if is_ours() else None
    broken = _is_broken(error, may_wait=ours is not None)
    death = ours.death(_DEATH_SECONDS if broken else 0.0) if ours is not None else None
    if isinstance(error, SparkDiedError) or (death is None and (ours is not None or not broken)):
        return None
    return SparkDiedError(
        f"{death or 'Spark does not answer any more'}. The state is as of checkpoint {last_checkpoint}; start the job "
        "again, and it processes what came after it"
    )


def is_ours() -> bool:
    gateway: Any = SparkContext._gateway  # noqa: SLF001
    return _CurrentGateway.jvm is not None and gateway is not None and gateway.proc is _CurrentGateway.jvm.process


def stop_context(context: SparkContext) -> None:
    """Stop the context, with the session that was made on it meanwhile, or forget it if its JVM is dead."""
    ours = _CurrentGateway.jvm if is_ours() else None
    if ours is not None and ours.death() is not None:
        forget()
        return
    failure: list[BaseException] = []
    stopping = threading.Thread(target=_stop, args=(context, failure), name="stop-spark", daemon=True)
    stopping.start()
    stopping.join(_STOP_SECONDS)
    if failure:
        raise failure[0]
    if not stopping.is_alive():
        return
    if ours is None:
        logger.warning("Spark has not stopped within %.0f s and is left to the process that started it", _STOP_SECONDS)
        return
    logger.warning("Spark's JVM (process %d) did not stop within %.0f s: killed", ours.process.pid, _STOP_SECONDS)
    ours.process.kill()
    stopping.join(_DEATH_SECONDS)
    forget()


def _stop(context: SparkContext, failure: list[BaseException]) -> None:
    session = SparkSession._instantiatedSession  # noqa: SLF001
    try:
        if session is not None and session.sparkContext is context:
            session.stop()
        else:
            context.stop()
    except BaseException as error:
        failure.append(error)


def _is_broken(error: BaseException | None, *, may_wait: bool) -> bool:
    """True if an error, or one that led to it, is a broken connection to the JVM.

    An error that is raised again may be in its own chain. With `may_wait`, an error that has other causes as well
    counts too: the caller then waits to see if the JVM is dead.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, ConnectionError | Py4JNetworkError) or _has_no_answer(error):
            return True
        if may_wait and (isinstance(error, EOFError) or _has_no_name(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _has_no_answer(error: BaseException) -> bool:
    """True if py4j met a broken connection while it waited for an answer.

    It then names only the call; an error in the JVM has a trace, or is a `Py4JJavaError`.
    """
    return type(error) is Py4JError and bool(_NO_ANSWER.fullmatch(str(error)))


def _has_no_name(error: BaseException) -> bool:
    """True if py4j did not find a class or a member. It says the same where the connection broke."""
    return type(error) is Py4JError and bool(_NO_NAME.fullmatch(str(error)))


def forget() -> None:
    """Forget the dead JVM: the next session of this process gets a new one."""
    context = SparkContext._active_spark_context  # noqa: SLF001
    if context is not None:
        server: Any = getattr(context, "_accumulatorServer", None)
        if server is not None:
            server.shutdown()
    with suppress(Exception):
        SparkContext._gateway.shutdown()  # type: ignore[union-attr]  # noqa: SLF001
    SparkContext._active_spark_context = None  # noqa: SLF001
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    SparkSession._instantiatedSession = None  # noqa: SLF001
    _CurrentGateway.jvm = None


def silence_broken_streams(context: SparkContext) -> None:
    """Silence PySpark's server for accumulators, which prints a traceback when the JVM's connection to it breaks."""
    server: Any = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


_TRACEBACK = "Traceback (most recent call last):"
_JAVA = re.compile(r"^(?:: |Caused by: )?((?:[\w$]+\.)+[\w$]*(?:Exception|Error): .+)$")
_UNTELLING = re.compile(r"^(penstock\.errors\.\w+|org\.apache\.spark\.SparkException): ")
"""Exception types that add nothing to their message."""
_BEHIND_PYTHON = re.compile(r"^\s*(at [\w.$]|SQLSTATE: |Driver stacktrace:|\.\.\. \d+ more|Caused by: )")
"""A line of Spark that follows a Python traceback."""


def cause_of(error: BaseException) -> str:
    """The message of the innermost cause, as one line."""
    text = str(error)
    if isinstance(error, PenstockError):
        return text
    found = _python_cause(text) or _java_cause(text) or [line.strip() for line in text.splitlines() if line.strip()][:2]
    return _UNTELLING.sub("", " ".join(found)) or type(error).__name__


def _python_cause(text: str) -> list[str]:
    """The exception at the end of the last Python traceback, which may have several lines."""
    _, begins, traceback = text.rpartition(_TRACEBACK)
    found: list[str] = []
    in_frame = False
    for line in traceback.splitlines() if begins else []:
        if _BEHIND_PYTHON.match(line):
            break
        in_frame = line.startswith('  File "') or (in_frame and line.startswith(" "))
        if in_frame:
            found.clear()
        elif line.strip():
            found.append(line.strip())
    return found


def _java_cause(text: str) -> list[str]:
    return [match[1] for line in text.splitlines() if (match := _JAVA.match(line))][-1:]
