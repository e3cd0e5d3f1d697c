"""The keyed fold through other engines: the sides that start them.

Neither has batches that end with a commit, so a run counts as one batch, and both are durable every second. Pathway
stores its input (without a licence key it cannot store its state), Bytewax stores the state.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.columns.inputs import totals_of
from benchmarks.engines import Engine, free_port, last_count, start_script
from benchmarks.keyed_fold.workload import Workload

_PEERS = Path(__file__).parent / "peers"
ENGINES = {
    "Pathway, json": Engine("pathway==0.33.0", _PEERS / "pathway_fold.py", threads=True),
    "Bytewax, json": Engine("bytewax==0.21.1 orjson==3.11.4", _PEERS / "bytewax_fold.py"),
}
_LOOK_SECONDS = 0.1


def fold(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the fold over all files; one entry for the whole run."""
    if parameters["operator"] == "Pathway":
        found = _pathway(parameters, totals=False)
        began, ended = found["began"], found["ended"]
    else:
        began, ended = _bytewax(parameters)
    rows = parameters["workload"]["events"]
    spent = {"triggerExecution": (ended - began) * 1000}
    return {"batches": [{"batch": 1, "rows": rows, "duration_ms": spent, "ended": ended}]}


def verify(parameters: dict[str, Any]) -> dict[str, Any]:
    """Compare the totals of every key. Those of Pathway come from a second run, which writes all changes."""
    totals: Iterable[tuple[str, int, float]]
    if parameters["operator"] == "Pathway":
        totals = [(key, *each) for key, each in _pathway(parameters, totals=True)["totals"].items()]
    else:
        lines = [line for path in Path(parameters["work"]).glob("totals-*") for line in path.read_text().splitlines()]
        totals = [json.loads(line) for line in lines]
    counts, sums = totals_of(Workload(**parameters["workload"]))
    found_counts, found_sums = np.zeros_like(counts), np.zeros_like(sums)
    for key, count, amount in totals:
        found_counts[int(key[4:])] += count
        found_sums[int(key[4:])] += amount
    wrong = int(((found_counts != counts) | (found_sums != sums)).sum())
    return {"equal": not wrong, "keys": len(totals), "wrong_keys": wrong}


def _pathway(parameters: dict[str, Any], *, totals: bool) -> dict[str, Any]:
    work = Path(parameters["work"]) / ("totals" if totals else "run")
    work.mkdir()
    given = {
        "files": f"{parameters['files']}/events",
        "events": parameters["workload"]["events"],
        "threads": parameters["threads"],
        "work": str(work),
        "result": str(work / "result.json"),
        "totals": totals,
    }
    status = start_script(ENGINES["Pathway, json"], given).wait()
    if status != 0:
        raise RuntimeError(f"Pathway ended with status {status}")
    found: dict[str, Any] = json.loads((work / "result.json").read_text())
    return found


def _bytewax(parameters: dict[str, Any]) -> tuple[float, float]:
    """From the last moment before the first row was counted to the moment at which all were, as epoch seconds."""
    engine, work = ENGINES["Bytewax, json"], Path(parameters["work"])
    given = {
        "files": f"{parameters['files']}/events",
        "work": str(work),
        "addresses": [f"127.0.0.1:{free_port()}" for _ in range(parameters["threads"])],
    }
    start_script(engine, {**given, "process": 0, "prepare": True}).wait()
    processes = [
        start_script(engine, {**given, "process": number, "prepare": False}) for number in range(parameters["threads"])
    ]
    began = ended = None
    while any(process.poll() is None for process in processes):
        counted = sum(last_count(path) for path in work.glob("counted-*"))
        if not counted:
            began = time.time()
        if counted == parameters["workload"]["events"] and ended is None:
            ended = time.time()
        time.sleep(_LOOK_SECONDS)
    if any(process.returncode for process in processes) or began is None or ended is None:
        raise RuntimeError(f"Bytewax ended with status {[process.returncode for process in processes]}")
    return began, ended
