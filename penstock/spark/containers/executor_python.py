"""The fault of an executor whose Python cannot run Penstock: the missing modules, and the remedy.

Nothing that Spark repeats makes a module appear: the first such failure is reported, and not tried again.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.wire.containers import ContainerSpec

_NO_MODULE = re.compile(r"No module named '?([\w.]+)'?")
_OTHER_VERSION = re.compile(r"has different version: ([\d.]+) than that in driver: ([\d.]+)")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)".*?: ((?:error=\d+, )?[^\n]+)')


@dataclass(frozen=True, slots=True)
class PythonFault:
    """The reason why containers cannot run in an executor's Python."""

    what: str
    """The fault, as the rest of a sentence."""
    python: str | None = None
    """The path of the interpreter on its host; None if it is unknown."""
    host: str | None = None
    """The host's own name; None if it is unknown."""

    def text(self, where: str, python: str) -> str:
        """The fault, its place and the remedy.

        Args:
            where: the executor.
            python: the command that Spark was to start, where the interpreter's path is not known.
        """
        host = f" (host {self.host})" if self.host and self.host not in where else ""
        return (
            f"the Python of {where}{host}, `{self.python or python}`, {self.what}. Executors and containers run "
            "Penstock with that Python: install Penstock with all that it needs there or in the executors' image, name "
            "a Python that has it in `spark.pyspark.python` (or PYSPARK_PYTHON), or ship one with "
            "`spark-submit --archives`; docs/deployment.md has examples"
        )


def fault_in(text: str) -> PythonFault | None:
    """The fault of an executor's Python that made a Spark task or a container fail with this text; None for another
    reason."""
    if found := _OTHER_VERSION.search(text):
        return PythonFault(f"is version {found[1]}, and the driver's is {found[2]}: both must be the same")
    if found := _NO_PYTHON.search(text):
        return PythonFault(f"cannot be started: {found[2].strip()}", found[1])
    if "ModuleNotFoundError" in text and (modules := _NO_MODULE.findall(text)):
        return _lacks(modules[-1])
    return None


def _lacks(module: str) -> PythonFault:
    return PythonFault(f"has no module `{module}`")


@dataclass(frozen=True, slots=True)
class Launch:
    """The arguments of `ensure_containers`."""

    spec: ContainerSpec
    count: int
    timeout_s: float
    condemned: frozenset[str]
    addresses: Mapping[str, str]


def starting(launch: Launch) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A function for a Spark worker that starts containers. It yields the results of `ensure_containers`, or one tuple
    if the worker's Python lacks something (`fault_of`).

    The function is pickled by value and imports Penstock only when it runs. Otherwise a worker without Penstock could
    not even unpickle it, and Spark would repeat that, each time with a stack.
    """
    work = pickle.dumps(launch, pickle.HIGHEST_PROTOCOL)

    def start(_: Iterable[Any]) -> Iterator[Any]:
        import pickle
        import socket
        import sys

        try:
            from penstock.container.launch import ensure_containers

            given = pickle.loads(work)  # noqa: S301 - it came from the driver
        except ImportError as error:
            return iter([(sys.executable, socket.gethostname(), error.name or "", str(error))])
        return iter(
            ensure_containers(given.spec, given.count, given.timeout_s, given.condemned, given.addresses),
        )

    return start


def fault_of(answers: list[Any]) -> PythonFault | None:
    """The fault in the answer of a worker whose Python lacks something; None if it has started containers, or tried
    to."""
    for answer in answers:
        if isinstance(answer, tuple):
            python, host, module, error = answer
            lacks = _lacks(module).what if "No module named" in error else f"cannot load Penstock: {error}"
            return PythonFault(lacks, python, host)
    return None
