"""The examples with windows: visits of users, and the products that sold best in each hour."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import TypeVar

from examples.jobs import sessions, top_n
from examples.jobs.sessions import Click
from examples.jobs.top_n import Sale
from penstock.testing import TestRunner

T = TypeVar("T", Click, Sale)

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def test_visits_are_those_of_the_sorted_clicks() -> None:
    chance = random.Random(11)
    pages = ["home", "cart", "help", "pay"]
    times = (chance.sample(range(48 * HOUR_MS), 100) for _ in range(6))
    clicks = [Click(f"u{user}", chance.choice(pages), at) for user, each in enumerate(times) for at in each]
    runner = TestRunner(sessions.app, partitions=3)
    shuffled = disordered(clicks, 5 * MINUTE_MS, chance)
    assert shuffled != sorted(clicks, key=lambda click: click.at_ms)
    runner.input("local.clicks", shuffled[:300]).run(batch_messages=50).commit()
    runner.input("local.clicks", shuffled[300:400]).run().crash().restore()
    seen = len(runner.output("local.visits"))
    runner.input("local.clicks", shuffled[400:]).run(batch_messages=50).end_inputs()
    found = {(m.key, m.value["start_ms"]): m.value for m in runner.output("local.visits")}
    assert found == visits(clicks)
    assert 0 < seen < len(found)
    assert 50 < len(found) < 400
    assert runner.output("local.late-clicks") == []


def test_a_visit_waits_five_minutes_for_clicks_out_of_order() -> None:
    runner = TestRunner(sessions.app, partitions=1).input("local.clicks", [Click("ann", "home", 0)]).run()
    runner.input("local.clicks", [Click("bob", "home", 34 * MINUTE_MS)]).run()
    runner.input("local.clicks", [Click("ann", "cart", 29 * MINUTE_MS)]).end_inputs()
    assert {message.key: message.value["clicks"] for message in runner.output("local.visits")} == {"ann": 2, "bob": 1}


def test_a_click_of_a_visit_that_has_ended_goes_to_the_late_ones() -> None:
    runner = TestRunner(sessions.app).input("local.clicks", [Click("ann", "home", 0)]).advance_watermark(HOUR_MS)
    runner.input("local.clicks", [Click("ann", "cart", 1)]).run()
    assert [message.value for message in runner.output("local.late-clicks")] == [Click("ann", "cart", 1)]
    assert [message.value["clicks"] for message in runner.output("local.visits")] == [1]


def test_the_best_products_of_an_hour_are_those_of_a_plain_sum() -> None:
    chance = random.Random(5)
    sales = [
        Sale(f"s{chance.randrange(3)}", f"p{chance.randrange(8)}", chance.randrange(1, 100_000), at_ms)
        for at_ms in chance.sample(range(5 * HOUR_MS), 700)
    ]
    runner = TestRunner(top_n.app, partitions=3)
    runner.input("local.sales", disordered(sales, 10 * MINUTE_MS, chance)).run(batch_messages=20)
    before_the_end = len(runner.output("local.best-sellers"))
    runner.commit().crash().restore().end_inputs()
    lists = {(m.key, m.value["start_ms"]): m.value["best"] for m in runner.output("local.best-sellers")}
    assert {each: [(row["product"], row["cents"]) for row in best] for each, best in lists.items()} == best_of(sales)
    assert (before_the_end > 0, len(lists)) == (True, 3 * 5)


def test_an_hour_waits_ten_minutes_for_sales_out_of_order() -> None:
    runner = TestRunner(top_n.app, partitions=1).input("local.sales", [Sale("s1", "tea", 300, 0)]).run()
    runner.input("local.sales", [Sale("s2", "ink", 500, 69 * MINUTE_MS)]).run()
    runner.input("local.sales", [Sale("s1", "tea", 400, 59 * MINUTE_MS)]).end_inputs()
    (found,) = [message.value["best"] for message in runner.output("local.best-sellers") if message.key == "s1"]
    assert [(row["product"], row["cents"]) for row in found] == [("tea", 700)]


def disordered(messages: list[T], bound_ms: int, chance: random.Random) -> list[T]:
    """The messages, each up to the bound behind later ones."""
    return sorted(messages, key=lambda message: message.at_ms + chance.randrange(bound_ms))


def visits(clicks: list[Click]) -> dict[tuple[str, int], dict[str, object]]:
    """The visits of each user, by user and start: the sorted clicks, cut at each gap."""
    found: dict[tuple[str, int], dict[str, object]] = {}
    for user in {click.user for click in clicks}:
        own = sorted((click.at_ms, click.page) for click in clicks if click.user == user)
        cuts = [i + 1 for i, (one, other) in enumerate(pairwise(own)) if other[0] - one[0] >= 30 * MINUTE_MS]
        for begin, end in pairwise([0, *cuts, len(own)]):
            visit = own[begin:end]
            found[user, visit[0][0]] = {
                "start_ms": visit[0][0],
                "end_ms": visit[-1][0] + 30 * MINUTE_MS,
                "clicks": len(visit),
                "first_page": visit[0][1],
                "last_page": visit[-1][1],
            }
    return found


def best_of(sales: list[Sale]) -> dict[tuple[str, int], list[tuple[str, int]]]:
    """The three products of each shop and hour with the greatest sums."""
    totals = Counter[tuple[str, int, str]]()
    for sale in sales:
        totals[sale.shop, sale.at_ms // HOUR_MS * HOUR_MS, sale.product] += sale.cents
    found: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for (shop, hour_ms, product), cents in totals.most_common():
        found.setdefault((shop, hour_ms), []).append((product, cents))
    return {each: best[:3] for each, best in found.items()}
