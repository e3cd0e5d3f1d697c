"""A real Apache Kafka broker for tests: one node on loopback, with its data in a temporary folder.

It needs Java 17 or newer and `penstock-streams[kafka]`. The jars of the server are fetched once, with `mvn` or with
the Ivy that PySpark brings along, and kept in `~/.cache/penstock` (with XDG_CACHE_HOME: in
`$XDG_CACHE_HOME/penstock`). `require_kafka` fails where they cannot be had, and a test can then be skipped.

Example, in a test::

    with KafkaBroker() as broker:
        producer = confluent_kafka.Producer(broker.client_options())
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.errors import ConfigError
from penstock.testing import kafka_server as server
from penstock.testing.kafka_jars import FETCH_S, KAFKA_VERSION
from penstock.testing.kafka_settings import (
    ALONE,
    BrokerNode,
    Security,
    checked,
    client_options,
    properties,
    server_settings,
)

__all__ = ["KAFKA_VERSION", "KafkaBroker", "Security", "require_kafka"]

_START_S = 120.0
_STOP_S = 60.0
_PLAIN: tuple[Security, ...] = ("PLAINTEXT",)
_OUTPUT = "output.log"
"""The file for output of the JVM itself."""
_SHOWN = 3000


def require_kafka(fetch_s: float = FETCH_S, retry_after_s: float = 0.0) -> None:
    """Make sure that a broker can be started on this machine: fetch what is missing. Later calls return at once.

    Args:
        fetch_s: the time limit of each of the two ways to fetch the jars of the server, in seconds.
        retry_after_s: a fetch that failed less than so many seconds ago, in this process or another one, is not tried
            again. With it, the processes of a test run without network do not wait one after the other.

    Raises:
        NotFoundError: there is no Java, or the jars could not be fetched. The message says why.
        CorruptError: a jar is not the one that it should be. It is deleted, and the next call fetches it again.
        ConfigError: the package `confluent-kafka` is not installed.
    """
    server.admin_module()
    server.installation(fetch_s, retry_after_s, _make_archive)


class KafkaBroker:
    """A Kafka broker, from `start` (or the beginning of a `with` block) until `stop`.

    It listens on 127.0.0.1 on ports that were free. It keeps them, and its data, until `close` (or the end of the
    block): a broker that was stopped or killed can be started again, and is the same to its clients. However the
    process that made it ends, the broker ends with it and leaves no file behind.

    The broker is as small and as quick as a test needs it: topics of the server itself have one partition, messages may
    have 64 MB, retention and compaction are looked at every second, and missing topics are not created. What is
    acknowledged survives `kill`, as with any broker, but not a failure of the machine.

    Args:
        security: the kinds of listeners that it has. `bootstrap_servers` and `client_options` use the first one by
            default. For TLS, it makes an authority and certificates. `SASL_*` knows the user `penstock`, with the
            mechanism PLAIN.
        settings: settings of the server, by their names in `server.properties`.
        heap_mb: the largest heap, in MiB.
        java_options: options of the JVM; by default those of a quick start. For a benchmark, give an empty list.
        start_timeout_s: how long a start may take, in seconds.

    Raises:
        ConfigError: a setting is given that the broker decides, or a package is missing.
    """

    def __init__(
        self,
        *,
        security: Collection[Security] = _PLAIN,
        settings: Mapping[str, object] | None = None,
        heap_mb: int = 256,
        java_options: Sequence[str] = server.QUICK,
        start_timeout_s: float = _START_S,
    ) -> None:
        self._security = checked(security)
        self._settings = dict(settings or {})
        self._java_options = (f"-Xmx{heap_mb}m", *java_options)
        self._start_timeout_s = start_timeout_s
        self._password = secrets.token_hex(16)
        self._place: server.BrokerPlace | None = None
        self._discard: Callable[[], object] | None = None

    def start(self) -> Self:
        """Start the broker, and wait until it answers. A broker that was stopped finds its data again.

        Raises:
            NotFoundError: this machine has no Kafka, see `require_kafka`.
            PenstockTimeoutError: it did not answer within `start_timeout_s`.
            RetryableError: it ended while it started. The message has the end of its log.
        """
        server.admin_module()
        if self.running:
            raise ConfigError("this broker runs already: `restart` stops it first")
        self._start(server.installation(make_archive=_make_archive))
        return self

    def stop(self) -> None:
        """Stop the broker as an operator does. It keeps its ports and data; a frozen one is resumed first."""
        if self._place is not None and self._place.process is not None:
            self._place.process.terminate(_STOP_S)

    def kill(self) -> None:
        """Kill the broker (SIGKILL). It keeps its ports and data."""
        if self._place is not None and self._place.process is not None:
            self._place.process.kill()

    def restart(self) -> None:
        """Stop the broker and start it again, on the same ports and data."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Stop the broker where it is (SIGSTOP): connections stay open, and nothing answers until `resume`."""
        self._process.freeze()

    def resume(self) -> None:
        """Let a frozen broker continue."""
        self._process.resume()

    def close(self) -> None:
        """End the broker, and remove its data. It cannot be started again on the same ports."""
        if self._discard is not None:
            self._discard()
        self._place = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """True if the broker's process exists, frozen or not."""
        process = self._place.process if self._place else None
        return process is not None and process.status is None

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        return self._process.pid

    @property
    def folder(self) -> Path:
        """The temporary folder with the broker's data, settings, certificates and log."""
        return self._located.folder

    @property
    def bootstrap_servers(self) -> str:
        """The address of the first listener, such as `127.0.0.1:40123`."""
        return self._servers(self._security[0])

    def client_options(self, security: Security | None = None) -> dict[str, Any]:
        """The options of a client of `confluent_kafka` that speaks to this broker.

        Args:
            security: the listener; by default the first one.
        """
        kind = security or self._security[0]
        return dict(client_options(self._servers(kind), kind, self._located.certificates, self._password))

    def system_config(self, system: str = "kafka", security: Security | None = None) -> dict[str, str]:
        """The configuration of a job whose system of this name is this broker.

        Args:
            system: the name of the system, as in `app.input("kafka.flights")`.
            security: the listener; by default the first one.
        """
        options = {f"systems.{system}.consumer.{name}": value for name, value in self.client_options(security).items()}
        return {f"systems.{system}.samza.factory": "kafka", **options}

    @property
    def log(self) -> str:
        """The end of what the broker has logged: warnings and errors."""
        texts = [self._located.folder / name for name in (_OUTPUT, server.LOG)]
        return "".join(text.read_text(encoding="utf-8", errors="replace")[-_SHOWN:] for text in texts if text.exists())

    def _start(self, kafka: server.Installation) -> None:
        place = self._place or self._new_place(kafka)
        is_new = place.process is None
        command = kafka.server(place.folder, self._java_options)
        process = server.GuardedProcess(command, place.folder, place.folder / _OUTPUT)
        place.process = process
        port = place.ports["PLAINTEXT"]
        try:
            server.await_answer(port, self._start_timeout_s, lambda: process.status, lambda: self.log)
        except BaseException:
            process.kill()
            if is_new:
                self.close()
            raise

    def _new_place(self, kafka: server.Installation) -> server.BrokerPlace:
        """A place with formatted storage and settings."""
        place = self._take_ports()
        self._prepare(place, kafka.features, ALONE)
        return place

    def _take_ports(self) -> server.BrokerPlace:
        place = server.new_place(["CONTROLLER", *dict.fromkeys(("PLAINTEXT", *self._security))])
        self._discard = weakref.finalize(self, place.remove)
        self._place = place
        return place

    def _prepare(self, place: server.BrokerPlace, features: Path, node: BrokerNode, cluster: str = "") -> None:
        """Format the storage, and write the settings."""
        try:
            if any(name.endswith("SSL") for name in self._security):
                from penstock.testing.kafka_certificates import new_certificates

                place.certificates = new_certificates(place.folder)
            data = place.folder / "data"
            settings = server_settings(str(data), place.ports, place.certificates, self._password, self._settings, node)
            (place.folder / "server.properties").write_text(properties(settings), encoding="utf-8")
            server.format_storage(features, data, node.number, cluster)
        except BaseException:
            self.close()
            raise

    def _servers(self, security: Security) -> str:
        port = self._located.ports.get(security)
        if port is None:
            raise ConfigError(f"this broker has no listener `{security}`: name it in `security`")
        return f"127.0.0.1:{port}"

    @property
    def _located(self) -> server.BrokerPlace:
        if self._place is None:
            raise ConfigError("this broker has not been started, or is closed already")
        return self._place

    @property
    def _process(self) -> server.GuardedProcess:
        process = self._located.process
        if process is None or process.status is not None:
            raise ConfigError("this broker does not run: `start` it")
        return process


def _make_archive(kafka: server.Installation, archive: Path) -> None:
    """Run a broker, and keep the classes that its JVM has loaded."""
    broker = KafkaBroker(
        java_options=(*server.QUICK, f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
    )
    try:
        broker._start(kafka)  # noqa: SLF001 - `start` would ask for the archive
        broker.stop()
    finally:
        broker.close()
    if not archive.exists():
        archive.touch()  # a JVM that makes none; it is not asked again
