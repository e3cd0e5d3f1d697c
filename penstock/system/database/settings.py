"""The settings of a system of a database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """The settings in `systems.<name>.*`."""

    name: str
    url: str
    """SQLAlchemy's, without a password."""
    password: str | None = field(default=None, repr=False)
    partitions: int = PARTITIONS
    """The number of partitions of each table."""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By table, the columns of its key; a table that is missing here has a primary key."""

    @property
    def not_read(self) -> str:
        """The reason why its tables are no inputs."""
        return (
            f"the system `{self.name}` writes tables of a database and does not read them: send its changes to Kafka, "
            "or read the table in a query of PySpark, as in docs/databases.md"
        )
