"""The decision which version of a pushed table the next batch reads."""

from __future__ import annotations

import pytest

from penstock.tables.driver.run import Swap, SwapFacts, decide_swap


@pytest.mark.parametrize(
    ("facts", "swap"),
    [
        pytest.param(SwapFacts(None), Swap(None), id="nothing is published"),
        pytest.param(SwapFacts(None, current=3, asked=3, state="loaded"), Swap(3), id="what there is stays"),
        pytest.param(SwapFacts(4), Swap(None, 4), id="the first one"),
        pytest.param(SwapFacts(4, asked=4), Swap(None), id="the first one is loading"),
        pytest.param(SwapFacts(4, asked=4, state="loaded"), Swap(4), id="the first one is loaded"),
        pytest.param(SwapFacts(4, current=4, asked=4, state="loaded"), Swap(4), id="nothing new"),
        pytest.param(SwapFacts(5, current=4, asked=4, state="loaded"), Swap(4, 5), id="a new one"),
        pytest.param(SwapFacts(5, current=4, asked=5), Swap(4), id="it is loading"),
        pytest.param(SwapFacts(5, current=4, asked=5, state="loaded"), Swap(5), id="it is loaded"),
        pytest.param(SwapFacts(6, current=4, asked=5), Swap(4), id="a newer one waits for it"),
        pytest.param(SwapFacts(6, current=4, asked=5, state="loaded"), Swap(5), id="it is used first"),
        pytest.param(SwapFacts(6, pinned=True, current=4, asked=5), Swap(4, 6), id="a chosen one does not wait"),
        pytest.param(SwapFacts(3, pinned=True, current=4, asked=5), Swap(4, 3), id="back to an older one"),
        pytest.param(SwapFacts(4, pinned=True, current=4, asked=5), Swap(4, 4), id="the other one is not wanted"),
        pytest.param(SwapFacts(3, current=4, asked=4, state="loaded"), Swap(4), id="the one in use has vanished"),
        pytest.param(SwapFacts(3, pinned=True, current=4, asked=4, state="loaded"), Swap(4, 3), id="chosen, older"),
        pytest.param(SwapFacts(5, current=4, asked=5, state="failed"), Swap(4), id="failed"),
        pytest.param(SwapFacts(5, current=4, asked=5, state="failed", may_retry=True), Swap(4, 5), id="tried again"),
        pytest.param(SwapFacts(6, current=4, asked=5, state="failed"), Swap(4, 6), id="failed, and a newer one"),
        pytest.param(SwapFacts(5, asked=4, state="failed"), Swap(None, 5), id="the first one failed, and a newer one"),
    ],
)
def test_the_next_step(facts: SwapFacts, swap: Swap) -> None:
    assert decide_swap(facts) == swap
