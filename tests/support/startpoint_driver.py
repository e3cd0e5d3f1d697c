"""As `fault_driver.py`, with the claims of the log and the deletion of startpoints among the points."""

from __future__ import annotations

import json
import sys
from pathlib import Path

POINTS = ("claim", "append", "driver.snapshot", "driver.upload", "startpoint.delete")


def main() -> int:
    """Run the job to its end, unless a fault ends it before."""
    parameters = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.path.insert(0, parameters["path"])
    from penstock.checkpoint.log import CheckpointLog
    from penstock.start.startpoints.manager import StartpointManager
    from tests.support import driver, driver_faults
    from tests.support.faults import Faults

    driver_faults.arm(
        Faults.of_root(parameters["config"]["job.root"]),
        (CheckpointLog, "claim", "claim"),
        (StartpointManager, "delete", "startpoint.delete"),
    )
    return driver.main()


if __name__ == "__main__":
    sys.exit(main())
