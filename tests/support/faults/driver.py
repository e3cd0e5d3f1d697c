"""A driver as a process of its own: `python driver.py <parameters.json>`.

The parameters: `app` (a name in `APPS` of a module of applications), `config` (with `test.ways.alternate`, see
`ways`), `until`, `from_checkpoint`, `result` (a
file that gets what came of the run), `faults` (the folder of the faults that the driver meets, or None; the points are
in `driver_faults`) and `path` (where the tests can be imported from). SIGTERM stops the job, a second one at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any


def main() -> int:
    parameters: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.path.insert(0, parameters["path"])
    result = Path(parameters["result"])
    try:
        write(result, run(parameters))
    except BaseException as error:
        traceback.print_exc()
        write(result, {"error": type(error).__name__, "text": str(error)})
        return 1
    return 0


def run(parameters: dict[str, Any]) -> dict[str, Any]:
    """Start, wait for the end, and return the result."""
    from pyspark import cloudpickle

    from tests.support.apps import drained_app, job_app, sided_app

    if parameters["faults"]:
        from tests.support.faults import driver_faults
        from tests.support.faults.plan import Faults

        driver_faults.arm(Faults(Path(parameters["faults"])))
    if parameters["config"].pop("test.ways.alternate", False):
        from tests.support.faults import ways

        ways.alternate()
    modules: list[Any] = [job_app, sided_app]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    app = {name: make for module in (*modules, drained_app) for name, make in module.APPS.items()}[parameters["app"]]()
    job = app.run(parameters["config"], until=parameters["until"], from_checkpoint=parameters["from_checkpoint"])
    signal.signal(signal.SIGTERM, lambda *_: job.stop(wait=False))
    Path(parameters["result"]).with_suffix(".started").touch()
    while not job.await_termination(0.1):
        pass
    return {"error": None, "last_checkpoint": job.last_checkpoint, "progress": job.last_progress, "phase": job.phase}


def write(path: Path, result: dict[str, Any]) -> None:
    """Whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result), encoding="utf-8")
    os.replace(temporary, path)


if __name__ == "__main__":
    sys.exit(main())
