"""As `fault_driver.py`, for the applications that are drained, with the steps of a drain among the points.

    drain.noticed       the run has seen the request
    drain.planned       the drain batch is planned, and has not begun
    drain.end.before    all stages of the drain batch are through, and no container has applied it
    drain.end.after     every container has
    drain.record        the drained record is in the log, and the request is still there

Points of the last commit are those of every commit; `drain.first` and `drain.last` are in `on_drain` of the tasks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    """Run the job to its end, unless a fault ends it before."""
    parameters = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.path.insert(0, parameters["path"])
    from tests.support import drained_app, driver, driver_faults, job_app
    from tests.support.faults import Faults

    job_app.APPS.update(drained_app.APPS)
    faults = Faults.of_root(parameters["config"]["job.root"])
    driver_faults.arm(faults)
    arm(faults)
    return driver.main()


def arm(faults: Any) -> None:
    """From now on the steps of a drain in this process meet the faults."""
    from penstock.drain.driver.drain import Drain
    from penstock.driver.feed.feed import OffsetFeed
    from penstock.spark.containers.directory import ContainerDirectory

    look, plan, finish, ask = Drain.look, OffsetFeed.drain, Drain.finish, ContainerDirectory.ask
    noticed: set[Drain] = set()

    def looking(drain: Drain) -> bool:
        drains = look(drain)
        if drains and drain not in noticed:
            noticed.add(drain)
            faults.at("drain.noticed")
        return drains

    def planning(*given: Any) -> Any:
        planned = plan(*given)
        faults.at("drain.planned")
        return planned

    def finishing(drain: Drain, answered: tuple[str, ...]) -> None:
        faults.at("drain.record")
        finish(drain, answered)

    def asking(directory: Any, call: Any, epoch: int, request: Any, **more: Any) -> Any:
        drains = call.name == "end" and request.batch.control == "drain"
        if drains:
            faults.at("drain.end.before")
        answer = ask(directory, call, epoch, request, **more)
        if drains:
            faults.at("drain.end.after")
        return answer

    for owner, name, method in (
        (Drain, "look", looking),
        (Drain, "finish", finishing),
        (OffsetFeed, "drain", planning),
        (ContainerDirectory, "ask", asking),
    ):
        setattr(owner, name, method)


if __name__ == "__main__":
    sys.exit(main())
