"""A server, from what it is started with to its first answer.

A formatted storage begins with a snapshot of the cluster's features, which is the same for every cluster: it is made
once. The classes that a server loads are kept as an archive, from which a JVM starts in half of the time.

The program ends with the process that started it, whatever ends that one, and takes its folder along. A broker keeps
its folder and ports while it is stopped.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, NotFoundError, PenstockTimeoutError, RetryableError
from penstock.testing.kafka_jars import FETCH_S, JAR_SHA256, find_java, identity_of, kafka_jars, locked, made_once
from penstock.testing.kafka_settings import Certificates, Listener, properties

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of Java for a server that ends before a better compiler would pay."""
LOG = "server.log"
_FORMAT_S = 120.0
_MAKE_S = 600.0
"""Longest wait of a process for another one that makes files for the jars."""
_SHOWN = 500
_LOG = """status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = ${sys:penstock.folder}/server.log
appender.file.filePattern = ${sys:penstock.folder}/server.log.1
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{1}: %m%n
appender.file.policies.type = SizeBasedTriggeringPolicy
appender.file.policies.size = 4MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
"""
"""The server's log: warnings, in two files of at most 4 MB."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The files from which a server starts."""

    java: Path
    jars: Path
    features: Path
    """The first snapshot of the metadata of a new cluster."""
    archive: Path
    """The archive of classes. It is empty if this Java made none."""

    def server(self, folder: Path, java_options: Sequence[str]) -> list[str]:
        """The command that runs a server with the settings `server.properties` and the log in this folder."""
        (folder / "log4j2.properties").write_text(_LOG, encoding="utf-8")
        classes = []
        if self.archive.exists() and self.archive.stat().st_size:
            classes = [
                "-Xshare:auto",
                "-Xlog:cds=off",
                "-Xlog:cds+dynamic=off",
                f"-XX:SharedArchiveFile={self.archive}",
            ]
        return [
            str(self.java),
            *classes,
            *java_options,
            f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
            f"-Dpenstock.folder={folder}",
            "-cp",
            self._classpath(),
            "kafka.Kafka",
            str(folder / "server.properties"),
        ]

    def make_features(self, path: Path) -> None:
        """Format a storage, and keep the snapshot that it begins with. Raises NotFoundError if this Java cannot."""
        with tempfile.TemporaryDirectory(prefix="penstock-kafka-") as temporary:
            settings = Path(temporary) / "server.properties"
            text = {
                "process.roles": "broker,controller",
                "node.id": "1",
                "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": "1@127.0.0.1:9093",
                "log.dirs": f"{temporary}/data",
            }
            settings.write_text(properties(text), encoding="utf-8")
            command = [str(self.java), *QUICK, "-cp", self._classpath(), "kafka.tools.StorageTool"]
            done = subprocess.run(  # noqa: S603 - a program of this machine, with our own arguments
                [*command, "format", "-t", new_id(), "-c", str(settings)],
                capture_output=True,
                timeout=_FORMAT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
            if done.returncode:
                said = (done.stderr or done.stdout).decode(errors="replace").strip()
                raise NotFoundError(f"{self.java} cannot run Kafka, which needs Java 17 or newer: {said[:_SHOWN]}")
            shutil.copyfile(Path(temporary) / "data" / self.features.name, path)

    def _classpath(self) -> str:
        return ":".join(str(self.jars / name) for name in sorted(JAR_SHA256))


def installation(
    fetch_s: float = FETCH_S,
    retry_after_s: float = 0.0,
    make_archive: Callable[[Installation, Path], None] | None = None,
) -> Installation:
    """The server that this machine has. Missing files are fetched and made first.

    Args:
        fetch_s: the time limit of each way to fetch the jars, in seconds.
        retry_after_s: a fetch that failed less than so many seconds ago is not tried again.
        make_archive: runs a server for a moment, so that Java writes the archive of its classes to this path.

    Raises:
        NotFoundError: there is no Java, or the jars could not be fetched.
        CorruptError: a jar is not the one that it should be.
    """
    java = find_java()
    jars = kafka_jars(fetch_s, retry_after_s)
    found = Installation(java, jars, jars / "bootstrap.checkpoint", jars / f"classes-{identity_of(java)}.jsa")
    if not (found.features.exists() and found.archive.exists()):
        with locked(jars, _MAKE_S):
            made_once(found.features, found.make_features)
            if make_archive is not None:
                made_once(found.archive, lambda path: make_archive(found, path))
    return found


def format_storage(features: Path, folder: Path, node: int = 1, cluster: str = "") -> None:
    """Make a folder the storage of a node in a cluster, as `kafka-storage format` does; by default in a new cluster."""
    folder.mkdir()
    shutil.copyfile(features, folder / features.name)
    meta = {"version": "1", "node.id": str(node), "cluster.id": cluster or new_id(), "directory.id": new_id()}
    (folder / "meta.properties").write_text(properties(meta), encoding="utf-8")


def new_id() -> str:
    """A new id as Kafka writes them. It does not begin with a dash, which the command line takes for an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


_GUARD = """
exec 3<&0 </dev/null
(
    read -r _ <&3 && exit
    kill -9 $$
    tries=0
    while kill -0 $$ 2>/dev/null && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
    rm -rf -- "$0"
) &
exec "$@" 3<&-
"""
"""The shell becomes the program. Beside it waits a shell for the end of a pipe that this process holds: it comes with
this process's death as well, and then that shell kills the program and removes the folder. A line on the pipe says that
the program has ended already, and its process id is another's from now on."""
_POLL_S = 0.01


class GuardedProcess:
    """A running program. One thread at a time uses it.

    Args:
        command: the program and its arguments.
        folder: removed if this process dies while the program runs.
        output: what the program writes goes to the end of this file.
    """

    def __init__(self, command: Sequence[str], folder: Path, output: Path) -> None:
        with output.open("ab") as file:
            self._process = subprocess.Popen(  # noqa: S603 - a program of this machine, with our own arguments
                ["/bin/sh", "-c", _GUARD, str(folder), *command],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
                process_group=0,  # Ctrl-C in a terminal is for the tests, and they say when the program ends
            )
        self._frozen = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, negative after a signal; None while the program runs."""
        status = self._process.poll()
        if status is not None:
            self._release()
        return status

    def freeze(self) -> None:
        """Stop the program where it is (SIGSTOP), until `resume`."""
        self._signal(signal.SIGSTOP)
        self._frozen = True

    def resume(self) -> None:
        """Let a frozen program continue. Programs that are not frozen are left as they are."""
        if self._frozen:
            self._signal(signal.SIGCONT)
            self._frozen = False

    def terminate(self, within_s: float) -> bool:
        """Ask the program to end, and wait. Returns True if it did; after `within_s` it is killed."""
        self._signal(signal.SIGTERM)
        self.resume()
        deadline = time.monotonic() + within_s
        while self.status is None:
            if time.monotonic() > deadline:
                self.kill()
                return False
            time.sleep(_POLL_S)
        return True

    def kill(self) -> None:
        """End the program at once (SIGKILL), and wait until it is gone."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._release()

    def _signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)  # which looks first whether the program is still there

    def _release(self) -> None:
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            with contextlib.suppress(BrokenPipeError):
                pipe.write(b"\n")
                pipe.flush()
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@dataclass(slots=True)
class BrokerPlace:
    """The folder and the ports of one broker, and the process that has them now."""

    folder: Path
    ports: dict[Listener, int]
    held: list[socket.socket]
    certificates: Certificates | None = None
    process: GuardedProcess | None = None
    owner: int = field(default_factory=os.getpid)

    def remove(self) -> None:
        """End the process, and leave nothing behind. In a child that was forked from the owner nothing happens."""
        if os.getpid() != self.owner:
            return
        if self.process is not None:
            self.process.kill()
        for held in self.held:
            held.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def new_place(listeners: Sequence[Listener]) -> BrokerPlace:
    """A new folder, and a port for each listener.

    The ports are bound here as long as the place is there. That leaves a server of this machine free to listen on them,
    which binds them as shared too (SO_REUSEADDR, as Java does), but the system gives them to nobody else.
    """
    with contextlib.ExitStack() as undo:
        held = []
        for _ in listeners:
            held.append(undo.enter_context(socket.socket()))
            held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held[-1].bind(("127.0.0.1", 0))
        ports = {name: held[n].getsockname()[1] for n, name in enumerate(listeners)}
        folder = Path(tempfile.mkdtemp(prefix="penstock-kafka-"))
        undo.pop_all()
    return BrokerPlace(folder, ports, held)


