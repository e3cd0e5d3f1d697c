"""Which task is in which container. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def assign_tasks(tasks: int, homes: Mapping[int, str], copies: Mapping[str, Collection[int]]) -> dict[int, str]:
    """Task -> container, for every task.

    A task stays where it is as long as that container lives and has no more than its share. The others go where there
    is a copy of their stores, as far as that leaves the containers evenly loaded, and else to the least loaded one.

    Args:
        homes: where tasks were until now.
        copies: the containers that live, each with the tasks of which its host has copies; not empty.
    """
    load = dict.fromkeys(sorted(copies), 0)
    most = -(-tasks // len(load))
    found: dict[int, str] = {}
    for task, home in sorted(homes.items()):
        if home in load and load[home] < most:
            found[task] = home
            load[home] += 1
    homeless = [task for task in range(tasks) if task not in found]
    # First those that a copy waits for, so that no other task takes its place.
    for task in sorted(homeless, key=lambda task: not any(task in own for own in copies.values())):
        near = [name for name in load if task in copies[name] and load[name] < most]
        home = min(near or load, key=lambda name: (load[name], name))
        found[task] = home
        load[home] += 1
    return found
