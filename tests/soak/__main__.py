"""`make soak`: a soak of so many hours, or `python -m tests.soak --hours 0.1 [--seed N]`.

Prints a line for each event and check, and in the end how much there was of each. The exit status is 1 if anything was
broken; seed and story are printed then.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.soak import figures
from tests.soak.events import EVENTS
from tests.soak.soak import Soak
from tests.soak.world import World

_LOG = 4000


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="A job under load, and all that happens.")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument("--rate", type=float, default=30.0, help="events a second, about")
    parser.add_argument("--calm", type=float, default=20.0, help="the longest time between two events, in seconds")
    parser.add_argument("--events", nargs="+", choices=sorted(EVENTS), help="only these")
    parser.add_argument("--rounds", type=int, default=0, help="end after so many rounds of all events")
    parser.add_argument("--keep", type=Path, help="where logs go if something is broken")
    options = parser.parse_args(given)
    seed = options.seed or random.SystemRandom().randrange(1, 1_000_000)
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # as Ctrl-C: what was started goes
    folder = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    world = World(folder / "world", seed, options.rate)
    soak = Soak(world, tell=lambda line: print(line, flush=True))
    print(f"seed {seed}, {options.hours:g} hours", flush=True)
    broken: BaseException | None = None
    try:
        live(soak, options.hours * 3600, options.calm, options.events or sorted(EVENTS), options.rounds)
    except Exception as error:
        broken = error
        soak.say(f"BROKEN: {type(error).__name__}: {error}")
        if options.keep:
            _keep(world, options.keep)
        explain(soak)
    finally:
        world.close()
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)
    found = [str(each) for each in figures.table(soak.samples) if each.too_much]
    print("\n".join(summary(soak, seed, int(broken is not None) + len(found))), flush=True)
    if broken is not None:
        print("\n".join(["", f"the story of seed {seed}:", *soak.story]), flush=True)
    return int(broken is not None or bool(found))


def live(soak: Soak, seconds: float, calm_s: float, events: Sequence[str], rounds: int = 0) -> None:
    """Let events happen, each of them once in a round, with a check after each, until the time is over.

    Raises:
        BrokenError: something is not as it has to be.
    """
    deadline = time.monotonic() + seconds
    soak.begin()
    soak.check()
    done = 0
    while time.monotonic() < deadline and not (rounds and done == rounds):
        names = list(events)
        soak.chance.shuffle(names)
        for name in names:
            if time.monotonic() >= deadline:
                break
            threading.Event().wait(soak.chance.uniform(0.1, 1.0) * calm_s)  # the load goes on
            began = time.monotonic()
            soak.say(f"{name} ...")
            said = EVENTS[name](soak)
            soak.happened[name] += 1
            soak.say(f"{name}: {said}, {time.monotonic() - began:.0f} s")
            soak.check()
        done += 1
    soak.stop()
    soak.await_gone()


def explain(soak: Soak) -> None:
    """Print the ends of the last logs."""
    for number in range(max(1, soak.world.starts - 1), soak.world.starts + 1):
        path = soak.world.folder / f"driver-{number}.log"
        if path.exists():
            print(f"--- {path.name}", path.read_text(encoding="utf-8", errors="replace")[-_LOG:], sep="\n", flush=True)


def _keep(world: World, to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    for path in (*world.folder.glob("*.log"), *(world.folder / "state").rglob("*.log")):
        shutil.copy(path, to / path.name)
    for name in ("jobs", "journal.jsonl", "streams"):
        source = world.folder / name
        if source.is_dir():
            shutil.copytree(source, to / name, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy(source, to / name)


def summary(soak: Soak, seed: int, broken: int) -> list[str]:
    """Counts of everything, and the growth."""
    happened = ", ".join(f"{count} {name}" for name, count in sorted(soak.happened.items()))
    counts = {
        "batches": soak.batches, "messages": soak.world.input.count, "results": soak.results,
        "starts": soak.world.starts, "checks": soak.checks,
    }  # fmt: skip
    return [
        f"seed {seed}: {', '.join(f'{count:,} {what}' for what, count in counts.items())}",
        f"events: {happened or 'none'}",
        *(f"  {each}" for each in figures.table(soak.samples)),
        f"broken: {broken}",
    ]


if __name__ == "__main__":
    sys.exit(main())
