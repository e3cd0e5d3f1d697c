"""Writers of Kafka whose requests meet fates, one kind of request and one fate at a time, at each position in a life.

To walk through all of them, which takes some minutes::

    python -m tests.support.world.fated_requests
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from penstock.testing.kafka_broker import KafkaBroker
from tests.support.streams.kafka_proxy import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    Fate,
)
from tests.support.world.late_requests import LIVES, LateLife, Verdict

API_KEYS = (
    PRODUCE,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    FIND_COORDINATOR,
    METADATA,
    LIST_OFFSETS,
    FETCH,
)
FATES = tuple(fate for fate in Fate if fate is not Fate.PASSED)
EVERY = 4
"""So many others are between two requests with a fate, so that the client gets over one before the next."""
TRANSACTIONS = 4
_MOST = 100


@dataclass(frozen=True, slots=True)
class Case:
    """A fate for the requests of an API key: for that behind the first `after`, and each `EVERY`-th behind it."""

    kind: type[LateLife]
    api_key: int
    fate: Fate
    after: int


@dataclass(frozen=True, slots=True)
class Walked:
    """The outcome of a case."""

    case: Case
    verdict: Verdict
    met: int
    overtaken: int


def cases(kinds: Iterable[type[LateLife]], api_keys: Iterable[int], fates: Iterable[Fate]) -> list[Case]:
    keys, all_fates = tuple(api_keys), tuple(fates)
    return [
        Case(kind, key, fate, after) for kind in kinds for key in keys for fate in all_fates for after in range(EVERY)
    ]


def walk(broker: KafkaBroker, given: Iterable[Case], at_once: int = 4) -> Iterator[Walked]:
    """Live each case."""

    def live(case: Case) -> Walked:
        life = case.kind(broker, case.after)
        fated = [life.proxy.give(case.api_key, case.fate, after=number) for number in range(case.after, _MOST, EVERY)]
        verdict = life.walk(TRANSACTIONS)
        return Walked(case, verdict, sum(each.has_come for each in fated), sum(each.was_overtaken for each in fated))

    with ThreadPoolExecutor(at_once) as threads:
        yield from threads.map(live, given)


def main() -> None:
    parser = argparse.ArgumentParser(description="Give single requests of Kafka's writers each fate.")
    parser.add_argument("--fate", choices=[fate.name for fate in FATES], help="this one alone")
    parser.add_argument("--api-key", type=int, help="requests of this kind alone")
    parser.add_argument("--at-once", type=int, default=4, help="lives at once")
    given = parser.parse_args()
    fates = [Fate[given.fate]] if given.fate else FATES
    keys = API_KEYS if given.api_key is None else [given.api_key]
    began, total, met = time.monotonic(), Verdict(), Counter[tuple[int, str]]()
    overtaken = 0
    with KafkaBroker(heap_mb=512) as broker:
        for walked in walk(broker, cases(LIVES, keys, fates), given.at_once):
            total += walked.verdict
            met[walked.case.api_key, walked.case.fate.name] += walked.met
            overtaken += walked.overtaken
            if walked.verdict.wrong:
                print(f"{time.monotonic() - began:7.1f} s  WRONG: {walked}", flush=True)
    for (api_key, fate), count in met.items():
        print(f"API key {api_key:3}, {fate:12}: {count} requests")
    print(f"{overtaken} requests were overtaken; in all: {total}")
    raise SystemExit(1 if total.wrong else 0)


if __name__ == "__main__":
    main()
