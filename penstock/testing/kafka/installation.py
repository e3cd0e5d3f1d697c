"""A server that can be started: its jars, and what makes a start quick.

A formatted storage begins with a snapshot of the cluster's features, which is the same for every cluster: it is made
once. The classes that a server loads are kept as an archive, from which a JVM starts in half of the time.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import NotFoundError
from penstock.testing.kafka.jar_hashes import JAR_SHA256
from penstock.testing.kafka.jars import FETCH_S, find_java, identity_of, kafka_jars, locked, made_once
from penstock.testing.kafka.settings import properties

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
