"""The process a side runs in: `python -m benchmarks.side MODULE:FUNCTION PARAMETERS.json RESULT.json`.

The function gets the parameters as one dict and returns a dict. Nothing of one side is left for the next.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson


def main(arguments: list[str]) -> None:
    """Run the function and write what it returned."""
    target, parameters, result = arguments
    module, _, name = target.partition(":")
    function: Callable[[dict[str, Any]], dict[str, Any]] = getattr(importlib.import_module(module), name)
    found = function(orjson.loads(Path(parameters).read_bytes()))
    Path(result).write_bytes(orjson.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
