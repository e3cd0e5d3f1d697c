"""The retention of streams."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ConfigError

LEAST_RETENTION_BYTES = 1 << 20
"""The least size limit of a partition. The file of an empty one has some 10 KB."""
_AGES = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))
_SIZES = (("TB", 1 << 40), ("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10), (" bytes", 1))


@dataclass(frozen=True, slots=True)
class StreamRetention:
    """When a stream deletes its oldest messages: each partition by itself, when something is appended to it.

    Args:
        max_age_ms: how long a message is kept after it was appended, in milliseconds. The message's timestamp does not
            count. None: of any age.
        max_bytes: how many bytes a partition may take. None: any number.

    Raises:
        ConfigError: the age is not positive, or the size is less than 1 MB.

    Example:
        >>> str(StreamRetention(max_age_ms=7 * 86_400_000, max_bytes=10 << 30))
        '7d, 10GB per partition'
        >>> str(StreamRetention())
        'forever'
    """

    max_age_ms: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.max_age_ms is not None and self.max_age_ms < 1:
            raise ConfigError(f"a stream cannot keep its messages for {self.max_age_ms} ms: give at least 1 ms")
        if self.max_bytes is not None and self.max_bytes < LEAST_RETENTION_BYTES:
            raise ConfigError(
                f"a partition cannot be kept below {self.max_bytes} bytes: give at least {LEAST_RETENTION_BYTES}"
            )

    @property
    def is_limited(self) -> bool:
        """True if messages are ever deleted."""
        return self.max_age_ms is not None or self.max_bytes is not None

    def __str__(self) -> str:
        age = [] if self.max_age_ms is None else [_exact(self.max_age_ms, _AGES)]
        size = [] if self.max_bytes is None else [f"{_exact(self.max_bytes, _SIZES)} per partition"]
        return ", ".join(age + size) or "forever"


def _exact(value: int, units: tuple[tuple[str, int], ...]) -> str:
    unit, factor = next(each for each in units if value % each[1] == 0)
    return f"{value // factor}{unit}"
