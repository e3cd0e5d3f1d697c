"""The contracts of imports: what they find, and that their lists of exceptions only become shorter."""

from __future__ import annotations

import itertools

import pytest

from tools.rooms import Plan, circle, circle_faults, faults

PLAN = Plan.parse(
    ["base: penstock.base.retry", "kernel: penstock.runtime", "time: penstock.runtime.windows", "spark: pyspark"],
    ["kernel time: base", "time: kernel"],
)
MODULES = ["penstock", "penstock.base.retry", "penstock.runtime.stage", "penstock.runtime.windows.fixed"]
STAGE, NODE, CLOCK = MODULES[2], MODULES[3], MODULES[1]


@pytest.mark.parametrize(
    ("imports", "found"),
    [
        ([], []),
        ([(NODE, STAGE), (NODE, CLOCK), (STAGE, CLOCK)], []),
        ([(STAGE, "json"), (NODE, "numpy")], []),
        ([("penstock", NODE)], []),
        ([(CLOCK, STAGE)], [f"{CLOCK} (base) imports {STAGE} (kernel), which it may not know"]),
        ([(STAGE, NODE)], [f"{STAGE} (kernel) imports {NODE} (time), which it may not know"]),
        ([(NODE, "pyspark.sql")], [f"{NODE} (time) imports pyspark.sql (spark), which it may not know"]),
    ],
)
def test_a_room_imports_what_it_knows(imports: list[tuple[str, str]], found: list[str]) -> None:
    assert faults(PLAN, MODULES, imports, []) == found
    broken = [each for each in imports if found]
    assert faults(PLAN, MODULES, imports, broken) == []


def test_every_module_has_a_room() -> None:
    assert faults(PLAN, [*MODULES, "penstock.new"], [], []) == ["penstock.new is in no room"]


def test_an_exception_that_nothing_needs() -> None:
    (found,) = faults(PLAN, MODULES, [(NODE, STAGE)], [(NODE, STAGE)])
    assert "no exception any more" in found


def test_a_room_without_packages() -> None:
    with pytest.raises(ValueError, match="attic"):
        Plan.parse(["base: penstock.base.retry"], ["attic: base"])


def test_circles() -> None:
    imports = {("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")}
    found = circle(imports)
    assert found[0] == found[-1]
    assert set(itertools.pairwise(found)) <= imports
    assert circle_faults(imports, [("c", "a")]) == []
    assert "no exception any more" in circle_faults(imports, [("c", "a"), ("c", "d")])[0]
    assert circle_faults(imports, [])[0].startswith("these import each other: ")
