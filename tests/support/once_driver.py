"""As `fault_driver.py`, with the call `publish` among the points: `driver.publish.before` and `.after`."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> int:
    """Run the job to its end, unless a fault ends it before."""
    parameters = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.path.insert(0, parameters["path"])
    from tests.support import driver, driver_faults
    from tests.support.faults import Faults

    driver_faults.CALLS += ("publish",)
    driver_faults.arm(Faults.of_root(parameters["config"]["job.root"]))
    return driver.main()


if __name__ == "__main__":
    sys.exit(main())
