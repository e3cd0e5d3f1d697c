"""The keyed fold and the floor with containers that count as on another host: what runs in the side's own process.

On one machine, driver and workers reach containers by their Unix sockets, which never speak TLS. Here they use the
ports, as between hosts, unless the way is `socket`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

import penstock as ps
from benchmarks import side_floor, side_penstock
from penstock.host.machine import machine_id
from penstock.spark.containers.directory import ContainerDirectory
from penstock.system.base import OffsetRange
from penstock.system.local import LocalSystem
from penstock.wire.address import ContainerAddress
from penstock.wire.client import ContainerClient


def fold(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the keyed fold; one entry per batch."""
    return _reached(parameters, side_penstock.fold)


def floor(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run small batches; one entry per batch, and whether each output has every message once."""
    found = _reached(parameters, side_floor.batches)
    return {**found, "verified": {"equal": _are_whole(parameters)}}


def _reached(parameters: dict[str, Any], run: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """The result of `run`, with the schemes of the addresses by which containers were reached."""
    schemes: set[str] = set()
    client_of = ContainerDirectory._client

    def client(own: ContainerDirectory, address: ContainerAddress) -> ContainerClient:
        if parameters["way"] != "socket":
            address = replace(address, machine="another")
        schemes.add(urlsplit(address.uri_from(machine_id())).scheme)
        return client_of(own, address)

    ContainerDirectory._client = client  # type: ignore[assignment, method-assign]
    return {**run(parameters), "schemes": sorted(schemes)}


def _are_whole(parameters: dict[str, Any]) -> bool:
    system = LocalSystem("local", str(Path(parameters["work"]) / "streams"))
    admin, reader = system.admin(), system.reader()
    wanted = Counter(orjson.dumps({"n": n}) for n in range(parameters["messages"] * parameters["batches"]))
    for name in side_floor.OUTPUTS:
        values: Counter[bytes | None] = Counter()
        for partition, ends in admin.offsets(name).items():
            ssp = ps.SystemStreamPartition("local", name, partition)
            for chunk in reader.read(OffsetRange(ssp, ends.oldest, ends.upcoming), 5_000):
                values.update(value for *_, value in chunk)
        if values != wanted:
            return False
    return True
