"""As `driver.py`, for the applications that have side inputs."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> int:
    """Run the job to its end."""
    parameters = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.path.insert(0, parameters["path"])
    from pyspark import cloudpickle

    from tests.support import driver, job_app, sided_app

    cloudpickle.register_pickle_by_value(sided_app)
    job_app.APPS.update(sided_app.APPS)
    return driver.main()


if __name__ == "__main__":
    sys.exit(main())
