"""The sections of a checkpoint that is made from another one by hand."""

from __future__ import annotations

from dataclasses import replace

from penstock.batch.offered_batch import QUERY, QuerySection
from penstock.checkpoint.edit import CheckpointContent
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.sections import Sections
from penstock.outbox.unpublished import OUTBOX, outbox_section, owed_of
from penstock.wing import known_sections


def edited_sections(base: CheckpointRecord, content: CheckpointContent, view: LogView) -> Sections:
    """The sections of the successor of `base` with this content: those of `base`, with two exceptions. What the last
    checkpoint leaves to be published remains to be published, whatever `base` is. The query's last batch is not known
    if offsets were set by hand.

    Args:
        view: the log after the claim.
    """
    owed = owed_of(view)
    return base.sections.only(known_sections()).having(
        {OUTBOX: outbox_section(owed, (), owed.publisher), QUERY: _query(base, content, view)}
    )


def _query(base: CheckpointRecord, content: CheckpointContent, view: LogView) -> QuerySection:
    """Only the last checkpoint has the output of the query's last batch."""
    offered = base.section(QUERY).offered
    if offered is None:
        return QuerySection()
    same = content.next_offsets == base.next_offsets
    has_output = offered.has_output and same and base == view.latest
    return QuerySection(replace(offered, plan=offered.plan if same else "", has_output=has_output))
