"""The wing: its option, its call, and where its parts are."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.checkpoint.sections import Section
from penstock.config.key import Settings, Topic, key
from penstock.config.kinds import Number
from penstock.wing import Wing
from penstock.wire.protocol import Call, Request


class AuditSettings(Settings):
    """The options of the wing."""

    every = key("audit.every.commits", Topic.COMMITS, Number(1), "1", "How often a commit asks the containers.")


@dataclass(frozen=True, slots=True)
class CountRuns(Request):
    """Asks a container how many runs of batches it has admitted in this epoch."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The answer."""

    count: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """The audit in a checkpoint's record."""

    commits: int = 0
    runs: int = 0


RECORDED = Section("audit", Recorded, needed=True)
COUNT_RUNS = Call("audit-count-runs", CountRuns, Runs)
AUDIT = Wing(
    "audit",
    calls=(COUNT_RUNS,),
    keys=AuditSettings,
    driver="audit.driver:AuditDriver",
    container="audit.container:AuditContainer",
    facts="audit.facts:audit_facts",
    commands="audit.commands:app",
    help="Show what the audit has counted.",
)
