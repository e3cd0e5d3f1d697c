"""Options of the commands about streams."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.api.retention import LEAST_RETENTION_BYTES, StreamRetention
from penstock.config.values.kinds import Bytes, Millis, Number, RefusedError
from penstock.errors import ConfigError

StreamName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The stream: `system.stream`, or a name without a dot for one of `local`.",
        show_default=False,
    ),
]
RetentionAge = Annotated[
    str | None,
    typer.Option(
        "--retention",
        metavar="AGE",
        help="How long a message is kept after it was appended, such as 7d or 12h; none: no limit.",
        show_default=False,
    ),
]
RetentionBytes = Annotated[
    str | None,
    typer.Option(
        "--retention-bytes",
        metavar="SIZE",
        help="How much each partition keeps, such as 10GB; none: no limit.",
        show_default=False,
    ),
]


def retention_of(age: str | None, size: str | None, before: StreamRetention) -> StreamRetention:
    """The limits that the options ask for. Raises ConfigError for a text that is none."""
    return StreamRetention(
        _limit("--retention", Millis(1), age, before.max_age_ms),
        _limit("--retention-bytes", Bytes(LEAST_RETENTION_BYTES), size, before.max_bytes),
    )


def _limit(option: str, kind: Number, text: str | None, before: int | None) -> int | None:
    if text is None:
        return before
    if text.strip().lower() == "none":
        return None
    try:
        return kind.parse(text)
    except RefusedError as error:
        reason = f" ({error})" if str(error) else ""
        raise ConfigError(f"`{option} {text}`: expected {kind.expected}, or `none`{reason}") from None
