"""Compares what a random application has come to with what it must come to."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from tests.simulation.oracle import Expected, Message, replayed
from tests.simulation.plans import PLACED, Node, Plan

Output = list[tuple[str | None, Any, int]]
Place = tuple[str, Any]


@dataclass
class Found:
    """The things that a job has left behind.

    Attributes:
        outputs: number of a stream → key, value and timestamp of each message of its output.
        letters: the dead letters.
        stores: name of a store → task, key and value of each entry.
    """

    outputs: dict[int, Output]
    letters: list[dict[str, Any]]
    stores: dict[str, list[tuple[int, Any, Any]]]


def broken(plan: Plan, expected: Expected, found: Found) -> list[str]:
    """Say in words which expectations do not hold."""
    bad: list[str] = []
    for number, messages in found.outputs.items():
        if plan.nodes[number].kind == "aggregate":
            bad += _broken_totals(plan, number, expected, messages)
        else:
            bad += _broken_output(plan, number, expected, messages)
    bad += _broken_letters(plan, expected, found.letters)
    places, torn = _places(plan, expected, found)
    bad += torn
    for node in plan.nodes:
        if node.kind in PLACED:
            bad += _broken_order(node, expected, places.get(node.number, {}))
            bad += _broken_store(node, expected, found, places.get(node.number, {}))
    return bad + _left_behind(plan, expected, found)


def _difference(expected: Counter[Any], found: Counter[Any]) -> str:
    return f"missing {list((expected - found).items())[:6]}, more {list((found - expected).items())[:6]}"


def _broken_output(plan: Plan, number: int, expected: Expected, messages: Output) -> list[str]:
    timed = not plan.nodes[number].timeless
    wanted = Counter(each.seen if timed else (*each.seen[:3], 0) for each in expected.streams[number])
    found = Counter((key, value["n"], value["v"], t if timed else 0) for key, value, t in messages)
    if plan.outputs[number]:
        return [] if found == wanted else [f"output {number}: {_difference(wanted, found)}"]
    if set(found) != set(wanted) or any(found[each] < wanted[each] for each in wanted):
        return [f"output {number}, at least once: {_difference(wanted, Counter(set(found)))}"]
    return []


def _broken_totals(plan: Plan, number: int, expected: Expected, messages: Output) -> list[str]:
    """Rows come after batches: their number is not known, but the last one is."""
    best: dict[str | None, dict[str, Any]] = {}
    for key, value, _ in messages:
        if key not in best or best[key]["count"] < value["count"]:
            best[key] = value
    bad = []
    wanted = expected.totals[number]
    if best.keys() != wanted.keys():
        bad.append(f"totals {number}: keys {sorted(map(str, best))} in place of {sorted(wanted)}")
    bad += [
        f"totals {number} {key}: {row} in place of {wanted[str(key)]}"
        for key, row in best.items()
        if str(key) in wanted and not _is_last(plan.nodes[number], str(key), row, wanted[str(key)])
    ]
    if plan.outputs[number]:
        counts = Counter((key, value["count"]) for key, value, _ in messages)
        bad += [f"totals {number}: twice {each}" for each, times in counts.items() if times > 1]
    return bad


def _is_last(node: Node, key: str, row: dict[str, Any], wanted: dict[str, Any]) -> bool:
    own = {name: row[name] for name in ("count", "sum", "least", "most", "mean")} | {"key": row.get("key", key)}
    if own != {**{name: wanted[name] for name in own if name != "key"}, "key": key}:
        return False
    return node.timeless or (row["first"] in wanted["first"] and row["last"] in wanted["last"])


def _broken_letters(plan: Plan, expected: Expected, letters: list[dict[str, Any]]) -> list[str]:
    wanted = Counter(root for root, _ in expected.letters)
    names = set().union(*(names for _, names in expected.letters))
    found = Counter((each["stream"].removeprefix("m."), each["partition"], int(each["offset"])) for each in letters)
    bad = [f"letters of {each['operator']}: {each['reason']}" for each in letters if each["operator"] not in names]
    if None in wanted:
        wrong = found.total() != wanted.total() if plan.dead == 2 else found.total() < wanted.total()
    else:
        wrong = found != wanted if plan.dead == 2 else set(found) != set(wanted)
    return [*bad, f"dead letters: {_difference(wanted, found)}"] if wrong else bad


def _places(plan: Plan, expected: Expected, found: Found) -> tuple[dict[int, dict[str, dict[int, Place]]], list[str]]:
    """Task → key → place → message and what its store said, as exactly-once outputs tell. They may not differ."""
    keys: dict[int, dict[str, str | None]] = {}
    bad: list[str] = []
    places: dict[int, dict[str, dict[int, Place]]] = defaultdict(lambda: defaultdict(dict))
    for number, messages in found.outputs.items():
        if plan.nodes[number].kind == "aggregate":
            continue
        for _, value, _ in messages:
            for where, place, told, n in map(json.loads, value["trace"]):
                if where not in keys:
                    keys[where] = {each.n: each.key for each in expected.streams[where]}
                key = keys[where].get(n)
                if key is None:
                    bad.append(f"{n} was never in {plan.nodes[where].name}")
                elif plan.nodes[where].kind in ("table", "side"):
                    bad += _broken_look_up(plan, plan.nodes[where], expected, key, told)
                elif plan.outputs[number] and places[where][key].setdefault(place, (n, told)) != (n, told):
                    bad.append(f"{plan.nodes[where].name} {key}: {places[where][key][place]} and {n, told} at {place}")
    return places, bad


def _broken_look_up(plan: Plan, node: Node, expected: Expected, key: str, found: str | None) -> list[str]:
    """A message finds a version of its key; in a side input one that is at least as new as the first start."""
    known: set[str | None]
    if node.kind == "side":
        own = [each for each in plan.sides[node.number] if each.key == key]
        before = max((at for at, each in enumerate(own) if each.early), default=None)
        known = {each.n for each in own[before or 0 :]} | ({None} if before is None else set())
        return [] if found in known else [f"{node.name} has found {found} under {key} in place of {known}"]
    known = {each.n for each in expected.streams[node.sources[1]] if each.key == key}
    return [] if found is None or found in known else [f"{node.name} has found {found} under {key}"]


def _broken_order(node: Node, expected: Expected, places: dict[str, dict[int, Place]]) -> list[str]:
    """Each message has a place, those of one way are in their order, and stores have said what they must say."""
    bad = []
    for key, found in places.items():
        own: dict[str, list[Message]] = defaultdict(list)
        for each in expected.streams[node.number]:
            if each.key == key:
                own[each.n].append(each)
        number = sum(map(len, own.values()))
        if not all(1 <= place <= number for place in found):
            bad.append(f"{node.name} {key}: places {sorted(found)} of {number}")
        times = Counter(n for n, _ in found.values())
        bad += [f"{node.name} {key}: {n} {count} times" for n, count in times.items() if count > len(own[n])]
        in_places = [n for _, (n, _) in sorted(found.items())]
        if not _in_order(in_places, [each for messages in own.values() for each in messages]):
            bad.append(f"{node.name} {key}: {in_places} are not in order")
        if len(found) == number:
            ordered = [found[place] for place in sorted(found)]
            states = list(replayed(node.kind, [(n, own[n][0].v) for n, _ in ordered]))
            told = [len(state) if isinstance(state, list) else state for state in states]
            if node.kind == "expire":
                told = _counted([each[1] for each in ordered])
            if told != [each[1] for each in ordered]:
                bad.append(f"{node.name} {key}: {ordered} in place of {told}")
    return bad


def _counted(told: list[Any]) -> list[Any]:
    """The counts of a store whose entries expire: each is one more than the last one, or the first again."""
    return [1 if place == 0 or count == 1 else told[place - 1] + 1 for place, count in enumerate(told)]


def _broken_store(node: Node, expected: Expected, found: Found, places: dict[str, dict[int, Place]]) -> list[str]:
    own: dict[str, list[Message]] = defaultdict(list)
    for each in expected.streams[node.number]:
        own[str(each.key)].append(each)
    name = node.name if node.kind == "reduce" else f"store{node.number}"
    bad = []
    state = {key: value for _, key, value in found.stores.get(name, [])}
    entries = found.stores.get(name, [])
    if len(state) != len(entries):
        bad.append(f"{name}: a key is in two tasks: {entries}")
    if node.kind == "reduce":
        last = {key: json.loads(value["trace"][-1])[1:3] for key, value in state.items()}
        wanted = {key: [len(each), sum(m.v for m in each)] for key, each in own.items()}
        return bad + ([] if last == wanted else [f"{name}: {last} in place of {wanted}"])
    counts = {key: value for _, key, value in found.stores.get(f"count{node.number}", [])}
    if counts != {key: len(each) for key, each in own.items()}:
        bad.append(f"count{node.number}: {counts} in place of { ({key: len(each) for key, each in own.items()}) }")
    for key, messages in own.items():
        if not _is_right(node.kind, state.get(key), messages, places.get(key, {})):
            bad.append(f"{name} {key}: {state.get(key)}, after {[each.n for each in messages]}")
    return bad + [f"{name}: {key} was never there" for key in state.keys() - own.keys()]


def _is_right(kind: str, value: Any, messages: list[Message], places: dict[int, Place]) -> bool:
    """True if a task may have left this value, and must have if all places are known."""
    names = Counter(each.n for each in messages)
    if kind == "expire":
        last_told = max(places.items())[1][1] if len(places) == len(messages) else value
        return value is None or (value == last_told and 1 <= value <= len(messages))
    if len(places) == len(messages):
        by_name = {each.n: each.v for each in messages}
        (*_, last) = replayed(kind, [(places[at][0], by_name[places[at][0]]) for at in sorted(places)])
        if last != value:
            return False
    match kind:
        case "sum" | "batch":
            return bool(value == sum(each.v for each in messages))
        case "list":
            return Counter(value) == names and _in_order(value, messages)
        case "last":
            return value in names
        case _:
            return Counter(value or []) <= names


def _in_order(names: list[str], messages: list[Message]) -> bool:
    """Check that the named messages that have come one way are in the order of that way."""
    times, known = Counter(names), Counter(each.n for each in messages)
    place = {n: number for number, n in enumerate(names)}
    ways: dict[Any, list[tuple[Any, int]]] = defaultdict(list)
    for each in messages:
        if each.order is not None and times[each.n] == 1 == known[each.n]:
            ways[each.path].append((each.order, place[each.n]))
    return all([at for _, at in sorted(way)] == sorted(at for _, at in way) for way in ways.values())


def _left_behind(plan: Plan, expected: Expected, found: Found) -> list[str]:
    """Nothing waits for its time any more."""
    bad = []
    for name, entries in found.stores.items():
        operator, _, what = name.partition(".")
        kind = next((node.kind for node in plan.nodes if node.name == operator), "")
        if (what in ("window", "join", "in-order") or (what == "timers" and kind in ("timer", "due"))) and entries:
            bad.append(f"{name}: {len(entries)} entries are left: {entries[:3]}")
    for node in plan.nodes:
        if node.kind in ("timer", "due") and found.stores.get(f"store{node.number}"):
            bad.append(f"store{node.number}: left {found.stores[f'store{node.number}'][:3]}")
        if node.kind in ("table", "temporal"):
            keys = {each.key for each in expected.streams[node.sources[1]]}
            have = len(found.stores[f"table{node.number}"])
            if node.kind == "table" and have != len(keys):
                bad.append(f"table{node.number}: {have} entries of {len(keys)}")
    return bad