_ANSWER_POLL_S = 0.02
_SILENT = logging.Logger("penstock.testing.kafka", logging.CRITICAL + 1)
"""Mutes the client, which logs many errors while a server is starting."""


def admin_module() -> ModuleType:
    """Raises ConfigError if the package `confluent-kafka` is not installed."""
    try:
        from confluent_kafka import admin
    except ImportError:
        raise ConfigError(
            "a Kafka broker for tests needs the package `confluent-kafka`: `pip install 'penstock-streams[kafka]'`"
        ) from None
    return admin


def await_answer(port: int, within_s: float, status: Callable[[], int | None], log: Callable[[], str]) -> None:
    """Wait until a broker without TLS answers on this port.

    Raises:
        PenstockTimeoutError: it did not within that time.
        RetryableError: its process ended, with this status.
    """
    deadline = time.monotonic() + within_s
    client = None
    while True:
        ended = status()
        if ended is not None:
            raise RetryableError(f"the Kafka broker ended with status {ended} while it started. Its log:\n{log()}")
        if time.monotonic() > deadline:
            raise PenstockTimeoutError(
                f"the Kafka broker did not answer within {within_s:.0f} s (start_timeout_s). Its log:\n{log()}"
            )
        if client is None:
            client = _client(port) if _listens(port) else None
        if client is not None and _knows_a_broker(client):
            return
        time.sleep(_ANSWER_POLL_S)


def _client(port: int) -> AdminClient:
    client: AdminClient = admin_module().AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}, logger=_SILENT)
    return client


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _knows_a_broker(client: AdminClient) -> bool:
    from confluent_kafka import KafkaException

    try:
        return bool(client.list_topics(timeout=1).brokers)
    except KafkaException:
        return False
