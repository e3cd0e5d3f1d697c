"""The sections of the reference of keys: a section for each task of a user."""

from __future__ import annotations

from enum import Enum


class Topic(Enum):
    """A section of docs/configuration.md: its title, and the text before its keys. The order is that of the page."""

    JOB = (
        "Name a job and give it a place",
        "With a second host, the root must be object storage or a shared folder: [deployment](deployment.md).",
    )
    SYSTEMS = (
        "Connect systems",
        (
            "A system is a place of streams, such as a Kafka cluster: [systems and streams](systems.md), "
            "[Kafka](kafka.md), [lakes](lakes.md), [databases](databases.md), [files](files.md), "
            "[schemas](schemas.md)."
        ),
    )
    INPUTS = (
        "Choose where inputs are read from",
        "These keys count where a checkpoint does not say it. [Startpoints](startpoints.md) move a job that has one.",
    )
    OUTPUTS = (
        "Set guarantees of outputs and the retention of streams",
        "[Exactly-once output](exactly-once.md) says what it costs and where it is possible.",
    )
    PARTITIONS = "Choose tasks and partitions", "[Systems and streams](systems.md) says how inputs become tasks."
    BATCHES = "Choose between throughput and latency", "[Latency](latency.md) measures these keys."
    TIME = (
        "Control event time, windows and timers",
        "See [event time](time.md), [windows](windows.md) and [timers](timers.md).",
    )
    COMMITS = (
        "Control commits and checkpoints",
        "A commit makes state and positions durable as a checkpoint: [operations](operations.md).",
    )
    STORES = (
        "Choose stores and limit their memory",
        "See [stores](stores.md), and [deployment](deployment.md) for the memory of a container.",
    )
    BACKUPS = "Choose where state is backed up", "[State backends](state-backends.md) compares them."
    CHANGELOGS = "Tune changelog streams", "These keys count with the [backend `changelog-stream`](state-backends.md)."
    REFERENCE_DATA = "Keep reference data", "See [side inputs](side-inputs.md) and [pushed tables](pushed-tables.md)."
    STOPS = "Control starts, drains and stops", "See [startpoints](startpoints.md) and [drains](drain.md)."
    FAILURES = "Control failures and retries", "[Operations](operations.md) says what ends a job and what does not."
    STANDBYS = "Restart quickly", "See [standbys](standbys.md)."
    MONITORING = "Watch a job", "See [operations](operations.md), [dashboard](dashboard.md) and [metrics](metrics.md)."
    SECURITY = (
        "Protect a job",
        (
            "[SECURITY.md](../SECURITY.md) says against whom. The section before has the tokens of the dashboard and "
            "of metrics."
        ),
    )
    SPARK = "Pass settings to Spark", "See [clusters](clusters.md) and [Kubernetes](kubernetes.md)."

    def __init__(self, title: str, text: str) -> None:
        self.title = title
        self.text = text
