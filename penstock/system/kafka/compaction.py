"""The compacted topics that keep young records, and for how long. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

POLICY = "cleanup.policy"
LAG = "min.compaction.lag.ms"
DELETES = "delete.retention.ms"
KEPT_MS = 86_400_000
"""Kafka's default of `delete.retention.ms`."""
_LONGEST_MARGIN_MS = 300_000


def margin_ms(lag_ms: int) -> int:
    """The possible difference between the clocks of brokers and clients."""
    return min(lag_ms // 10, _LONGEST_MARGIN_MS)


def refused(wanted: Mapping[str, str], found: Mapping[str, str]) -> str:
    """The settings of an older topic that would lose records, and the remedy; empty if there are none."""
    if found.get(POLICY) != wanted[POLICY]:
        return (
            f"has `{POLICY}={found.get(POLICY)}` and would lose records; set it to `{wanted[POLICY]}`, or name "
            "another stream"
        )
    for key in (LAG, DELETES):
        if key in wanted and int(found.get(key, "0")) < int(wanted[key]):
            return (
                f"has `{key}={found.get(key, '0')}`, and {wanted[key]} is needed: brokers would drop records too "
                "early. Change the topic, or lower the job's setting"
            )
    return ""


def differences(wanted: Mapping[str, str], found: Mapping[str, str]) -> Iterator[str]:
    for key, value in sorted(wanted.items()):
        if key not in (POLICY, LAG, DELETES) and found.get(key) != value:
            yield f"`{key}={found.get(key)}`; a new one would have {value}"
