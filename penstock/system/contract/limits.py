"""The records that a stream refuses from any writer. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_DOUBT = 1.1
"""A tolerance, because another program compresses, which may be somewhat better at it."""


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """The records that a stream refuses, as far as that is certain. The default: none.

    Args:
        needs_key: records without a key are refused.
        max_bytes: the most bytes of a record as it is sent, with its key; None: any number.
        compression: the compression before sending: `gzip`, `snappy`, `lz4`, `zstd`, or None.
        max_plain_bytes: the most bytes before compression; None: any number.

    Example:
        >>> RecordLimits(needs_key=True).refused(None, b"v")
        'it has no key, and the stream is compacted'
        >>> limits = RecordLimits(max_bytes=1000, compression="lz4")
        >>> limits.refused(b"k", b"v" * 2000) is None  # compressed, it is smaller
        True
    """

    needs_key: bool = False
    max_bytes: int | None = None
    compression: str | None = None
    max_plain_bytes: int | None = None

    @property
    def remedy(self) -> str:
        """The advice for an application whose messages are refused: a sentence without its full stop, or nothing."""
        return ""

    @property
    def least_bytes(self) -> int | None:
        """A record of at most so many bytes is not too large."""
        return min((each for each in (self.max_bytes, self.max_plain_bytes) if each is not None), default=None)

    def refused(self, key: bytes | None, value: bytes | None, headers_bytes: int = 0) -> str | None:
        """The reason why the stream refuses a record for certain; None if it may take it.

        Args:
            key, value: the record's bytes.
            headers_bytes: the bytes of the names and values of its headers.
        """
        if self.needs_key and key is None:
            return "it has no key, and the stream is compacted"
        size = len(key or b"") + len(value or b"") + headers_bytes
        if self.max_plain_bytes is not None and size > self.max_plain_bytes:
            return f"it has {size:,} bytes, and the client sends at most {self.max_plain_bytes:,}"
        if self.max_bytes is None or size <= self.max_bytes:
            return None
        if self.compression is None:
            return f"it has {size:,} bytes, and the stream takes at most {self.max_bytes:,}"
        import pyarrow as pa  # late: commands load this module

        sent = len(pa.Codec(self.compression).compress((key or b"") + (value or b""), asbytes=True))  # and headers
        if sent <= self.max_bytes * _DOUBT:
            return None
        return f"it has {size:,} bytes, {sent:,} when compressed, and the stream takes at most {self.max_bytes:,}"
