"""The cost of TLS between driver, Spark workers and containers."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import floor as small
from benchmarks import harness, jobs
from benchmarks.figures import counted, cpu_us_per_row, rate
from benchmarks.workload import Workload, write_inputs
from penstock.host.posix import machine_id
from penstock.spark.containers.directory import ContainerDirectory
from penstock.system.local import LocalSystem
from penstock.wire.client import ContainerClient
from penstock.wire.containers import ContainerAddress

SCHEMES = {"socket": "grpc+unix", "clear": "grpc", "tls": "grpc+tls"}
"""By way, the scheme of the containers' addresses."""


def figures(way: str, run: harness.SideRun) -> dict[str, Any]:
    """Run one job. Fails unless its containers were reached in the way that the side names."""
    if run.result["schemes"] != [SCHEMES[way]]:
        raise harness.SideFailedError(f"`{way}` reached its containers by {run.result['schemes']}")
    batches = run.result["batches"]
    if "verified" not in run.result:
        cpu = sum(cpu_us_per_row(run, batches).values())
        return {"rows_per_second": statistics.median(map(rate, counted(batches))), "cpu_us_per_row": cpu}
    return {**small.milliseconds(batches), "verified": run.result["verified"]}


# The sides. On one machine, driver and workers reach containers by their Unix sockets, which never speak TLS. Here they
# use the ports, as between hosts, unless the way is `socket`.


def fold(parameters: dict[str, Any]) -> dict[str, Any]:
    return _reached(parameters, jobs.fold)


def floor(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run small batches; one entry per batch, and whether each output has every message once."""
    found = _reached(parameters, small.batches)
    system = LocalSystem("local", str(Path(parameters["work"]) / "streams"))
    wanted = Counter(range(parameters["messages"] * parameters["batches"]))
    outputs = [Counter(value["n"] for *_, value in jobs.read_stream(system, name)) for name in small.OUTPUTS]
    return {**found, "verified": {"equal": outputs == [wanted] * len(outputs)}}


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


@harness.benchmark("tls", __doc__, events=2_000_000, batches=10, keys=100_000, floor_batches=100, repeat=3, threads=2)
def main(bench: harness.Bench) -> int:
    options, workload = bench.options, Workload.of(bench.options)
    inputs = write_inputs(workload.tables(), bench.work / "inputs", options.threads)
    fold_parameters = {**workload.parameters(), "streams": str(inputs / "streams")}
    batches = options.floor_batches + small.WARM_UP
    floor_parameters = {"messages": small.MESSAGES, "batches": batches, "exchanges": 2, "outputs": True}
    for way in bench.turns(SCHEMES, options.repeat):
        more = {"way": way, "config": {"job.container.tls.enabled": str(way == "tls").lower()}}
        own = partial(figures, way)
        bench.run(f"fold, {way}", "tls:fold", {**fold_parameters, **more}, figures=own, verify="jobs:verify")
        bench.run(f"floor, {way}", "tls:floor", {**floor_parameters, **more}, figures=own)
    shown = ("rows_per_second", "cpu_us_per_row", "batch")
    sides = bench.medians(*shown)
    harness.show("medians of the rounds", sides, **dict.fromkeys(shown, ",.1f"))
    rounds = {kind: {way: bench.runs[f"{kind}, {way}"] for way in SCHEMES} for kind in ("fold", "floor")}
    fold_costs = 1 - harness.against(rounds["fold"], "rows_per_second", "clear")["tls"]
    floor_costs = harness.against(rounds["floor"], "batch", "clear")["tls"] - 1
    bench.target("TLS, share of the fold's rows per second", fold_costs, at_most=0.05)
    bench.target("TLS, share of a small batch's time", floor_costs, at_most=0.10)
    return bench.finish(sides, costs={"fold": fold_costs, "floor": floor_costs})
