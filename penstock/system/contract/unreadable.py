"""The message in place of a row that its system could not read: the reason, and the row as it is there."""

from __future__ import annotations

from typing import NamedTuple

_MARK = b"\0unreadable row\0"
"""No text of a file or a system begins so, and no serde of rows takes it."""


class UnreadableRow(NamedTuple):
    """A row that could not be read."""

    reason: str
    """Says where it is and why."""
    data: bytes | None
    """The row as it is in the file; None if the format has no text of a row."""

    def message(self) -> bytes:
        """The bytes of the message.

        Example:
            >>> row = UnreadableRow("`a.csv`, line 9: it has 1 cell, and the header has 2", b"b")
            >>> unreadable_row(row.message()) == row, unreadable_row(b"b")
            (True, None)
        """
        reason = self.reason.replace("\0", "\\0").encode("utf-8", "backslashreplace")
        return _MARK + reason + (b"" if self.data is None else b"\0" + self.data)


def unreadable_row(data: bytes | None) -> UnreadableRow | None:
    """The unreadable row in the bytes of a message; None if the message is another one."""
    if data is None or not data.startswith(_MARK):
        return None
    reason, has_data, own = data.removeprefix(_MARK).partition(b"\0")
    return UnreadableRow(reason.decode("utf-8", "replace"), own if has_data else None)
