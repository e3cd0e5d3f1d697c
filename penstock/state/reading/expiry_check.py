"""Compares the entries of a store with a time to live with the index of their times."""

from __future__ import annotations

from penstock.state.engines.engine import Content
from penstock.state.stores.expiry import (
    HEADER,
    INDEX,
    INDEX_END,
    MEMBER,
    MEMBERS_END,
    META,
    UNINDEXED,
    adoption_of,
    application_key,
    entries_with_header,
    has_begun,
    index_key,
)


def expiry_problem(source: Content) -> str | None:
    """The first inconsistency, or None. Reads everything."""
    meta = source.get(META)
    if meta is None or not has_begun(meta):
        return None
    adoption = adoption_of(meta)
    indexed = members = 0
    for key, data in entries_with_header(source, adoption):
        if len(data) < HEADER:
            return f"the entry of key {application_key(key)!r} does not say when it expires"
        if data[8] == UNINDEXED:
            continue
        if source.get(index_key(data, key)) is None:
            return f"the entry of key {application_key(key)!r} is not in the expiry index"
        indexed += 1
        members += adoption is not None and key >= adoption.cursor
    for what, expected, start, end in (
        ("the expiry index", indexed, INDEX, INDEX_END),
        ("the list of adopted entries", members, MEMBER, MEMBERS_END),
    ):
        if (found := sum(1 for _ in source.scan(start, end))) != expected:
            return f"{what} names {found:,} entries, and there are {expected:,}"
    return None
