"""Two contracts of import-linter: each module of Penstock is in one room, and a room imports only the rooms that it
knows; and no modules import each other in a circle.

`.importlinter` has the plan of the rooms. `rooms` gives each room its packages; the longest name decides. `knows` says
what a room may import: other rooms, and packages from outside that are not for everybody. `exceptions` of both
contracts lists the imports that break them today. An exception that nothing needs any more is an error as well, so the
lists can only become shorter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

Import = tuple[str, str]
"""The importing module, and the imported one."""


@dataclass(frozen=True)
class Plan:
    """Rooms and what they know."""

    packages: Mapping[str, str]
    """By the name of the package: its room. A package from outside is a room of its own."""
    knows: Mapping[str, Collection[str]]

    @classmethod
    def parse(cls, rooms: Iterable[str], knows: Iterable[str]) -> Plan:
        """From lines of `name: word word`; in `knows`, there may be several names before the colon."""
        packages = {package: room for room, words in _lines(rooms) for package in words}
        known: dict[str, set[str]] = {}
        for names, words in _lines(knows):
            for room in names.split():
                known.setdefault(room, set()).update(words)
        if unknown := known.keys() - set(packages.values()):
            raise ValueError(f"`knows` names rooms without packages: {', '.join(sorted(unknown))}")
        return cls(packages, known)

    def room(self, module: str) -> str | None:
        """The room of a module; None if it is in none."""
        parts = module.split(".")
        for end in range(len(parts), 0, -1):
            if room := self.packages.get(".".join(parts[:end])):
                return room
        return None

    def allows(self, importing: str, imported: str) -> bool:
        """True if the room of one module knows that of the other, or they share one."""
        here, there = self.room(importing), self.room(imported)
        return here == there or there is None or there in self.knows.get(here or "", ())


def faults(
    plan: Plan, modules: Collection[str], imports: Iterable[Import], exceptions: Collection[Import]
) -> list[str]:
    """Where the code is not as planned, in words."""
    own = {module for module in modules if module.startswith("penstock.")}
    broken = {each for each in imports if each[0] in own and not plan.allows(*each)}
    return [
        *(f"{module} is in no room" for module in sorted(own) if plan.room(module) is None),
        *(
            f"{importing} ({plan.room(importing)}) imports {imported} ({plan.room(imported)}), which it may not know"
            for importing, imported in sorted(broken - set(exceptions))
        ),
        *(needless(each) for each in exceptions if each not in broken),
    ]


def circle(imports: Iterable[Import]) -> list[str]:
    """Modules that import each other in a circle, the first one also last; none if there is no circle."""
    graph: dict[str, set[str]] = {}
    for importing, imported in imports:
        graph.setdefault(importing, set()).add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def circle_faults(imports: Collection[Import], exceptions: Collection[Import]) -> list[str]:
    """A circle that is left without the exceptions, and the exceptions that close none."""
    rest = set(imports) - set(exceptions)
    if found := circle(rest):
        return [f"these import each other: {' -> '.join(found)}"]
    return [needless(each) for each in exceptions if each not in imports or not circle(rest | {each})]


def needless(exception: Import) -> str:
    """The fault of an exception that nothing needs."""
    return f"{exception[0]} -> {exception[1]} is no exception any more: take the line out"


class RoomContract(Contract):
    """The plan of the rooms; the module's docstring explains the options."""

    rooms: Any = fields.ListField(subfield=fields.StringField())
    knows: Any = fields.ListField(subfield=fields.StringField())
    exceptions: Any = fields.ListField(subfield=fields.StringField(), required=False, default=())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find what is not as planned."""
        plan = Plan.parse(self.rooms, self.knows)
        return _answer(faults(plan, graph.modules, _imports(graph), _arrows(self.exceptions)))

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Say what is not as planned, a line each."""
        _print(check)


class CircleContract(Contract):
    """No modules import each other in a circle."""

    exceptions: Any = fields.ListField(subfield=fields.StringField(), required=False, default=())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find a circle."""
        return _answer(circle_faults(_imports(graph), _arrows(self.exceptions)))

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Show the circle."""
        _print(check)


def _imports(graph: ImportGraph) -> set[Import]:
    return {(module, other) for module in graph.modules for other in graph.find_modules_directly_imported_by(module)}


def _arrows(lines: Iterable[str]) -> list[Import]:
    return [(one.strip(), other.strip()) for one, _, other in (line.partition("->") for line in lines)]


def _answer(found: list[str]) -> ContractCheck:
    return ContractCheck(kept=not found, metadata={"faults": found})


def _print(check: ContractCheck) -> None:
    for line in check.metadata["faults"]:
        output.print_error(line)


def _lines(lines: Iterable[str]) -> Iterable[tuple[str, list[str]]]:
    for line in lines:
        names, _, words = line.partition(":")
        yield names.strip(), words.split()
