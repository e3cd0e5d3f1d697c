"""The format before sections: every field of every wing was a field of the record. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SECTIONS = {
    "drain": {"drains": "answered"},
    "outbox": {"outbox": "objects", "unpublished": "unpublished", "keepers": "keepers", "publisher": "publisher"},
    "query": {"offered": "offered"},
    "streams": {"intermediate": "streams", "intermediate_layout": "layouts"},
    "time": {"event_times": "event_times", "watermarks": "watermarks"},
}
"""Section → field of the record → field of the section."""
_NEEDED = _SECTIONS.keys() - {"drain"}
_MOVED = {field for own in _SECTIONS.values() for field in own}


def from_format_9(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of the present format that says what a body of format 9 says."""
    sections = {
        name: {"fields": fields, "needed": name in _NEEDED}
        for name, own in _SECTIONS.items()
        if (fields := {now: body[before] for before, now in own.items() if before in body})
    }
    return {name: value for name, value in body.items() if name not in _MOVED} | {"sections": sections}
