"""Keys of what a job may have: side inputs, pushed tables, a registry of schemas, and metrics that others collect."""

from __future__ import annotations

from typing import Literal, TypeAlias

from penstock.config.key import AbsentDefault, Settings, Topic, key
from penstock.config.kinds import LocalPath, Millis, Number, OneOf, StreamName, Verbatim

OnSideError: TypeAlias = Literal["fail", "continue"]

# fmt: off


class SideInputSettings(Settings):
    """`side.inputs.*`."""

    bootstrap_timeout_ms = key("side.inputs.bootstrap.timeout.ms", Topic.REFERENCE_DATA, Millis(1), "600000",
        "The time that a start may take to fill stores from their side inputs, up to the end that these streams had "
        "when it began.")
    max_age_ms = key("side.inputs.max.age.ms", Topic.REFERENCE_DATA, Millis(0), "86400000",
        "At a start, a host uses the copy that it has kept of a store with side inputs if the copy was updated within "
        "this time. Otherwise the store is filled again from the oldest message.")
    on_error = key("side.inputs.on.error", Topic.REFERENCE_DATA, OneOf[OnSideError](("fail", "continue")), "fail",
        "The reaction if, after the start, a side input cannot be read or processed and retries do not help: `fail` "
        "ends the run; `continue` keeps the data at hand, logs the error repeatedly, and keeps trying.")


class TableSettings(Settings):
    """`tables.*`."""

    poll_ms = key("tables.poll.ms", Topic.REFERENCE_DATA, Millis(1), "5000",
        "The time between two looks for new versions of the job's pushed tables, and for a version chosen by "
        "`penstock table use`.")
    versions_retained = key("tables.versions.retained", Topic.REFERENCE_DATA, Number(1), "3",
        "The number of versions of each pushed table that are kept, besides those in use and the one chosen by "
        "`penstock table use`.")


class SchemaRegistrySettings(Settings):
    """`schema.registry.*`."""

    url = key("schema.registry.url", Topic.SYSTEMS, Verbatim(), AbsentDefault("no registry"),
        "The address of the schema registry that serdes with `registry=` use; several addresses of one registry are "
        "separated by commas. `memory://name` is a registry in the process, for tests.")
    option = key("schema.registry.<option>", Topic.SYSTEMS, Verbatim(), AbsentDefault("the client's default"),
        "An option of confluent-kafka's client of registries, such as `basic.auth.user.info`, `ssl.ca.location` or "
        "`timeout` (seconds, 10 by default).")


class MetricsSettings(Settings):
    """`metrics.*`."""

    prometheus_port = key("metrics.prometheus.port", Topic.MONITORING, Number(0, 65535), AbsentDefault("no endpoint"),
        "The port on the driver's host where Prometheus scrapes the job's metrics; 0 for any free port.")
    prometheus_host = key("metrics.prometheus.host", Topic.MONITORING, Verbatim(), "127.0.0.1",
        "The address on which the endpoint for Prometheus listens.")
    prometheus_token = key("metrics.prometheus.token", Topic.MONITORING, Verbatim(), AbsentDefault("none"),
        "The bearer token that scrapes must carry. Without it, the endpoint answers every request.")
    prometheus_certificate = key("metrics.prometheus.tls.certificate.file", Topic.MONITORING,
        LocalPath(), AbsentDefault("no TLS"),
        "A PEM file with the certificate of the endpoint, which then speaks TLS.")
    prometheus_key = key("metrics.prometheus.tls.key.file", Topic.MONITORING, LocalPath(), AbsentDefault("no TLS"),
        "A PEM file with the private key of that certificate.")
    reporter_stream = key("metrics.reporter.snapshot.stream", Topic.MONITORING, StreamName(), AbsentDefault("none"),
        "The stream to which all metrics are appended at an interval, in the format of Samza's metrics snapshots.",
        "Samza")
    reporter_interval_s = key("metrics.reporter.snapshot.interval", Topic.MONITORING, Number(1), "60",
        "The time between two snapshots in that stream, in seconds.", "Samza")

    @property
    def prometheus_tls(self) -> tuple[str, str] | None:
        """The files of certificate and key."""
        certificate, private = self.prometheus_certificate, self.prometheus_key
        return None if certificate is None or private is None else (str(certificate), str(private))

# fmt: on
