"""The number of kept checkpoints: the value of `task.checkpoint.retained`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.config.values.kinds import Raw, RefusedError, ValueKind

_FORM = re.compile(r"([1-9][0-9]{0,3})(?: *, *([0-9]{1,4})h)?(?: *, *([0-9]{1,4})d)?")


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The newest `newest` (at least 1), then one an hour for `hours` hours, then one a day for `days` days."""

    newest: int
    hours: int = 0
    days: int = 0


class RetainedCheckpoints(ValueKind[RetentionPolicy]):
    """A number, optionally followed by hours and by days: `10,24h,7d`."""

    expected = "how many of the newest, then for how many hours one each, then for how many days: `10`, `10,24h,7d`"

    def parse(self, raw: Raw) -> RetentionPolicy:
        return self.read(raw.strip() if isinstance(raw, str) else ",".join(raw))

    def read(self, text: str) -> RetentionPolicy:
        match = _FORM.fullmatch(text)
        if match is None:
            raise RefusedError("the newest one is always kept" if text.startswith("0") else "")
        return RetentionPolicy(int(match[1]), int(match[2] or 0), int(match[3] or 0))

    def text(self, value: RetentionPolicy) -> str:
        hours, days = f",{value.hours}h" if value.hours else "", f",{value.days}d" if value.days else ""
        return f"{value.newest}{hours}{days}"
