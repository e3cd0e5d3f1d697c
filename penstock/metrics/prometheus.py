"""An HTTP endpoint that Prometheus scrapes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.exposition import choose_encoder

from penstock.errors import ConfigError
from penstock.metrics.http_server import ServedPage, SmallServer, tls_context
from penstock.metrics.snapshot import CounterValue, GaugeValue, MetricId, Snapshot, TimerValue

_NS = 1e9


class PrometheusEndpoint:
    """Answers each scrape with the metrics of that moment, until it is closed."""

    def __init__(
        self,
        job: str,
        host: str,
        port: int,
        snapshot: Callable[[], Snapshot],
        token: str | None = None,
        tls: tuple[str, str] | None = None,
    ) -> None:
        """Listen. Port 0 is any free one.

        Args:
            token: required of each request as a bearer token; None: nothing is required.
            tls: the PEM files with the server's certificate and its key; None: without TLS.

        Raises:
            ConfigError: the address cannot be listened on, or the files cannot be used.
        """
        registry = CollectorRegistry(auto_describe=False)
        registry.register(JobCollector(job, snapshot))

        def answer(accept: str) -> tuple[str, bytes]:
            encode, kind = choose_encoder(accept)
            return kind, encode(registry)

        try:
            context = None if tls is None else tls_context(*tls)
        except OSError as error:
            raise ConfigError(
                "metrics.prometheus.tls.certificate.file and metrics.prometheus.tls.key.file cannot be used: "
                f"{error.strerror or error}. Give two PEM files that belong together"
            ) from error
        try:
            self._server = SmallServer(host, port, ServedPage(answer, token), context)
        except OSError as error:
            raise ConfigError(
                f"metrics.prometheus.port: nothing can listen on {host}:{port}: {error.strerror}. Choose a free port, "
                "and with metrics.prometheus.host an address of this host"
            ) from error
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.close()


class JobCollector:
    """A job's metrics as Prometheus's families. Each has the labels `job` and `source`, and if it is about one of
    several: `stage`, `store`, `backend` or `stream`."""

    def __init__(self, job: str, snapshot: Callable[[], Snapshot]) -> None:
        self._job = job
        self._snapshot = snapshot

    def collect(self) -> Iterator[Any]:
        families: dict[str, Any] = {}
        seen: set[tuple[str, tuple[str, ...]]] = set()
        for key, value in sorted(self._snapshot().items(), key=lambda item: item[0]):
            name, labels = prometheus_name(key)
            form = _FORMS[type(value)]
            if isinstance(value, TimerValue):
                name = f"{name.removesuffix('_ns')}_seconds"
            label_names, values = ("job", *labels), (self._job, *labels.values())
            family = families.setdefault(name, form(name, f"See `{key.name}` in docs/metrics.md.", labels=label_names))
            if isinstance(family, form) and (name, values) not in seen:  # two names may be one to Prometheus
                seen.add((name, values))
                _add(family, values, value)
        yield from families.values()


_FORMS: dict[type, Any] = {
    CounterValue: CounterMetricFamily,
    GaugeValue: GaugeMetricFamily,
    TimerValue: SummaryMetricFamily,
}


def prometheus_name(key: MetricId) -> tuple[str, dict[str, str]]:
    """A metric's name for Prometheus, without the unit of a timer, and its labels but `job`.

    Example:
        >>> prometheus_name(MetricId("Partition 0", "store.totals", "cache-hits"))
        ('penstock_store_cache_hits', {'source': 'Partition 0', 'store': 'totals'})
    """
    kind, _, subject = key.group.partition(".")
    parts, labels = ["penstock", kind, key.name], {"source": key.source}
    if kind == "user":
        parts.insert(2, subject)
    elif subject:
        labels[kind] = subject
    return re.sub(r"[^a-zA-Z0-9_]", "_", "_".join(parts)), labels


def _add(family: Any, labels: tuple[str, ...], value: object) -> None:
    match value:
        case CounterValue(count):
            family.add_metric(labels, count)
        case GaugeValue(number):
            family.add_metric(labels, number)
        case TimerValue(count, total_ns, _):
            family.add_metric(labels, count_value=count, sum_value=total_ns / _NS)
