"""How far behind their side inputs the stores of a job are, as its metrics say."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.metrics.snapshot import GaugeValue, Snapshot

_LAG = "side-inputs-lag-"
_STORE = "store."


@dataclass(frozen=True, slots=True)
class SideInputStatus:
    """One partition of a side input of a store. For a store that every container has, this is the container that is
    furthest behind."""

    store: str
    partition: str
    """`system.stream.partition`."""
    lag: int
    """How many messages the store does not have yet, in offsets."""
    catching_up: bool
    """Whether the first batch waits for it."""
    failing: bool
    """Whether it fails and is tried again; the store keeps what it has meanwhile."""


def side_inputs_in(metrics: Snapshot) -> tuple[SideInputStatus, ...]:
    """What the metrics of a run say of its side inputs."""
    gauges = {key: value.value for key, value in metrics.items() if isinstance(value, GaugeValue)}
    lags: dict[tuple[str, str], int] = {}
    states: dict[tuple[str, str], bool] = {}
    for key, value in gauges.items():
        store = key.group.removeprefix(_STORE)
        if key.group.startswith(_STORE) and key.name.startswith(_LAG):
            place = store, key.name.removeprefix(_LAG)
            lags[place] = max(int(value), lags.get(place, 0))
        elif key.name in {"side-inputs-catching-up", "side-inputs-failing"}:
            states[store, key.name] = states.get((store, key.name), False) or value > 0
    return tuple(
        SideInputStatus(
            store,
            partition,
            lag,
            states.get((store, "side-inputs-catching-up"), False),
            states.get((store, "side-inputs-failing"), False),
        )
        for (store, partition), lag in sorted(lags.items())
    )
