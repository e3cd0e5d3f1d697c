"""The pages of the API reference: a page for each public module, with its names in groups."""

from __future__ import annotations

import ast
from pathlib import Path

GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "penstock": {
        "Applications and tasks": (
            "penstock.application",
            "penstock.api.task.StreamTask",
            "penstock.api.task.WindowableTask",
            "penstock.api.task.DrainListenerTask",
            "penstock.api.task_context",
        ),
        "Messages": ("penstock.api.messages", "penstock.api.ssp", "penstock.api.intermediate"),
        "Serdes and schemas": ("penstock.api.serdes", "penstock.schemas"),
        "Stores, state of the key and tables": (
            "penstock.api.store",
            "penstock.api.key_state",
            "penstock.api.side_inputs",
        ),
        "Event time and timers": (
            "penstock.api.time.firing.WatermarkPolicy",
            "penstock.api.time.firing.Ascending",
            "penstock.api.time.firing.BoundedOutOfOrderness",
            "penstock.api.time.firing.ExpiredTimer",
        ),
        "Windows": ("penstock.api.time.windows", "penstock.api.time.firing"),
        "Aggregates": ("penstock.api.time.aggregates", "penstock.api.time.sketches"),
        "Columns": ("penstock.api.expressions", "penstock.api.task"),
        "Startpoints and drains": ("penstock.api.requests",),
        "Jobs and metrics": ("penstock.driver.job", "penstock.metrics"),
        "Errors": ("penstock.errors", "penstock.job.lease"),
    },
    "penstock.admin": {
        "Jobs": ("penstock.admin.jobs", "penstock.admin.job"),
        "Configuration and graph": (
            "penstock.admin.configuration",
            "penstock.job.shown",
        ),
        "Checkpoints": ("penstock.admin.checkpoint", "penstock.admin.samza", "penstock.checkpoint"),
        "Startpoints": ("penstock.admin.startpoint",),
        "State": ("penstock.admin.state",),
        "Streams": ("penstock.admin.stream",),
        "Pushed tables": ("penstock.admin.table",),
    },
    "penstock.spark": {
        "Processors": (
            "penstock.spark.transform",
            "penstock.spark.processor",
            "penstock.spark.row_serde",
            "penstock.spark.row_batches",
        ),
        "Applications": ("penstock.spark.applications",),
        "State and progress": ("penstock.spark.state_frames", "penstock.spark.queries"),
    },
    "penstock.testing": {
        "Tests of applications": ("penstock.testing.runner", "penstock.testing.clock"),
        "Simulated failures": ("penstock.testing.simulation",),
    },
    "penstock.system.base": {
        "Systems": (
            "penstock.system.contract.definition.System",
            "penstock.system.contract.admin",
            "penstock.system.contract.messages.SystemReader",
            "penstock.system.contract.messages.CHUNK_BYTES",
            "penstock.system.contract.writer",
        ),
        "Messages": ("penstock.system.contract.messages",),
        "Names and options": ("penstock.system.contract.definition",),
    },
}
"""Each public module, the groups of its page, and the names of a group: each by itself, or all of a module or
package that no group before has."""

WITH_BASES = {"AuditRecord", "CheckpointFacts", "MessageStream", "StreamApplication", "TaskApplication"}
"""Classes that are shown with what they inherit, because their base classes are not public."""


def names_of(root: Path, module: str) -> dict[str, str]:
    """The public names of a module, with the module that defines each. They are read from its source."""
    path = root.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return {
        alias.name: str(node.module)
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module not in ("typing", "penstock.base")
        for alias in node.names
    }


def page(root: Path, module: str) -> str:
    """The page of a public module, as directives of mkdocstrings.

    Raises:
        ValueError: a name is in no group, or a group is empty.
    """
    parts = [f"# {module}", _directive(module, "members: false", "show_root_heading: false")]
    left = names_of(root, module)
    for title, modules in GROUPS[module].items():
        grouped = [each for prefix in modules for each in left if f"{left[each]}.{each}.".startswith(f"{prefix}.")]
        if not grouped:
            raise ValueError(f"{module}: the group `{title}` of {Path(__file__).name} has no names; remove it")
        left = {name: home for name, home in left.items() if name not in grouped}
        parts += [f"## {title}", *(_entry(module, name) for name in grouped)]
    if left:
        raise ValueError(f"{module}: no group of {Path(__file__).name} has {left}; add its module to one")
    return "\n\n".join(parts) + "\n"


def _entry(module: str, name: str) -> str:
    return _directive(f"{module}.{name}", *(["inherited_members: true"] if name in WITH_BASES else []))


def _directive(identifier: str, *options: str) -> str:
    lines = [f"::: {identifier}", *(["    options:"] if options else []), *(f"      {each}" for each in options)]
    return "\n".join(lines)
