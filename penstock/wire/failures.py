"""Errors of a container on their way to its caller.

They travel in messages. What gRPC has for errors, the metadata at a call's end, takes some kilobytes, each byte of
other scripts three times and all of it twice; with more, the caller learns nothing but that there was too much.
"""

from __future__ import annotations

from penstock.wire.protocol import dump, load

_MARK = b"\xc1penstock: failed\n"
"""No answer begins with it: 0xc1 is no type of MessagePack."""
LONGEST_ERROR = 1 << 18
"""The most characters of an error that travel; of a longer one, the middle is left out."""
_LONGEST_STATUS = 500


def carried(error: BaseException, *, kind: bool = True) -> bytes:
    """The message for an error; `kind`: its type stands in front of its text."""
    text = f"{type(error).__name__}: {error}" if kind else str(error)
    return _MARK + dump(cut(text, LONGEST_ERROR).encode(errors="backslashreplace").decode())


def carried_error(message: bytes | None) -> str | None:
    """The error that a message brings; None if it is an answer."""
    if message is None or not message.startswith(_MARK):
        return None
    text: str = load(str, message[len(_MARK) :])
    return text


def status_text(error: BaseException) -> str:
    """The beginning of an error, as much as gRPC takes as the status of a call."""
    return cut(str(error).encode("ascii", "backslashreplace").decode(), _LONGEST_STATUS)


def cut(text: str, longest: int) -> str:
    """The text, without its middle if it is longer.

    Example:
        >>> cut("0123456789" * 3, 10)
        '01234 ... (20 characters left out) ... 56789'
    """
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} ... ({len(text) - 2 * half:,} characters left out) ... {text[-half:]}"
